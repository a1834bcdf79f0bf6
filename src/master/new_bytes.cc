#include "master/new_bytes.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/checksum.h"
#include "base/status_macros.h"
#include "checkpoint/names.h"
#include "checkpoint/repository.h"
#include "storage/local/posix_fs.h"
#include "storage/open_store.h"

namespace cairn::master {
namespace {

constexpr int kThreads = 2;
constexpr std::size_t kMostKnown = 500'000;
constexpr std::size_t kMostPlaces = 100'000;

}  // namespace

Result<std::map<std::string, std::uint64_t>> CountNewBytes(
    Store* store, const std::function<Result<std::uint64_t>(const std::string& name)>& inode) {
  ASSIGN_OR_RETURN(const RepositoryView view, RepositoryReader(store).Read());
  // Names of the files with these contents, oldest first. Only files with the same contents can be
  // one, so that of most nobody has to ask.
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::vector<std::string>> earlier;
  std::map<std::string, std::uint64_t> inodes;
  const auto inode_of = [&](const std::string& name) -> Result<std::uint64_t> {
    if (const auto known = inodes.find(name); known != inodes.end()) return known->second;
    ASSIGN_OR_RETURN(const std::uint64_t found, inode(name));
    return inodes[name] = found;
  };
  const auto one_file = [&](const std::string& a, const std::string& b) {
    const auto first = inode_of(a);
    const auto second = inode_of(b);
    return first.ok() && second.ok() && *first == *second;  // not there: removed by hand
  };
  std::map<std::string, std::uint64_t> found;
  for (const Checkpoint& checkpoint : view.checkpoints) {
    if (checkpoint.removed || checkpoint.foreign) continue;
    std::uint64_t fresh = 0;
    for (const ManifestFile& file : checkpoint.manifest->files) {
      if (!file.ref.empty()) continue;
      const std::string name = names::Path(checkpoint.directory, file.path);
      std::vector<std::string>& same = earlier[{file.hash.whole.high, file.hash.whole.low}];
      const bool shared =
          store->traits().hard_links && std::ranges::any_of(same, [&](const std::string& other) {
            return one_file(name, other);
          });
      if (!shared) {
        fresh += file.hash.bytes;
        same.push_back(name);
      }
    }
    found[checkpoint.manifest->id] = fresh;
  }
  return found;
}

Result<std::map<std::string, std::uint64_t>> ReadNewBytes(const std::string& repository) {
  ASSIGN_OR_RETURN(const auto store, OpenStore(repository, {.create = false, .storage = {}}));
  std::string directory;
  if (!IsRemote(repository)) {
    ASSIGN_OR_RETURN(directory, LocalPath(repository));
  }
  return CountNewBytes(store.get(), [&](const std::string& name) -> Result<std::uint64_t> {
    ASSIGN_OR_RETURN(const FsStat stat, PosixFs()->Stat(fmt::format("{}/{}", directory, name)));
    return stat.inode;
  });
}

NewBytes::~NewBytes() { Stop(); }

void NewBytes::Start() {
  for (int i = 0; i < kThreads; ++i) threads_.emplace_back([this] { Run(); });
}

void NewBytes::Stop() {
  {
    MutexLock hold(&mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  threads_.clear();
}

std::optional<std::uint64_t> NewBytes::Of(const std::string& id) const {
  MutexLock hold(&mu_);
  const auto known = known_.find(id);
  return known == known_.end() ? std::nullopt : std::optional(known->second);
}

void NewBytes::Want(std::span<const Wanted> wanted) {
  std::map<std::string, std::uint64_t> awaited;  // looks that had ended, by repository
  MutexLock hold(&mu_);
  const Clock::Duration now = options_.clock->Now();
  if (known_.size() > kMostKnown) known_.clear();
  if (places_.size() > kMostPlaces) {
    std::erase_if(places_, [](const auto& one) { return !one.second.asked && !one.second.busy; });
  }
  for (const Wanted& one : wanted) {
    if (stopping_ || known_.contains(one.id)) continue;
    Place& place = places_[one.repository];
    if (!place.asked && !place.busy) place.since = now;
    place.asked = true;  // once more where one looks now: it may have come since that began
    // Not for what is put off for long, and not for storage that has let others wait already.
    if (place.due < now + options_.moment && now - place.since < options_.moment) {
      awaited.try_emplace(one.repository, place.looks);
    }
  }
  changed_.NotifyAll();
  const auto pending = [&]() REQUIRES(mu_) {
    return !stopping_ && std::ranges::any_of(awaited, [&](const auto& one) REQUIRES(mu_) {
      return places_[one.first].looks == one.second;
    });
  };
  for (Clock::Duration left = options_.moment; pending() && left > Clock::Duration::zero();
       left = now + options_.moment - options_.clock->Now()) {
    changed_.WaitFor(&mu_, left);
  }
  for (const Wanted& one : wanted) {
    if (known_.contains(one.id)) continue;
    Place& place = places_[one.repository];
    if (place.asked || place.busy) place.left[one.id] = one.trial;
  }
}

NewBytes::Place* NewBytes::Next(std::string* repository, std::optional<Clock::Duration>* when) {
  const Clock::Duration now = options_.clock->Now();
  Place* found = nullptr;
  for (auto& [name, place] : places_) {
    if (!place.asked || place.busy) continue;
    if (place.due > now) {
      *when = when->has_value() ? std::min(**when, place.due) : place.due;
    } else if (found == nullptr || place.since < found->since) {
      found = &place;
      *repository = name;
    }
  }
  return found;
}

void NewBytes::Run() {
  for (;;) {
    std::string repository;
    Place* place = nullptr;
    {
      MutexLock hold(&mu_);
      if (stopping_) return;
      std::optional<Clock::Duration> when;
      place = Next(&repository, &when);
      if (place == nullptr && when) {
        changed_.WaitFor(&mu_, *when - options_.clock->Now());
        continue;
      }
      if (place == nullptr) {
        changed_.Wait(&mu_);
        continue;
      }
      place->asked = false;
      place->busy = true;  // so that it stays where it is
      place->since = options_.clock->Now();
    }
    Look(repository, place);
  }
}

void NewBytes::Look(const std::string& repository, Place* place) {
  const Clock::Duration began = options_.clock->Now();
  const auto found = options_.read(repository);
  std::map<std::string, std::string> told;  // by trial: one that was found
  {
    MutexLock hold(&mu_);
    const Clock::Duration now = options_.clock->Now();
    // What was known stays: what an earlier one had and was removed since is not paid for again.
    if (found.ok()) known_.insert(found->begin(), found->end());
    std::erase_if(place->left, [&](const auto& one) REQUIRES(mu_) {
      if (!known_.contains(one.first)) return false;
      told[one.second] = one.first;
      return true;
    });
    // Otherwise it has no such checkpoint. Who asked since this look began, and may still wait for
    // its end, has another one.
    if (!place->asked) place->left.clear();
    place->busy = false;
    place->due = now + std::max<Clock::Duration>(options_.pause, 10 * (now - began));
    ++place->looks;
    changed_.NotifyAll();
  }
  if (!options_.on_found) return;
  for (const auto& [trial, id] : told) options_.on_found(trial, id);
}

}  // namespace cairn::master
