#include "checkpoint/shelves.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "base/log.h"
#include "base/status_macros.h"
#include "checkpoint/names.h"
#include "checkpoint/parallel.h"
#include "checkpoint/repository.h"
#include "format/records.h"

namespace cairn {
namespace {

// So many manifests on no shelf are worth a new one: a listing fetches at most these one by one.
constexpr std::size_t kWorthAShelf = 256;
constexpr std::size_t kMostOnAShelf = 1024;
// Of manifests on one shelf, before they are written as JSON text.
constexpr std::uint64_t kMaxShelfBytes = 16u << 20;

bool IsShelf(std::string_view name) { return name.starts_with(names::Path(names::kShelves, "")); }

/// "checkpoint_000040" of "checkpoint_000040/manifest.json"; "" of anything else.
std::string_view DirectoryOfManifest(std::string_view name) {
  const std::size_t slash = name.find('/');
  if (slash == name.npos || name.substr(slash + 1) != names::kManifest) return {};
  return name.substr(0, slash);
}

/// The tags of all manifests, by their names.
std::unordered_map<std::string_view, std::string_view> TagsOf(
    const std::vector<TaggedObject>& all) {
  std::unordered_map<std::string_view, std::string_view> tags;
  for (const TaggedObject& object : all) {
    if (!object.tag.empty() && !DirectoryOfManifest(object.name).empty()) {
      tags.emplace(object.name, object.tag);
    }
  }
  return tags;
}

/// The shelves of a listing, in its order; nothing for one that cannot be read.
std::vector<std::pair<std::string, std::optional<ShelfRecord>>> FetchShelves(
    Store* store, const std::vector<TaggedObject>& all) {
  std::vector<std::pair<std::string, std::optional<ShelfRecord>>> shelves;
  for (const TaggedObject& object : all) {
    if (IsShelf(object.name)) shelves.emplace_back(object.name, std::nullopt);
  }
  ForEachRequest(*store, shelves.size(), [&](std::size_t i) {
    const auto bytes = store->Get(shelves[i].first, kMaxRecordBytes);
    auto shelf = bytes.ok() ? Decode<ShelfRecord>(*bytes) : bytes.status();
    if (shelf.ok()) {
      shelves[i].second = *std::move(shelf);
    } else if (!shelf.status().Is(Code::kNotFound)) {
      LogWarning(shelves[i].first + " is passed over: " + shelf.status().ToString());
    }
  });
  return shelves;
}

}  // namespace

ShelvedManifests ReadShelves(Store* store, const std::vector<TaggedObject>& all) {
  const auto tags = TagsOf(all);
  ShelvedManifests manifests;
  for (auto& [name, shelf] : FetchShelves(store, all)) {
    if (!shelf) continue;
    for (ShelfRecord::Entry& entry : shelf->entries) {
      std::string path = names::Path(entry.directory, names::kManifest);
      const auto tag = tags.find(path);
      if (tag == tags.end() || tag->second != entry.tag) continue;
      manifests.emplace(std::move(path), std::move(entry.manifest));
    }
  }
  return manifests;
}

Status TidyShelves(Store* store, IdSource* ids) {
  auto* deep = dynamic_cast<DeepListingStore*>(store);
  if (deep == nullptr) return Status::Ok();
  ASSIGN_OR_RETURN(const Listing root, store->List(""));
  if (root.prefixes.size() < kWorthAShelf) return Status::Ok();
  ASSIGN_OR_RETURN(const std::vector<TaggedObject> all,
                   deep->ListBelow("", std::numeric_limits<std::size_t>::max()));
  auto tags = TagsOf(all);
  for (const auto& [name, shelf] : FetchShelves(store, all)) {
    bool used = false;
    for (std::size_t i = 0; shelf && i < shelf->entries.size(); ++i) {
      const ShelfRecord::Entry& entry = shelf->entries[i];
      const auto tag = tags.find(names::Path(entry.directory, names::kManifest));
      if (tag == tags.end() || tag->second != entry.tag) continue;
      used = true;
      tags.erase(tag);
    }
    if (used) continue;
    const Status deleted = store->Delete(name);
    if (!deleted.ok() && !deleted.Is(Code::kNotFound)) return deleted;
  }
  if (tags.size() < kWorthAShelf) return Status::Ok();

  std::vector<std::pair<std::string, std::string>> unshelved(tags.begin(), tags.end());
  std::sort(unshelved.begin(), unshelved.end());  // neighbours are often removed together
  std::vector<std::optional<Result<std::string>>> fetched(unshelved.size());
  for (std::size_t begin = 0; begin < unshelved.size(); begin += kMostOnAShelf) {
    const std::size_t count = std::min(kMostOnAShelf, unshelved.size() - begin);
    ForEachRequest(*store, count, [&](std::size_t i) {
      fetched[begin + i].emplace(store->Get(unshelved[begin + i].first, kMaxManifestBytes));
    });
    ShelfRecord shelf;
    std::uint64_t bytes = 0;
    const auto put = [&]() -> Status {
      if (shelf.entries.empty()) return Status::Ok();
      const std::string name = names::Path(names::kShelves, ids->NewUuid() + ".json");
      RETURN_IF_ERROR(store->Put(name, Encode(shelf)));
      shelf.entries.clear();
      bytes = 0;
      return Status::Ok();
    };
    for (std::size_t i = begin; i < begin + count; ++i) {
      const auto& [name, tag] = unshelved[i];
      const Result<std::string> manifest = std::move(*fetched[i]);
      fetched[i].reset();
      // Removed meanwhile, or too large to be worth a copy. Of one that was replaced meanwhile the
      // tag is the old one's: its copy never counts.
      if (!manifest.ok() || manifest->size() > kMaxShelfBytes / 16) continue;
      if (!DecodeManifest(*manifest).ok()) continue;
      if (bytes + manifest->size() > kMaxShelfBytes) RETURN_IF_ERROR(put());
      bytes += manifest->size();
      shelf.entries.push_back({.directory = std::string(DirectoryOfManifest(name)),
                               .tag = tag,
                               .manifest = *manifest});
    }
    RETURN_IF_ERROR(put());
  }
  return Status::Ok();
}

}  // namespace cairn
