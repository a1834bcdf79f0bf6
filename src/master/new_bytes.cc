#include "master/new_bytes.h"

#include <chrono>
#include <set>
#include <utility>

#include "base/checksum.h"
#include "base/status_macros.h"
#include "checkpoint/repository.h"
#include "storage/open_store.h"

namespace cairn::master {
namespace {

constexpr auto kPause = std::chrono::seconds(5);
constexpr std::size_t kMostKnown = 500'000;

Result<std::map<std::string, std::uint64_t>> Look(const std::string& repository) {
  ASSIGN_OR_RETURN(const auto store, OpenStore(repository, {.create = false, .storage = {}}));
  ASSIGN_OR_RETURN(const RepositoryView view, RepositoryReader(store.get()).Read());
  std::map<std::string, std::uint64_t> found;
  std::set<std::pair<std::uint64_t, std::uint64_t>> seen;  // checksums of files, whole
  for (const Checkpoint& checkpoint : view.checkpoints) {
    if (checkpoint.removed || checkpoint.foreign) continue;
    std::uint64_t fresh = 0;
    for (const ManifestFile& file : checkpoint.manifest->files) {
      const bool first = seen.insert({file.hash.whole.high, file.hash.whole.low}).second;
      if (first) fresh += file.hash.bytes;
    }
    found[checkpoint.manifest->id] = fresh;
  }
  return found;
}

}  // namespace

std::optional<std::uint64_t> NewBytes::Of(const std::string& repository, const std::string& id) {
  {
    MutexLock hold(&mu_);
    if (const auto known = known_.find(id); known != known_.end()) return known->second;
    const Clock::Duration now = clock_->Now();
    const auto looked = looked_.find(repository);
    if (looked != looked_.end() && now - looked->second < kPause) return std::nullopt;
    if (known_.size() > kMostKnown) known_.clear();
    if (looked_.size() > kMostKnown) looked_.clear();
    looked_[repository] = now;
  }
  auto found = Look(repository);
  if (!found.ok()) return std::nullopt;
  MutexLock hold(&mu_);
  // What was known stays: what an earlier one had and was removed since is not paid for again.
  known_.insert(found->begin(), found->end());
  const auto known = known_.find(id);
  return known == known_.end() ? std::nullopt : std::optional(known->second);
}

}  // namespace cairn::master
