#include "checkpoint/generation.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/log.h"
#include "base/status_macros.h"
#include "checkpoint/choose_restore.h"
#include "checkpoint/names.h"
#include "checkpoint/shelves.h"

// Opening a repository for writing, the committer's side. Each step's reason:
//
//  1. Lock.      Only courtesy: two writers started by mistake on one machine get a clear message
//  at
//                once. Nothing below relies on it (NFS, takeover, object stores).
//  2. Fence N.   From here on every older writer finds itself overtaken when it re-reads the
//  fences,
//                which it does after each commit and before it acknowledges.
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
//  6. Shelves.   Copies for readers' sake (shelves.h); nothing depends on them.
//
// Names are retired (step 3, in the seal): an older writer may have been stopped in the middle of
// deleting a directory, after it had made sure that it was not overtaken. It goes on by name. Were
// the name in use again by then, it would delete files of a checkpoint that counts. Whatever it can
// still be deleting is listed, without a counting manifest, when the next generation opens.

namespace cairn {
namespace {

constexpr std::chrono::milliseconds kFirstPoll{1};
constexpr std::chrono::milliseconds kLastPoll{50};

std::string_view FileName(std::string_view path) {
  const auto slash = path.rfind('/');
  return slash == path.npos ? path : path.substr(slash + 1);
}

/// The numbers and uuids of a generation's start records, in order.
Result<std::vector<StartRecord>> ReadStarts(Store* store, std::uint64_t generation) {
  std::vector<StartRecord> starts;
  for (std::uint64_t number = 1;; ++number) {
    auto bytes = store->Get(names::Start(generation, number), kMaxRecordBytes);
    if (bytes.status().Is(Code::kNotFound)) return starts;
    if (!bytes.ok()) return bytes.status();
    ASSIGN_OR_RETURN(StartRecord start, Decode<StartRecord>(*bytes));
    starts.push_back(std::move(start));
  }
}

/// Something in a checkpoint's directory.
bool IsCheckpointName(std::string_view name) {
  return name.starts_with("checkpoint_") || name.starts_with("increment_");
}

std::string JoinNames(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

bool IsParticipantDirectory(std::string_view name) {
  for (const std::string_view kind : {"rank_", "trainer_", "ps_"}) {
    if (name.starts_with(kind)) return true;
  }
  return false;
}

Status DeleteTree(Store* store, const std::string& prefix, const std::set<std::string>& kept) {
  ASSIGN_OR_RETURN(const Listing listing, store->List(prefix));
  for (const ObjectInfo& object : listing.objects) {
    if (kept.contains(object.name)) continue;
    const Status deleted = store->Delete(object.name);
    if (!deleted.ok() && !deleted.Is(Code::kNotFound)) return deleted;
  }
  for (const std::string& sub : listing.prefixes) RETURN_IF_ERROR(DeleteTree(store, sub, kept));
  return Status::Ok();
}

/// The newest generation of which there is a checkpoint of this job.
std::uint64_t NewestCommit(const RepositoryView& view) {
  std::uint64_t newest = 0;
  for (const Checkpoint& checkpoint : view.checkpoints) {
    if (!checkpoint.foreign) newest = std::max(newest, checkpoint.manifest->CommitGeneration());
  }
  return newest;
}

Status DeleteIfThere(Store* store, const std::string& name) {
  Status deleted = store->Delete(name);
  return deleted.Is(Code::kNotFound) ? Status::Ok() : deleted;
}

/// Whose attempt a directory without a manifest is: ours to sweep only with a mark of the engine.
Result<bool> IsOldAttempt(Store* store, RepositoryReader* reader, const std::string& directory,
                          std::uint64_t generation, const std::set<std::string>& announced) {
  if (announced.contains(directory)) return true;
  auto marker = store->Get(names::Path(directory, names::kMarker), kMaxRecordBytes);
  if (marker.ok()) {
    auto record = Decode<MarkerRecord>(*marker);
    // The marker is not synced: after a crash it may be empty or torn, and is still ours.
    return !record.ok() || record->generation < generation;
  }
  if (!marker.status().Is(Code::kNotFound)) return marker.status();
  ASSIGN_OR_RETURN(const std::vector<NoteRecord> notes, reader->ReadNotes(directory));
  return std::any_of(
      notes.begin(), notes.end(),
      // With a uuid: read whole, and so ours; a removal's, or one that came after it.
      [](const NoteRecord& note) { return !note.uuid.empty(); });
}

/// True when there is no object at or below `prefix`, only empty directories.
Result<bool> HoldsNothing(Store* store, const std::string& prefix) {
  ASSIGN_OR_RETURN(const Listing listing, store->List(prefix));
  if (!listing.objects.empty()) return false;
  for (const std::string& sub : listing.prefixes) {
    ASSIGN_OR_RETURN(const bool nothing, HoldsNothing(store, sub));
    if (!nothing) return false;
  }
  return true;
}

/// Directories that attempts of older generations announced.
Result<std::set<std::string>> AnnouncedDirectories(Store* store, std::uint64_t generation) {
  std::set<std::string> announced;
  ASSIGN_OR_RETURN(const Listing listing, store->List(std::string(names::kGenerations)));
  for (const std::string& prefix : listing.prefixes) {
    if (prefix == names::kJoins || prefix == names::kShelves) continue;
    const std::string own = names::AttemptsOf(generation);
    if (own.starts_with(prefix + "/")) continue;
    ASSIGN_OR_RETURN(const Listing attempts, store->List(names::Path(prefix, "attempts")));
    for (const ObjectInfo& object : attempts.objects) {
      auto bytes = store->Get(object.name, kMaxRecordBytes);
      if (!bytes.ok()) continue;
      auto attempt = Decode<AttemptRecord>(*bytes);
      if (attempt.ok() && !attempt->directory.empty()) announced.insert(attempt->directory);
    }
  }
  return announced;
}

}  // namespace

Status DeleteCheckpointDirectory(Store* store, const std::string& directory,
                                 const std::vector<std::string>& kept_list) {
  const std::set<std::string> kept(kept_list.begin(), kept_list.end());
  RETURN_IF_ERROR(DeleteIfThere(store, names::Path(directory, names::kManifest)));
  ASSIGN_OR_RETURN(const Listing listing, store->List(directory));
  for (const std::string& sub : listing.prefixes) {
    const std::string_view name = FileName(sub);
    if (name == names::kModel || name == names::kTables || name == names::kFiles ||
        name == "parts" || IsParticipantDirectory(name)) {
      RETURN_IF_ERROR(DeleteTree(store, sub, kept));
    }
  }
  RETURN_IF_ERROR(DeleteIfThere(store, names::Path(directory, names::kAbandoned)));
  const bool data_stays = std::any_of(kept.begin(), kept.end(), [&](const std::string& path) {
    return path.starts_with(directory + "/");
  });
  if (!data_stays) {
    // The marks go last: a sweep that is cut short finds the rest next time.
    RETURN_IF_ERROR(DeleteTree(store, names::Path(directory, "notes"), kept));
    RETURN_IF_ERROR(DeleteIfThere(store, names::Path(directory, names::kMarker)));
  }
  return store->PruneDirectories(directory);
}

Result<std::unique_ptr<Generation>> Generation::Open(Environment env, GenerationOptions options) {
  auto generation = std::unique_ptr<Generation>(new Generation(std::move(env), std::move(options)));
  generation->uuid_ = generation->env_.ids->NewUuid();
  if (generation->options_.self == 0) {
    RETURN_IF_ERROR(generation->OpenCommitter());
  } else {
    RETURN_IF_ERROR(generation->OpenParticipant());
  }
  return generation;
}

Status Generation::OpenCommitter() {
  Store* store = env_.store.get();
  env_.Step("open: lock");
  auto lock = store->TryLock(std::string(names::kLock));
  if (lock.ok()) {
    lock_ = std::move(lock).value();
  } else if (!lock.status().Is(Code::kUnimplemented) && !options_.takeover) {
    if (!lock.status().Is(Code::kUnavailable)) return lock.status();
    std::string owner;
    RepositoryReader reader(store, env_.rules);
    if (auto newest = reader.NewestFence(); newest.ok() && *newest > 0) {
      auto bytes = store->Get(names::Fence(*newest), kMaxRecordBytes);
      if (bytes.ok()) {
        if (auto fence = Decode<FenceRecord>(*bytes); fence.ok()) {
          owner = " (host " + fence->host + ", pid " + std::to_string(fence->pid) + ")";
        }
      }
    }
    return UnavailableError("\"" + store->Describe() + "\" is being written by a living process" +
                            owner + "; stop it, or open with takeover to fence it out");
  }
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
    RepositoryRecord fresh;
    fresh.job = options_.job.empty() ? env_.ids->NewUuid() : options_.job;
    env_.Step("open: cairn.json");
    const Status published = PublishRecord(env_, std::string(names::kRepository), Encode(fresh));
    if (!published.ok() && !published.Is(Code::kAlreadyExists)) return published;
    record = reader.ReadRecord();  // another opener may have been first
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
    }
    FenceRecord fence;
    fence.generation = newest + 1;
    fence.uuid = uuid_;
    fence.job = job_;
    fence.run = options_.run;
    fence.host = env_.host;
    fence.pid = env_.pid;
    env_.Step("open: fence");
    const Status published = PublishRecord(env_, names::Fence(newest + 1), Encode(fence));
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
    RetireNames(view);
  }
  SealRecord seal;
  seal.generation = number_;
  seal.uuid = uuid_;
  for (const Checkpoint& checkpoint : sealed_) seal.commits.push_back(checkpoint.manifest->id);
  seal.retired.assign(retired_.begin(), retired_.end());
  env_.Step("open: seal");
  Status sealed = PublishRecord(env_, names::Seal(number_), Encode(seal));
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
    const Status closed = PublishForTheLiving(
        env_, names::Seal(older), Encode(ClosedRecord{.generation = older, .uuid = uuid_}),
        AfterCrash::kWholeOrNothing);
    // It has sealed meanwhile, or another opener closed it.
    if (!closed.ok() && !closed.Is(Code::kAlreadyExists)) return closed;
  }
  return any;
}

