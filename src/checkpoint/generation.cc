#include "checkpoint/generation.h"

#include <unistd.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/living_process.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "checkpoint/names.h"
#include "checkpoint/reserve.h"

// Opening a repository for writing, the committer's side (docs/protocol.md). Each step's reason:
//
//  1. Lock.      Only courtesy: of two writers started by mistake on one machine the second is told
//                at once. Nothing below relies on it (NFS, takeover, object stores).
//  2. Fence N.   From here on every older writer finds itself overtaken when it reads the fences
//                again, which it does after each commit and before it acknowledges.
//  3. List, then seal. Listing after the fence sees every manifest whose writer could still
//                acknowledge it (its re-read came before our fence, so its manifest was there). The
//                seal fixes which older commits count; a late commit of an older writer is not
//                named and never counts.
//                Before it seals it closes the older openings that have not sealed: a record in the
//                place of their seal. So what newest seal it judged by cannot change any more. Were
//                one of them to seal in between, it might name what our seal leaves out, and a pin
//                that is acknowledged in that moment would be lost.
//  4. Joins and the start record, with several participants: who takes part, and what all restore.
//                A join answers a fence: one that a dead process left behind names an older fence,
//                and is no sign of life.
//  5. Sweep.     Directories of older generations without a manifest can no longer become
//                checkpoints that count, so their bytes are garbage. A directory with a whole
//                manifest that does not count is left alone unless its removal had begun: it may be
//                a copy that somebody put back. On object stores the uploads that they left
//                unfinished go too, without a look at any clock.
//  6. Shelves.   Copies for readers' sake (shelves.h); nothing depends on them. And room for the
//                records of a removal, should the disk be full one day (reserve.h).
//
// Names are retired (step 3, in the seal): an older writer may have been stopped in the middle of
// deleting a directory, after it had made sure that it was not overtaken. It goes on by name. Were
// the name in use again by then, it would delete files of a checkpoint that counts. Whatever it can
// still be deleting is listed, without a counting manifest, when the next generation opens.
// The seal also says which of them are ours, by a mark of the engine that was there. The sweep
// takes the mark away, but its writer may live, and go on writing into the directory: the next
// sweep knows by that word whose those files are.

