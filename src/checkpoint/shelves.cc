#include "checkpoint/shelves.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
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

constexpr std::size_t kMostOnAShelf = 1024;
// Of manifests on one shelf, before they are written as JSON text, which at most doubles them.
constexpr std::uint64_t kMaxShelfBytes = 16u << 20;
// A larger one is dear to copy, and few of them make a listing slow by their bytes anyway.
constexpr std::uint64_t kMaxCopyBytes = kMaxShelfBytes / 16;
// Of a shelf whose manifests are mostly gone, readers fetch what nobody needs.
constexpr std::size_t kLeastUsedPart = 4;
// Where there is more in each directory on average, listing everything is dear.
constexpr std::size_t kObjectsEach = 32;

bool IsShelf(std::string_view name) { return name.starts_with(names::Path(names::kShelves, "")); }

/// "checkpoint_000040" of "checkpoint_000040/manifest.json"; "" of anything else.
std::string_view DirectoryOfManifest(std::string_view name) {
  const std::size_t slash = name.find('/');
  if (slash == name.npos || name.substr(slash + 1) != names::kManifest) return {};
  return name.substr(0, slash);
}

/// Other programs have files of that name too; nobody lists them faster for a copy.
bool IsWorthACopy(const TaggedObject& manifest) {
  return manifest.bytes <= kMaxCopyBytes &&
         (manifest.name.starts_with("checkpoint_") || manifest.name.starts_with("increment_"));
}

/// All manifests, by their names. No two manifests are alike, each has an id of its own: a tag that
/// several have is not one of content, or of a copy made by hand, and tells nothing.
std::unordered_map<std::string_view, const TaggedObject*> ManifestsIn(
    const std::vector<TaggedObject>& all) {
  std::unordered_map<std::string_view, const TaggedObject*> by_tag;
  std::set<std::string_view> doubtful = {""};
  for (const TaggedObject& object : all) {
    if (DirectoryOfManifest(object.name).empty()) continue;
    if (!by_tag.emplace(object.tag, &object).second) doubtful.insert(object.tag);
  }
  std::unordered_map<std::string_view, const TaggedObject*> manifests;
  for (const auto& [tag, object] : by_tag) {
    if (!doubtful.contains(tag)) manifests.emplace(object->name, object);
  }
  return manifests;
}

struct Shelf {
  std::string name;
  std::optional<ShelfRecord> record;  // nothing when it could not be read
  bool damaged = false;
};

/// Whether the copy may be used for what a listing says of its manifest.
bool IsCopyOf(const TaggedObject& manifest, std::string_view tag, std::string_view bytes) {
  return manifest.tag == tag && manifest.bytes == bytes.size();
}

/// The shelves of a listing, in its order.
std::vector<Shelf> FetchShelves(Store* store, const std::vector<TaggedObject>& all) {
  std::vector<Shelf> shelves;
  for (const TaggedObject& object : all) {
    if (IsShelf(object.name)) shelves.push_back({.name = object.name});
  }
  ForEachRequest(*store, shelves.size(), [&](std::size_t i) {
    Shelf& shelf = shelves[i];
    const auto bytes = store->Get(shelf.name, kMaxRecordBytes);
    auto record = bytes.ok() ? Decode<ShelfRecord>(*bytes) : bytes.status();
    if (record.ok()) {
      shelf.record = *std::move(record);
      return;
    }
    shelf.damaged = record.status().Is(Code::kCorruption);
    if (!record.status().Is(Code::kNotFound)) {  // its owner tidies up
      LogWarning(shelf.name + " is passed over: " + record.status().ToString());
    }
  });
  return shelves;
}

/// Copies manifests, which a listing named, onto new shelves. For one thread.
class Shelver {
 public:
  Shelver(Store* store, IdSource* ids) : store_(store), ids_(ids) {}

  /// In the order given: neighbours are often removed together.
  Status Add(const std::vector<const TaggedObject*>& manifests) {
    for (std::size_t begin = 0; begin < manifests.size();) {
      std::size_t end = begin;
      std::uint64_t bytes = 0;
      while (end < manifests.size() && end - begin < kMostOnAShelf &&
             bytes + manifests[end]->bytes <= kMaxShelfBytes) {
        bytes += manifests[end++]->bytes;
      }
      RETURN_IF_ERROR(AddShelf(std::span(manifests).subspan(begin, end - begin)));
      begin = end;
    }
    return Status::Ok();
  }