void Generation::RetireNames(const RepositoryView& view) {
  if (!env_.rules.retire_names) return;
  if (view.newest_seal) {
    retired_.insert(view.newest_seal->retired.begin(), view.newest_seal->retired.end());
  }
  for (const Checkpoint& checkpoint : view.checkpoints) {
    if (!checkpoint.counts && !checkpoint.foreign) retired_.insert(checkpoint.directory);
  }
  retired_.insert(view.unfinished.begin(), view.unfinished.end());
}

Status Generation::CheckFence() const {
  // Fences are numbered without gaps and never deleted, so the next number tells.
  RETURN_IF_ERROR(env_.store->Refresh(std::string(names::kGenerations)));
  const auto next = env_.store->Stat(names::Fence(number_ + 1));
  if (next.status().Is(Code::kNotFound)) return Status::Ok();
  if (!next.ok()) return next.status();
  std::string who;
  if (auto bytes = env_.store->Get(names::Fence(number_ + 1), kMaxRecordBytes); bytes.ok()) {
    if (auto fence = Decode<FenceRecord>(*bytes); fence.ok()) {
      who = " (host " + fence->host + ", pid " + std::to_string(fence->pid) + ")";
    }
  }
  return AbortedError("fenced: generation " + std::to_string(number_) + " of \"" +
                      env_.store->Describe() + "\" was overtaken by generation " +
                      std::to_string(number_ + 1) + who);
}

