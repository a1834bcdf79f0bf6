#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "checkpoint/choose_restore.h"
#include "checkpoint/generation.h"
#include "checkpoint/names.h"
#include "checkpoint/parallel.h"

// The meeting of several participants (docs/protocol.md, "Opening for writing"): joins, start
// records, and those who were restarted alone.
//
// Start records name the fence of who wrote them, by its uuid. A directory may have been deleted
// and made again: then a committer of the first one, of the same number, is not ours.

namespace cairn {
namespace {

constexpr std::chrono::milliseconds kFirstPoll{1};
constexpr std::chrono::milliseconds kLastPoll{50};

/// The numbers and uuids of a generation's start records, in order. One that the machine took with
/// it when it went down, which is written for the living, is none: who wrote it is gone.
Result<std::vector<StartRecord>> ReadStarts(Store* store, std::uint64_t generation) {
  std::vector<StartRecord> starts;
  for (std::uint64_t number = 1;; ++number) {
    auto bytes = store->Get(names::Start(generation, number), kMaxRecordBytes);
    if (bytes.status().Is(Code::kNotFound)) return starts;
    if (!bytes.ok()) return bytes.status();
    auto start = Decode<StartRecord>(*bytes);
    if (start.status().Is(Code::kCorruption)) return starts;
    RETURN_IF_ERROR(start.status());
    starts.push_back(*std::move(start));
  }
}

std::string JoinNames(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace

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
  ASSIGN_OR_RETURN(auto starts, ReadStarts(env_.store.get(), generation));
  std::erase_if(starts, [this](const StartRecord& start) {
    return number_ != 0 && start.uuid != fence_uuid();
  });
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
  std::vector<Result<std::string>> read(listing.objects.size(), NotFoundError("not looked for"));
  ForEachRequest(*store, read.size(), [&](std::size_t i) {
    read[i] = store->Get(listing.objects[i].name, kMaxRecordBytes);
  });
  std::map<std::string, std::string, std::less<>> joins;
  for (const Result<std::string>& bytes : read) {
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
    RETURN_IF_ERROR(CheckOvertaken());
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
  RETURN_IF_ERROR(CheckOwn());  // they may have come for another one of our number
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
  ForEachRequest(*store, listing.objects.size(), [&](std::size_t i) {
    const std::string& name = listing.objects[i].name;
    const auto bytes = store->Get(name, kMaxRecordBytes);
    if (!bytes.ok()) return;
    const auto join = Decode<JoinRecord>(*bytes);
    if (join.ok() && join->participant == self) {
      store->Delete(name).IgnoreError("a join left behind is harmless");
    }
  });
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
        ASSIGN_OR_RETURN(const bool of_that_fence, IsOfFence(newest, start.uuid));
        if (!of_that_fence) continue;
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

}  // namespace cairn
