#include <map>
#include <string>
#include <utility>

#include <cairn/transfer.h>

#include "base/status_macros.h"
#include "checkpoint/checkpoint_path.h"
#include "checkpoint/names.h"
#include "checkpoint/repository.h"
#include "checkpoint/transfer.h"

namespace cairn {
namespace {

Result<std::uint64_t> BytesBelow(Store* store, const std::string& prefix, bool* any) {
  std::uint64_t bytes = 0;
  ASSIGN_OR_RETURN(const Listing listing, store->List(prefix));
  for (const ObjectInfo& object : listing.objects) {
    *any = true;
    // A file that a living checkpoint shares gives no room back.
    auto links = store->LinkCount(object.name);
    if (links.status().Is(Code::kNotFound)) continue;
    if (!links.ok()) return links.status();
    if (*links <= 1) bytes += object.bytes;
  }
  for (const std::string& sub : listing.prefixes) {
    ASSIGN_OR_RETURN(const std::uint64_t below, BytesBelow(store, sub, any));
    bytes += below;
  }
  return bytes;
}

/// What a sweep may take: name → why.
Result<std::map<std::string, std::string>> Candidates(Store* store) {
  RepositoryReader reader(store);
  ASSIGN_OR_RETURN(const RepositoryView view, reader.Read());
  std::map<std::string, std::string> candidates;
  for (const std::string& directory : view.unfinished) candidates[directory] = "unfinished save";
  for (const Checkpoint& checkpoint : view.checkpoints) {
    if (checkpoint.counts || checkpoint.foreign) continue;
    candidates[checkpoint.directory] =
        checkpoint.removed ? "checkpoint being removed" : "checkpoint that no longer counts";
  }
  ASSIGN_OR_RETURN(const Listing pools, store->List(std::string(names::kPool)));
  for (const std::string& pool : pools.prefixes) candidates[pool] = "recycled files";
  return candidates;
}

}  // namespace

Result<GarbageReport> CollectGarbageIn(const Environment& env, bool takeover) {
  Store* store = env.store.get();
  struct Before {
    std::string what;
    std::uint64_t bytes = 0;
  };
  std::map<std::string, Before> before;
  ASSIGN_OR_RETURN(const auto candidates, Candidates(store));
  for (const auto& [name, what] : candidates) {
    bool any = false;
    ASSIGN_OR_RETURN(const std::uint64_t bytes, BytesBelow(store, name, &any));
    if (any) before[name] = {what, bytes};
  }
  Environment opened = env;
  opened.frees_room = true;
  RETURN_IF_ERROR(OpenForTool(opened, {.job = "", .takeover = takeover}).status());
  GarbageReport report;
  for (auto& [name, item] : before) {
    bool any = false;
    ASSIGN_OR_RETURN(const std::uint64_t left, BytesBelow(store, name, &any));
    if (any && left == item.bytes) continue;  // somebody else's, and left alone
    const std::uint64_t freed = item.bytes - std::min(left, item.bytes);
    report.bytes += freed;
    report.removed.push_back({name, item.what, freed});
  }
  return report;
}

Result<GarbageReport> CollectGarbage(const std::string& directory, bool takeover) {
  ASSIGN_OR_RETURN(const Environment env, ExistingDirectory(directory));
  RepositoryReader reader(env.store.get());
  RETURN_IF_ERROR(reader.ReadRecord().status());
  return CollectGarbageIn(env, takeover);
}

}  // namespace cairn