Status Generation::CheckPlace() const {
  ASSIGN_OR_RETURN(const auto other, PlaceTaker(number_));
  if (!other) return Status::Ok();
  return AbortedError(*other + " takes part in \"" + env_.store->Describe() + "\" as " +
                      options_.participants[options_.self] +
                      ": two living processes have this rank; give each process "
                      "a rank of its own, and end the one that is too many");
}

Result<std::optional<std::string>> Generation::PlaceTaker(std::uint64_t generation) const {
  const std::string& self = options_.participants[options_.self];
  ASSIGN_OR_RETURN(const auto starts, ReadStarts(env_.store.get(), generation));
  if (starts.empty()) return std::optional<std::string>();
  const auto named = starts.back().participants.find(self);
  if (named == starts.back().participants.end() || named->second == uuid_) {
    return std::optional<std::string>();
  }
  const auto bytes = env_.store->Get(names::Join(self, named->second), kMaxRecordBytes);
  if (bytes.ok()) {
    if (const auto join = Decode<JoinRecord>(*bytes); join.ok()) {
      return std::optional("another process (host " + join->host + ", pid " +
                           std::to_string(join->pid) + ")");
    }
  }
  return std::optional<std::string>("another process");
}

Result<std::map<std::string, std::string, std::less<>>> Generation::ReadJoins(
    std::uint64_t generation) {
  Store* store = env_.store.get();
  RETURN_IF_ERROR(store->Refresh(std::string(names::kJoins)));
  ASSIGN_OR_RETURN(const Listing listing, store->List(std::string(names::kJoins)));
  std::map<std::string, std::string, std::less<>> joins;
  for (const ObjectInfo& object : listing.objects) {
    auto bytes = store->Get(object.name, kMaxRecordBytes);
    if (!bytes.ok()) {
      if (bytes.status().Is(Code::kNotFound)) continue;
      return bytes.status();
    }
    auto join = Decode<JoinRecord>(*bytes);
    // Only who has seen that fence is known to live: what the dead left behind names an older one.
    if (join.ok() && join->generation == generation) joins[join->participant] = join->uuid;
  }
  return joins;
}