namespace cairn {
namespace {

/// For who is about to begin anew in a directory without records: perhaps they were lost, or left
/// behind when somebody copied the checkpoints. They are another job's then, and are never chosen.
void WarnOfOthersCheckpoints(Store* store, const std::string& job) {
  const auto root = store->List("");
  if (!root.ok()) return;
  for (auto it = root->prefixes.rbegin(); it != root->prefixes.rend(); ++it) {
    if (!names::IsCheckpointDirectory(*it)) continue;
    const auto manifest = RepositoryReader(store).ReadManifest(*it);
    if (!manifest.ok() || manifest->job == job) continue;
    LogWarning("\"" + store->Describe() + "\" has no records of its own, and " + *it + " (step " +
               std::to_string(manifest->step) + ") is of the job \"" + manifest->job +
               "\": this is a new job, which does not go on from it. If it should, delete " +
               std::string(names::kRepository) + " and " + std::string(names::kGenerations) +
               " there and open it with that job's name");
    return;
  }
}

/// The newest generation of which there is a checkpoint of this job.
std::uint64_t NewestCommit(const RepositoryView& view) {
  std::uint64_t newest = 0;
  for (const Checkpoint& checkpoint : view.checkpoints) {
    if (!checkpoint.foreign) newest = std::max(newest, checkpoint.manifest->CommitGeneration());
  }
  return newest;
}

}  // namespace

Result<std::unique_ptr<Generation>> Generation::Open(Environment env, GenerationOptions options) {
  auto generation = std::unique_ptr<Generation>(new Generation(std::move(env), std::move(options)));
  generation->uuid_ = generation->env_.ids->NewUuid();
  generation->opener_ = getpid();
  const Status opened =
      generation->options_.self == 0 ? generation->OpenCommitter() : generation->OpenParticipant();
  if (opened.ok()) return generation;
  generation->Release();  // its fence may be there
  return opened;
}

Status Generation::OpenCommitter() {
  Store* store = env_.store.get();
  if (store->traits().directories &&
      store->Stat(std::string(names::kRepository)).status().Is(Code::kNotFound)) {
    // Before the lock makes a directory in it.
    RETURN_IF_ERROR(RepositoryReader(store, env_.rules).RefuseCheckpoint());
  }
  env_.Step("open: lock");
  auto lock = store->TryLock(std::string(names::kLock));
  if (lock.ok()) {
    lock_ = std::move(lock).value();
  } else if (!lock.status().Is(Code::kUnimplemented) && !options_.takeover) {
    return lock.status().Is(Code::kUnavailable) ? HeldByAnother() : lock.status();
  }
  lockless_ = lock.status().Is(Code::kUnimplemented);
  RETURN_IF_ERROR(AdoptJob());
  if (env_.rules.fence_before_listing) {
    RETURN_IF_ERROR(PublishFence(0));
    RETURN_IF_ERROR(PublishSeal());
  } else {
    RepositoryReader reader(store, env_.rules);
    ASSIGN_OR_RETURN(const RepositoryView early, reader.Read());
    for (const Checkpoint& checkpoint : early.checkpoints) {
      if (checkpoint.counts) sealed_.push_back(checkpoint);
    }
    RETURN_IF_ERROR(PublishFence(0));
    RETURN_IF_ERROR(PublishSeal());
  }
  if (options_.participants.size() > 1) RETURN_IF_ERROR(StartParticipants());
  return Sweep();
}

Status Generation::AdoptJob() {
  Store* store = env_.store.get();
  RepositoryReader reader(store, env_.rules);
  auto record = reader.ReadRecord();
  if (!record.ok() && record.status().Is(Code::kNotFound)) {
    RETURN_IF_ERROR(reader.RefuseCheckpoint());
    RepositoryRecord fresh;
    fresh.job = options_.job.empty() ? env_.ids->NewUuid() : options_.job;
    env_.Step("open: cairn.json");
    const Status published = PublishRecord(env_, std::string(names::kRepository), Encode(fresh));
    if (!published.ok() && !published.Is(Code::kAlreadyExists)) return published;
    if (published.ok() && options_.job.empty()) WarnOfOthersCheckpoints(store, fresh.job);
    record = reader.ReadRecord();  // another opener may have been first
    if (published.Is(Code::kAlreadyExists) && record.status().Is(Code::kNotFound)) {
      return FailedPreconditionError("\"" + store->Describe() +
                                     "\": cairn.json is no file (a directory, a pipe, a link that "
                                     "leads nowhere?); move it away, or use another directory");
    }
  }
  if (!record.ok()) return record.status();
  if (!options_.job.empty() && record->job != options_.job) {
    return OwnedByAnotherJobError("\"" + store->Describe() + "\" belongs to the job \"" +
                                  record->job + "\", not to \"" + options_.job +
                                  "\"; use another directory, or open it without naming a job");
  }
  job_ = record->job;
  // A damaged or lost record was rebuilt from the fences: write it again.
  auto bytes = store->Get(std::string(names::kRepository), kMaxRecordBytes);
  if (bytes.status().Is(Code::kNotFound) ||
      (bytes.ok() && Decode<RepositoryRecord>(*bytes).status().Is(Code::kCorruption))) {
    RETURN_IF_ERROR(store->Put(std::string(names::kRepository), Encode(*record)));
  }
  return Status::Ok();
}

Status Generation::PublishToOpen(const std::function<Status()>& publish) const {
  if (env_.frees_room) return PublishWithReserve(env_, publish);
  Status published = publish();
  if (!published.Is(Code::kResourceExhausted)) return published;
  // Rather than a want of descriptors, or of memory.
  constexpr std::uint64_t kFull = 1u << 20;
  const auto free = env_.store->FreeBytes();
  if (!free.ok() || !*free || **free > kFull) return published;
  return Status(published.code(),
                std::string(published.message()) +
                    "; free some room there (`cairn checkpoint rm` works on a full disk) and open "
                    "it again");
}

Status Generation::PublishFence(std::uint64_t above) {
  Store* store = env_.store.get();
  RepositoryReader reader(store, env_.rules);
  for (;;) {
    ASSIGN_OR_RETURN(const std::uint64_t listed, reader.NewestFence());
    const std::uint64_t newest = std::max(listed, above);
    if (newest > 0) {
      auto bytes = store->Get(names::Fence(newest), kMaxRecordBytes);
      // One that was lost says nothing, as one that is damaged.
      if (!bytes.ok() && !bytes.status().Is(Code::kNotFound)) return bytes.status();
      const auto fence = bytes.ok() ? Decode<FenceRecord>(*bytes) : bytes.status();
      if (fence.ok() && fence->run > options_.run) {
        return FailedPreconditionError(
            "\"" + store->Describe() + "\" was opened by run " + std::to_string(fence->run) +
            "; run " + std::to_string(options_.run) + " was replaced and may not write");
      }
      // Nobody comes in between: only one gets the next number.
      if (env_.tool && lockless_ && !options_.takeover) RETURN_IF_ERROR(CheckEnded(newest));
    }
    FenceRecord fence;
    fence.generation = newest + 1;
    fence.uuid = uuid_;
    fence.job = job_;
    fence.run = options_.run;
    fence.host = env_.host;
    fence.pid = env_.pid;
    // An environment may be made up, by a test.
    if (env_.pid == getpid()) fence.process = ProcessIdentity(env_.pid);
    env_.Step("open: fence");
    const Status published =
        PublishToOpen([&] { return PublishRecord(env_, names::Fence(newest + 1), Encode(fence)); });
    if (published.ok()) {
      number_ = newest + 1;
      return published;
    }
    // Another opener took the number: go above it.
    if (!published.Is(Code::kAlreadyExists)) return published;
  }
}

Status Generation::PublishSeal() {
  RepositoryReader reader(env_.store.get(), env_.rules);
  if (env_.rules.fence_before_listing) {
    ASSIGN_OR_RETURN(RepositoryView view, ReadUnlessOvertaken(&reader));
    if (const std::uint64_t lost = NewestCommit(view); lost >= number_) {
      // Fence and seal of a generation that saved are lost. Its number must not be used again:
      // which commit is later would not be known.
      LogWarning("\"" + env_.store->Describe() + "\": the records of generation " +
                 std::to_string(lost) + " are missing; its checkpoints count all the same");
      RETURN_IF_ERROR(PublishFence(lost));
      ASSIGN_OR_RETURN(view, ReadUnlessOvertaken(&reader));
    }
    ASSIGN_OR_RETURN(const bool closed, CloseOlder(view));
    if (closed) {
      ASSIGN_OR_RETURN(view, ReadUnlessOvertaken(&reader));
    }
    for (const std::string& name : view.damaged_records) {
      LogWarning("\"" + env_.store->Describe() + "\": " + name + " is damaged or missing");
    }
    for (const DamagedCheckpoint& damaged : view.damaged) {
      damaged_.insert(damaged.directory);
      LogWarning(damaged.directory +
                 " is damaged and is passed over: " + std::string(damaged.status.message()));
    }
    for (const Checkpoint& checkpoint : view.checkpoints) {
      if (!checkpoint.counts) continue;
      sealed_.push_back(checkpoint);
      // Its writer may have been killed between the manifest's link and the sync of its name. What
      // a seal names, and what is restored, must not vanish with the next power loss.
      if (view.newest_seal &&
          checkpoint.manifest->CommitGeneration() < view.newest_seal->generation) {
        continue;
      }
      RETURN_IF_ERROR(env_.store->SyncDirectory(checkpoint.directory, "sealed manifest"));
    }
    RETURN_IF_ERROR(RetireNames(&reader, view));
  }
  SealRecord seal;
  seal.generation = number_;
  seal.uuid = uuid_;
  for (const Checkpoint& checkpoint : sealed_) seal.commits.push_back(checkpoint.manifest->id);
  seal.retired.assign(retired_.begin(), retired_.end());
  seal.ours.assign(ours_.begin(), ours_.end());
  env_.Step("open: seal");
  Status sealed =
      PublishToOpen([&] { return PublishRecord(env_, names::Seal(number_), Encode(seal)); });
  return sealed.Is(Code::kAlreadyExists) ? Overtaken("a newer generation") : sealed;
}

Result<RepositoryView> Generation::ReadUnlessOvertaken(RepositoryReader* reader) {
  ASSIGN_OR_RETURN(RepositoryView view, reader->Read(ReadFor::kOwning));
  if (view.newest_seal && view.newest_seal->generation > number_) {
    return Overtaken("generation " + std::to_string(view.newest_seal->generation));
  }
  return view;
}

Status Generation::Overtaken(const std::string& by) const {
  return AbortedError(by + " overtook generation " + std::to_string(number_) + " of \"" +
                      env_.store->Describe() + "\" while it was opening");
}

Result<bool> Generation::CloseOlder(const RepositoryView& view) {
  if (!env_.rules.close_older) return false;
  bool any = false;
  for (const std::uint64_t older : view.unsealed) {
    if (older >= number_) continue;
    any = true;
    env_.Step("open: close");
    const Status closed = PublishToOpen([&] {
      return PublishForTheLiving(env_, names::Seal(older),
                                 Encode(ClosedRecord{.generation = older, .uuid = uuid_}),
                                 AfterCrash::kWholeOrNothing);
    });
    // It has sealed meanwhile, or another opener closed it.
    if (!closed.ok() && !closed.Is(Code::kAlreadyExists)) return closed;
  }
  return any;
}

Status Generation::RetireNames(RepositoryReader* reader, const RepositoryView& view) {
  if (!env_.rules.retire_names) return Status::Ok();
  if (view.newest_seal) {
    retired_.insert(view.newest_seal->retired.begin(), view.newest_seal->retired.end());
    ours_.insert(view.newest_seal->ours.begin(), view.newest_seal->ours.end());
  }
  for (const Checkpoint& checkpoint : view.checkpoints) {
    if (!checkpoint.counts && !checkpoint.foreign) retired_.insert(checkpoint.directory);
  }
  for (const std::string& directory : view.unfinished) {
    retired_.insert(directory);
    if (ours_.contains(directory) || !names::IsCheckpointDirectory(directory)) continue;
    ASSIGN_OR_RETURN(const auto attempt, OldAttempt(reader, directory, /*old=*/nullptr));
    if (attempt) ours_.insert(directory);
  }
  return Status::Ok();
}

}  // namespace cairn