 private:
  Status AddShelf(std::span<const TaggedObject* const> manifests) {
    std::vector<Result<std::string>> fetched(manifests.size(), NotFoundError("not looked for"));
    ForEachRequest(*store_, manifests.size(), [&](std::size_t i) {
      fetched[i] = store_->Get(manifests[i]->name, kMaxCopyBytes);
    });
    ShelfRecord shelf;
    for (std::size_t i = 0; i < manifests.size(); ++i) {
      // Removed meanwhile, or damaged. Of one that was replaced meanwhile the tag is the old one's:
      // its copy never counts.
      if (!fetched[i].ok() || fetched[i]->size() != manifests[i]->bytes) continue;
      if (!DecodeManifest(*fetched[i]).ok()) continue;
      shelf.entries.push_back({.directory = std::string(DirectoryOfManifest(manifests[i]->name)),
                               .tag = manifests[i]->tag,
                               .manifest = *std::move(fetched[i])});
    }
    if (shelf.entries.empty()) return Status::Ok();
    return store_->Put(names::Path(names::kShelves, ids_->NewUuid() + ".json"), Encode(shelf));
  }

  Store* const store_;
  IdSource* const ids_;
};

}  // namespace

ShelvedManifests ReadShelves(Store* store, const std::vector<TaggedObject>& all,
                             bool compare_tags) {
  ShelvedManifests manifests;
  const auto there = ManifestsIn(all);
  for (Shelf& shelf : FetchShelves(store, all)) {
    if (!shelf.record) continue;
    for (ShelfRecord::Entry& entry : shelf.record->entries) {
      std::string name = names::Path(entry.directory, names::kManifest);
      const auto found = there.find(name);
      if (found == there.end()) continue;
      if (compare_tags && !IsCopyOf(*found->second, entry.tag, entry.manifest)) continue;
      manifests.insert_or_assign(
          std::move(name),
          ShelvedManifest{.tag = std::move(entry.tag), .bytes = std::move(entry.manifest)});
    }
  }
  return manifests;
}

void KeepCurrent(const std::vector<TaggedObject>& all, bool compare_tags,
                 ShelvedManifests* manifests) {
  const auto there = ManifestsIn(all);
  std::erase_if(*manifests, [&](const auto& entry) {
    const auto found = there.find(entry.first);
    if (found == there.end()) return true;
    return compare_tags && !IsCopyOf(*found->second, entry.second.tag, entry.second.bytes);
  });
}

std::size_t DeepListingLimit(std::size_t directories) { return directories * kObjectsEach; }

std::size_t TidyEvery(Store* store) {
  const auto* deep = dynamic_cast<DeepListingStore*>(store);
  if (deep == nullptr || deep->listing_costs().many_directories == 0) return 0;
  return deep->listing_costs().many_objects;
}

Status TidyShelves(Store* store, IdSource* ids) {
  const std::size_t worth_a_shelf = TidyEvery(store);
  if (worth_a_shelf == 0) return Status::Ok();
  ASSIGN_OR_RETURN(const Listing root, store->List(""));
  if (root.prefixes.size() < worth_a_shelf) {
    // Too few for new ones; those of better times go.
    ASSIGN_OR_RETURN(const Listing shelves, store->List(std::string(names::kShelves)));
    if (shelves.objects.empty()) return Status::Ok();
  }
  const auto listed = dynamic_cast<DeepListingStore*>(store)->ListAll(
      root.prefixes, DeepListingLimit(std::max(root.prefixes.size(), worth_a_shelf)));
  // Readers do not list so much, and use no shelves.
  if (listed.status().Is(Code::kResourceExhausted)) return Status::Ok();
  if (listed.status().Is(Code::kUnimplemented)) return Status::Ok();
  if (!listed.ok()) return listed.status();
  auto unshelved = ManifestsIn(*listed);
  std::vector<std::string> superfluous;
  for (const Shelf& shelf : FetchShelves(store, *listed)) {
    if (!shelf.record) {
      if (shelf.damaged) superfluous.push_back(shelf.name);
      continue;
    }
    std::vector<std::string_view> used;
    for (const ShelfRecord::Entry& entry : shelf.record->entries) {
      const auto found = unshelved.find(names::Path(entry.directory, names::kManifest));
      if (found == unshelved.end()) continue;
      if (IsCopyOf(*found->second, entry.tag, entry.manifest)) used.push_back(found->first);
    }
    if (used.empty() || used.size() * kLeastUsedPart < shelf.record->entries.size()) {
      superfluous.push_back(shelf.name);
      continue;
    }
    for (const std::string_view name : used) unshelved.erase(name);
  }
  std::vector<const TaggedObject*> manifests;
  for (const auto& [name, object] : unshelved) {
    if (IsWorthACopy(*object)) manifests.push_back(object);
  }
  if (manifests.size() >= worth_a_shelf) {
    std::sort(manifests.begin(), manifests.end(),
              [](const TaggedObject* a, const TaggedObject* b) { return a->name < b->name; });
    RETURN_IF_ERROR(Shelver(store, ids).Add(manifests));
  }
  // Last: what was left on them is on the new ones.
  for (const std::string& name : superfluous) {
    const Status deleted = store->Delete(name);
    if (!deleted.ok() && !deleted.Is(Code::kNotFound)) return deleted;
  }
  return Status::Ok();
}

}  // namespace cairn