std::vector<std::string> Generation::Missing(
    const std::map<std::string, std::string, std::less<>>& joins) {
  std::vector<std::string> missing;
  for (std::size_t i = 1; i < options_.participants.size(); ++i) {
    if (!joins.contains(options_.participants[i])) missing.push_back(options_.participants[i]);
  }
  return missing;
}

Status Generation::StartParticipants() {
  Store* store = env_.store.get();
  const Clock::Duration deadline = env_.clock->Now() + options_.join_deadline;
  auto poll = std::chrono::nanoseconds(kFirstPoll);
  for (;;) {
    ASSIGN_OR_RETURN(const auto joins, ReadJoins(number_));
    const std::vector<std::string> missing = Missing(joins);
    if (missing.empty()) {
      start_.participants.clear();
      start_.participants[options_.participants[0]] = uuid_;
      for (std::size_t i = 1; i < options_.participants.size(); ++i) {
        start_.participants[options_.participants[i]] = joins.at(options_.participants[i]);
      }
      break;
    }
    RETURN_IF_ERROR(CheckFence());
    if (env_.clock->Now() >= deadline) {
      return DeadlineExceededError(
          "waited for " + JoinNames(missing) + " to open \"" + store->Describe() +
          "\"; are they running, and is the directory shared by all ranks? Where it is not, open "
          "each with private_parts (Python: private=True) and use `cairn checkpoint merge`");
    }
    if (options_.cancelled && options_.cancelled()) {
      return CancelledError("the wait for the other participants was cancelled");
    }
    env_.clock->Sleep(poll);
    poll = std::min<std::chrono::nanoseconds>(poll * 2, kLastPoll);
  }
  ASSIGN_OR_RETURN(const Checkpoint* restore, ChooseRestore(store, sealed_));
  start_.restore = restore == nullptr ? "" : restore->manifest->id;
  start_.generation = number_;
  start_.uuid = uuid_;
  start_number_ = 1;
  env_.Step("open: start");
  return PublishForTheLiving(env_, names::Start(number_, 1), Encode(start_));
}

Status Generation::AdmitRestarted(const std::string& restore_id) {
  ASSIGN_OR_RETURN(const auto joins, ReadJoins(number_));
  StartRecord next = start_;
  next.restore = restore_id;
  for (const auto& [participant, uuid] : joins) {
    const auto it = next.participants.find(participant);
    if (it != next.participants.end() && participant != options_.participants[0]) {
      it->second = uuid;
    }
  }
  if (next.participants == start_.participants) return Status::Ok();
  RETURN_IF_ERROR(
      PublishForTheLiving(env_, names::Start(number_, start_number_ + 1), Encode(next)));
  start_ = std::move(next);
  ++start_number_;
  return Status::Ok();
}

