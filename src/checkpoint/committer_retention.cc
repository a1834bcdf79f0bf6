#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/status_macros.h"
#include "checkpoint/chain.h"
#include "checkpoint/committer.h"
#include "checkpoint/names.h"
#include "checkpoint/removal.h"
#include "checkpoint/retention.h"
#include "checkpoint/shelves.h"

// The removing half of the committer. Increments go before what they build on, and one after the
// other: each removal is durable before the next begins (removal.cc). So a crash anywhere in
// between leaves restore points that are whole, and never an increment without its base.
//
// One that cannot be removed (a file that the system keeps, a block that cannot be read) keeps what
// it builds on, and nothing else: the disk must not fill up because of it. It is tried again in
// every pass, and after many failures seldom, because each attempt leaves a note behind.

namespace cairn {
namespace {

constexpr int kPatience = 16;  // failures of one removal, before it is tried less often

}  // namespace

std::vector<std::string> Committer::Referenced(std::string_view except) const {
  std::vector<std::string> paths;
  for (const auto* list : {&checkpoints_, &uncertain_}) {
    for (const Checkpoint& checkpoint : *list) {
      if (checkpoint.manifest->id == except) continue;
      for (const ManifestFile& file : checkpoint.manifest->files) {
        if (!file.ref.empty()) paths.push_back(file.ref);
      }
    }
  }
  return paths;
}

Status Committer::Remove(const Checkpoint& checkpoint, bool by_score, bool* removed) {
  RemovalOptions removal;
  removal.by_score = by_score;
  removal.kept = Referenced(checkpoint.manifest->id);
  const std::uint64_t limit = std::min(options_.pool_bytes, last_bytes_);
  const std::uint64_t pooled = pooled_bytes();
  if (limit > pooled) {
    removal.pool = names::Path(names::kPool, std::to_string(generation_->number()));
    removal.pool_bytes = limit - pooled;
    removal.pool_min_file = options_.recycle_from_bytes;
  }
  auto outcome = RemoveCheckpoint(env_, *generation_, checkpoint, removal);
  ForgetWhatWasGivenUp();
  ASSIGN_OR_RETURN(Removed result, std::move(outcome));
  *removed = result.removed;
  std::move(result.pooled.begin(), result.pooled.end(), std::back_inserter(pool_));
  if (result.removed) {
    const std::string prefix = checkpoint.directory + "/";
    const bool referenced =
        std::any_of(removal.kept.begin(), removal.kept.end(),
                    [&](const std::string& path) { return path.starts_with(prefix); });
    if (referenced) {
      leftovers_.push_back(checkpoint);
    } else {
      directories_.erase(checkpoint.directory);
    }
  }
  return Status::Ok();
}

void Committer::ForgetWhatWasGivenUp() {
  // A removal on a full disk makes room for its records with what the pool has (reserve.h).
  std::erase_if(pool_, [this](const ObjectInfo& object) {
    return env_.store->Stat(object.name).status().Is(Code::kNotFound);
  });
}

std::vector<Checkpoint>::iterator Committer::FindById(std::string_view id) {
  const auto has_id = [&](const Checkpoint& one) { return one.manifest->id == id; };
  // Of an original and its copies the original is the last.
  const auto last = std::find_if(checkpoints_.rbegin(), checkpoints_.rend(), has_id);
  return last == checkpoints_.rend() ? checkpoints_.end() : std::prev(last.base());
}

bool Committer::Doubted(const Checkpoint& checkpoint) const {
  return checkpoint.reported_damaged || distrusted_.contains(checkpoint.manifest->id);
}

std::vector<RetentionItem> Committer::RetentionItems(const ChainIndex& index) const {
  std::vector<RetentionItem> items;
  for (const Checkpoint& checkpoint : checkpoints_) {
    if (!names::IsCheckpointDirectory(checkpoint.directory)) continue;  // a user's own copy
    RetentionItem item;
    item.id = checkpoint.manifest->id;
    item.step = checkpoint.manifest->step;
    item.full = checkpoint.manifest->kind == CheckpointKind::kFull;
    item.metrics = checkpoint.Metrics();
    item.pinned = checkpoint.pinned;
    const auto chain = index.Resolve(checkpoint);
    item.broken = !chain.ok() || Doubted(checkpoint);
    if (chain.ok()) {
      for (const Checkpoint* below : *chain) {
        item.needs.push_back(below->manifest->id);
        item.broken = item.broken || Doubted(*below);
      }
    }
    items.push_back(std::move(item));
  }
  return items;
}

Status Committer::RemoveSuperfluous(bool* again) {
  *again = false;
  ChainIndex index(checkpoints_);
  for (const Checkpoint& checkpoint : uncertain_) index.Add(checkpoint);
  // What the next increment would build on, and what a commit of unknown outcome builds on.
  std::set<std::string> kept = {parent_, base_};
  for (const Checkpoint& checkpoint : uncertain_) {
    const auto chain = index.Resolve(checkpoint);
    if (!chain.ok()) continue;
    for (const Checkpoint* below : *chain) kept.insert(below->manifest->id);
  }
  std::vector<RetentionItem> items = RetentionItems(index);
  std::vector<std::string> removals = ChooseRemovals(options_.retention, items, kept);
  const bool by_score = options_.retention.keep_best.has_value();
  if (by_score && !removals.empty()) {
    // Anybody may have scored any of them meanwhile.
    for (Checkpoint& checkpoint : checkpoints_) {
      RereadNotes(&checkpoint).IgnoreError("its removal, if it comes to that, reads them too");
    }
    items = RetentionItems(index);
    removals = ChooseRemovals(options_.retention, items, kept);
  }
  if (!env_.rules.increments_go_first) std::reverse(removals.begin(), removals.end());
  std::map<std::string, Stuck> stuck = std::exchange(stuck_, {});
  std::set<std::string> needed;  // by what cannot be removed
  const auto stays = [&](const std::string& id, const Stuck& why) {
    stuck_[id] = why;
    const auto item = std::find_if(items.begin(), items.end(),
                                   [&](const RetentionItem& one) { return one.id == id; });
    needed.insert(item->needs.begin(), item->needs.end());
  };
  for (const std::string& id : removals) {
    const auto before = stuck.find(id);
    if (before != stuck.end() && before->second.again_at > pass_) {
      stays(id, before->second);
      continue;
    }
    if (needed.contains(id)) continue;
    const auto it = FindById(id);
    bool removed = false;
    const Status status = Remove(*it, by_score, &removed).WithContext("remove " + it->directory);
    if (IsOfThisOneAlone(status)) {
      Stuck failed{.status = status, .failures = 1};
      if (before != stuck.end()) failed.failures += before->second.failures;
      const int doublings = std::clamp(failed.failures - kPatience, 0, 16);
      failed.again_at = pass_ + (std::uint64_t{1} << doublings);
      stays(id, failed);
      continue;
    }
    RETURN_IF_ERROR(status);
    if (!removed) {
      // Pinned meanwhile: what it builds on has to stay as well. Or somebody scored it.
      if (!RereadNotes(&*it).ok()) it->pinned = true;
      *again = true;
      return Status::Ok();
    }
    checkpoints_.erase(it);
  }
  return Status::Ok();
}

Status Committer::ApplyRetention() {
  if (!committing() || lost_) return Status::Ok();
  for (Checkpoint& checkpoint : checkpoints_) {
    // Unpinned since, by us or by a tool? When that cannot be read it stays for now.
    if (checkpoint.pinned) RereadNotes(&checkpoint).IgnoreError("it stays");
  }
  ++pass_;
  for (bool again = true; again;) {
    const Status status = RemoveSuperfluous(&again);
    if (status.Is(Code::kAborted)) return Status::Ok();  // the next save says that we are fenced
    RETURN_IF_ERROR(status);
  }
  // Files that the last reference to is gone.
  if (!leftovers_.empty()) {
    const std::vector<std::string> referenced = Referenced("");
    std::erase_if(leftovers_, [&](const Checkpoint& leftover) {
      const std::string prefix = leftover.directory + "/";
      for (const std::string& path : referenced) {
        if (path.starts_with(prefix)) return false;
      }
      if (!generation_->CheckFence().ok()) return false;
      const auto gone = DeleteCheckpointDirectory(env_.store.get(), Doom(leftover), referenced);
      if (!gone.ok()) return false;
      if (*gone) directories_.erase(leftover.directory);
      return true;
    });
  }
  const std::size_t tidy_every = TidyEvery(env_.store.get());
  if (tidy_every > 0 && ++since_shelves_ >= tidy_every) {
    since_shelves_ = 0;
    env_.Step("save: shelves");
    TidyShelves(env_.store.get(), env_.ids).IgnoreError("listings fetch each manifest");
  }
  return stuck_.empty() ? Status::Ok() : stuck_.begin()->second.status;
}

Status Committer::RereadNotes(Checkpoint* checkpoint) {
  RepositoryReader reader(env_.store.get(), env_.rules);
  ASSIGN_OR_RETURN(checkpoint->notes,
                   reader.ReadNotes(checkpoint->directory, checkpoint->manifest->id));
  checkpoint->pinned = false;
  for (const NoteRecord& note : checkpoint->notes) {
    if (note.kind == NoteKind::kPin) checkpoint->pinned = true;
    if (note.kind == NoteKind::kUnpin) checkpoint->pinned = false;
  }
  return Status::Ok();
}

Status Committer::Reload() {
  for (Checkpoint& checkpoint : checkpoints_) RETURN_IF_ERROR(RereadNotes(&checkpoint));
  return Status::Ok();
}

Status Committer::Delete(const std::string& id) {
  if (!committing()) {
    return FailedPreconditionError("only " + options_.participants[0] + " deletes checkpoints");
  }
  const auto it = FindById(id);
  if (it == checkpoints_.end()) return NotFoundError("there is no checkpoint with id " + id);
  RETURN_IF_ERROR(generation_->CheckOwn());  // also a note would be in another's directory
  const std::string directory = it->directory;
  std::vector<Checkpoint> all = checkpoints_;
  all.insert(all.end(), uncertain_.begin(), uncertain_.end());
  if (const std::string dependents = DependentsOf(id, all); !dependents.empty()) {
    return FailedPreconditionError(directory + " is what " + dependents +
                                   " build on; delete those first, or with it");
  }
  bool removed = false;
  RETURN_IF_ERROR(Remove(*it, false, &removed).WithContext("remove " + directory));
  if (!removed) return FailedPreconditionError(directory + " is pinned; unpin it first");
  checkpoints_.erase(it);
  return Status::Ok();
}

}  // namespace cairn