Status Generation::Join(std::uint64_t newest) {
  const std::string& self = options_.participants[options_.self];
  if (joined_.has_value()) {
    env_.store->Delete(names::Join(self, uuid_)).IgnoreError("a join left behind is harmless");
    uuid_ = env_.ids->NewUuid();
  }
  joined_ = newest;
  JoinRecord join;
  join.participant = self;
  join.uuid = uuid_;
  join.generation = newest;
  join.host = env_.host;
  join.pid = env_.pid;
  env_.Step("open: join");
  return PublishForTheLiving(env_, names::Join(self, uuid_), Encode(join));
}

Status Generation::OpenParticipant() {
  Store* store = env_.store.get();
  const std::string& self = options_.participants[options_.self];
  // An earlier join under our name is of a process that we replace.
  ASSIGN_OR_RETURN(const Listing listing, store->List(std::string(names::kJoins)));
  for (const ObjectInfo& object : listing.objects) {
    auto bytes = store->Get(object.name, kMaxRecordBytes);
    if (!bytes.ok()) continue;
    auto join = Decode<JoinRecord>(*bytes);
    if (join.ok() && join->participant == self) {
      store->Delete(object.name).IgnoreError("a join left behind is harmless");
    }
  }
  RepositoryReader reader(store, env_.rules);
  const Clock::Duration deadline = env_.clock->Now() + options_.join_deadline;
  auto poll = std::chrono::nanoseconds(kFirstPoll);
  for (;;) {
    ASSIGN_OR_RETURN(const std::uint64_t newest, reader.NewestFence());
    if (joined_ != newest) RETURN_IF_ERROR(Join(newest));
    if (newest > 0) {
      ASSIGN_OR_RETURN(const std::vector<StartRecord> starts, ReadStarts(store, newest));
      for (const StartRecord& start : starts) {
        const auto it = start.participants.find(self);
        if (it == start.participants.end() || it->second != uuid_) continue;
        if (start.participants.size() != options_.participants.size()) {
          return InvalidArgumentError(
              self + " was opened as one of " + std::to_string(options_.participants.size()) +
              ", " + options_.participants[0] + " as one of " +
              std::to_string(start.participants.size()) + ": give all of them the same number");
        }
        start_ = start;
        readmitted_ = &start != &starts.front();
        number_ = newest;
        ASSIGN_OR_RETURN(const RepositoryRecord record, reader.ReadRecord());
        if (!options_.job.empty() && record.job != options_.job) {
          return OwnedByAnotherJobError("\"" + store->Describe() + "\" belongs to the job \"" +
                                        record.job + "\", not to \"" + options_.job + "\"");
        }
        job_ = record.job;
        return Status::Ok();
      }
    }
    if (env_.clock->Now() >= deadline) {
      // Whether that process still lives is not known: it may be of the run before.
      const auto taker = PlaceTaker(newest);
      const std::string other =
          taker.ok() && *taker
              ? "; " + **taker + " took part as " + self +
                    ": if it is still running, two living processes have this rank, and each needs "
                    "one of its own"
              : "";
      // It waits for all: who else is missing may be the one that failed.
      const auto joins = ReadJoins(newest);
      const std::vector<std::string> missing =
          joins.ok() ? Missing(*joins) : std::vector<std::string>();
      return DeadlineExceededError(
          self + " waited for " + options_.participants[0] + " to start \"" + store->Describe() +
          "\"" + (missing.empty() ? "" : ", which may be waiting for " + JoinNames(missing)) +
          "; is it running, and is the directory shared by all ranks? Where it is not, open each "
          "with private_parts (Python: private=True) and use `cairn checkpoint merge`" +
          other);
    }
    if (options_.cancelled && options_.cancelled()) {
      return CancelledError("the wait for the other participants was cancelled");
    }
    env_.clock->Sleep(poll);
    poll = std::min<std::chrono::nanoseconds>(poll * 2, kLastPoll);
  }
}

Result<std::optional<MarkerRecord>> Generation::ToBeSpared(const std::string& directory) {
  std::optional<MarkerRecord> spared;
  if (!options_.spare) return spared;
  const auto bytes = env_.store->Get(names::Path(directory, names::kMarker), kMaxRecordBytes);
  if (bytes.status().Is(Code::kNotFound)) return spared;
  if (!bytes.ok()) return bytes.status();
  const auto marker = Decode<MarkerRecord>(*bytes);
  if (marker.ok() && options_.spare(*marker)) spared = *marker;
  return spared;
}

Status Generation::SweepSpared() {
  options_.spare = nullptr;
  if (std::exchange(spared_, {}).empty()) return Status::Ok();
  return Sweep();
}

Status Generation::Sweep() {
  Store* store = env_.store.get();
  env_.Step("open: sweep");
  RepositoryReader reader(store, env_.rules);
  ASSIGN_OR_RETURN(const RepositoryView view, reader.Read(ReadFor::kOwning));
  // Uploads that are listed before the fence is read again were begun by older generations: ours
  // has begun none, and a newer one had not opened.
  ASSIGN_OR_RETURN(const std::vector<std::string> uploads, store->ListUnfinished(""));
  RETURN_IF_ERROR(CheckFence());  // an overtaken opener must not judge by its old seal
  for (const std::string& name : uploads) {
    if (!IsCheckpointName(name)) continue;
    ASSIGN_OR_RETURN(const auto spared, ToBeSpared(name.substr(0, name.find('/'))));
    if (spared) continue;
    RETURN_IF_ERROR(store->AbandonUnfinished(name).WithContext("sweep unfinished uploads"));
  }
  ASSIGN_OR_RETURN(const std::set<std::string> announced, AnnouncedDirectories(store, number_));
  std::vector<std::string> kept;
  for (const Checkpoint& checkpoint : view.checkpoints) {
    if (!checkpoint.counts && !checkpoint.foreign) continue;
    for (const ManifestFile& file : checkpoint.manifest->files) {
      if (!file.ref.empty()) kept.push_back(file.ref);
    }
  }
  // What an overtaken writer claims after our seal is not retired: swept, its name would be free
  // while that writer still works in it. The next opening takes it.
  auto retired = [this](const std::string& directory) {
    return retired_.contains(directory) || !env_.rules.retire_names;
  };
  for (const Checkpoint& checkpoint : view.checkpoints) {
    if (checkpoint.foreign || !checkpoint.removed || !retired(checkpoint.directory)) continue;
    if (!names::IsCheckpointDirectory(checkpoint.directory)) continue;
    RETURN_IF_ERROR(DeleteCheckpointDirectory(store, checkpoint.directory, kept));
  }
  for (const std::string& directory : view.unfinished) {
    if (!retired(directory)) continue;
    if (!names::IsCheckpointDirectory(directory)) continue;  // a copy that somebody is making
    ASSIGN_OR_RETURN(const bool ours, IsOldAttempt(store, &reader, directory, number_, announced));
    if (ours) {
      ASSIGN_OR_RETURN(const auto spared, ToBeSpared(directory));
      if (spared) {
        spared_.push_back({.directory = directory, .marker = *spared});
      } else {
        RETURN_IF_ERROR(DeleteCheckpointDirectory(store, directory, kept));
      }
      continue;
    }
    // A save or a removal that ended between the directory and its marker.
    ASSIGN_OR_RETURN(const bool empty, HoldsNothing(store, directory));
    if (empty) RETURN_IF_ERROR(store->PruneDirectories(directory));
  }
  // Pools of older generations: their owner may still be writing into them, so never reuse, unlink.
  ASSIGN_OR_RETURN(const Listing pools, store->List(std::string(names::kPool)));
  for (const std::string& pool : pools.prefixes) {
    const std::string_view name = FileName(pool);
    const bool ours = name.find_first_not_of("0123456789") == name.npos;
    if (!ours || name == std::to_string(number_)) continue;
    RETURN_IF_ERROR(DeleteTree(store, pool, {}));
  }
  RETURN_IF_ERROR(store->PruneDirectories(std::string(names::kPool)));
  // Only readers' time depends on it.
  if (TidyEvery(store) > 0) env_.Step("open: shelves");
  TidyShelves(store, env_.ids).IgnoreError("listings fetch each manifest");
  return Status::Ok();
}

}  // namespace cairn
