#include "checkpoint/attempt.h"

#include <algorithm>
#include <map>

#include "base/status_macros.h"
#include "checkpoint/names.h"
#include "checkpoint/poll.h"
#include "checkpoint/repository.h"

namespace cairn {
namespace {

constexpr std::chrono::seconds kGrace{10};

std::string Listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

/// The record under `name`, or nullopt while it is not there.
template <typename Record>
Result<std::optional<Record>> ReadIfThere(Store* store, const std::string& name) {
  auto bytes = store->Get(name, kMaxRecordBytes);
  if (bytes.status().Is(Code::kNotFound)) return std::optional<Record>();
  if (!bytes.ok()) return bytes.status();
  auto record = Decode<Record>(*bytes);
  if (!record.ok()) return record.status().WithContext(name);
  return std::optional<Record>(*std::move(record));
}

}  // namespace

Status Attempt::Announce(const AttemptRecord& record) {
  env_.Step("save: announce");
  AttemptRecord announced = record;
  announced.fence = generation_->fence_uuid();
  return PublishForTheLiving(env_, names::Attempt(generation_->number(), record.number),
                             Encode(announced));
}

Result<std::optional<AttemptRecord>> Attempt::Announced(std::uint64_t number) const {
  RETURN_IF_ERROR(env_.store->Refresh(names::AttemptsOf(generation_->number())));
  return ReadIfThere<AttemptRecord>(env_.store.get(),
                                    names::Attempt(generation_->number(), number));
}

Result<AttemptRecord> Attempt::WaitAnnounced(std::uint64_t number, std::int64_t step) {
  env_.Step("save: wait for the announcement");
  const std::string name = names::Attempt(generation_->number(), number);
  std::optional<AttemptRecord> record;
  ASSIGN_OR_RETURN(const bool there, PollUntil(env_.clock, deadline_, [&]() -> Result<bool> {
                     if (meanwhile_) meanwhile_();
                     ASSIGN_OR_RETURN(record, Announced(number));
                     if (record) return true;
                     RETURN_IF_ERROR(generation_->CheckOvertaken());
                     return false;
                   }));
  if (!there) {
    return DeadlineExceededError(participants_[self_] + " waited for " + participants_[0] +
                                 " to begin the save of step " + std::to_string(step));
  }
  if (!record->fence.empty() && record->fence != generation_->fence_uuid()) {
    RETURN_IF_ERROR(generation_->CheckFence());
    return AbortedError("fenced: " + name + " was announced by another writer");
  }
  if (record->step != step && !record->skipped) {
    return FailedPreconditionError(participants_[self_] + " saves step " + std::to_string(step) +
                                   " while " + participants_[0] + " saves step " +
                                   std::to_string(record->step) +
                                   ": all ranks must save the same steps in the same order");
  }
  return *std::move(record);
}

Status Attempt::PublishPart(const AttemptRecord& attempt, PartRecord part) {
  env_.Step("save: part");
  part.attempt = attempt.attempt;
  part.participant = participants_[self_];
  part.uuid = generation_->uuid();
  return PublishForTheLiving(env_, names::Part(attempt.directory, part.participant), Encode(part));
}

Status Attempt::CheckAbandoned(const AttemptRecord& attempt) {
  auto record = ReadIfThere<AbandonedRecord>(env_.store.get(),
                                             names::Path(attempt.directory, names::kAbandoned));
  if (!record.ok()) return record.status();
  if (!*record || (*record)->attempt != attempt.attempt) return Status::Ok();
  return GivenUp(attempt, (*record)->missing);
}

Status Attempt::GivenUp(const AttemptRecord& attempt, const std::vector<std::string>& missing) {
  return UnavailableError("the save of step " + std::to_string(attempt.step) +
                          " was given up: nothing came from " + Listed(missing));
}

Result<std::vector<PartRecord>> Attempt::WaitParts(const AttemptRecord& attempt,
                                                   const std::string& restore_id,
                                                   std::vector<std::string>* missing) {
  env_.Step("save: wait for parts");
  std::map<std::string, PartRecord> parts;
  auto expected = [&](const std::string& participant, const PartRecord& part) {
    const auto admitted = generation_->admitted().find(participant);
    return !env_.rules.check_part_identity ||
           (part.attempt == attempt.attempt && admitted != generation_->admitted().end() &&
            part.uuid == admitted->second);
  };
  auto look = [&]() -> Result<bool> {
    if (meanwhile_) meanwhile_();
    missing->clear();
    RETURN_IF_ERROR(env_.store->Refresh(names::Path(attempt.directory, "parts")));
    for (const std::string& participant : participants_) {
      // Judged again each time: whoever sent it may have been replaced since.
      const auto known = parts.find(participant);
      if (known != parts.end() && expected(participant, known->second)) continue;
      ASSIGN_OR_RETURN(
          auto part,
          ReadIfThere<PartRecord>(env_.store.get(), names::Part(attempt.directory, participant)));
      if (part && expected(participant, *part)) {
        parts[participant] = *std::move(part);
      } else {
        missing->push_back(participant);
      }
    }
    if (missing->empty()) return true;
    RETURN_IF_ERROR(CheckAbandoned(attempt));
    RETURN_IF_ERROR(generation_->AdmitRestarted(restore_id));
    RETURN_IF_ERROR(generation_->CheckOvertaken());
    return false;
  };
  ASSIGN_OR_RETURN(const bool all, PollUntil(env_.clock, deadline_, look));
  if (!all) {
    return DeadlineExceededError("the save of step " + std::to_string(attempt.step) +
                                 " was given up: nothing came from " + Listed(*missing));
  }
  std::vector<PartRecord> ordered;
  for (const std::string& participant : participants_) {
    ordered.push_back(std::move(parts[participant]));
  }
  return ordered;
}

Result<bool> Attempt::HasNext(const AttemptRecord& attempt) {
  skipped_ = std::max(skipped_, attempt.number);
  for (;; ++skipped_) {
    ASSIGN_OR_RETURN(const auto next, Announced(skipped_ + 1));
    if (!next) return false;
    if (!next->skipped) return true;
    // A save that is skipped is announced beside the one under way.
  }
}

Status Attempt::PassedOver(const AttemptRecord& attempt) const {
  return DeadlineExceededError(participants_[0] + " went on to another save and did not say what " +
                               "became of step " + std::to_string(attempt.step) +
                               "; whether it counts is unknown");
}

Result<Manifest> Attempt::WaitManifest(const AttemptRecord& attempt) {
  env_.Step("save: wait for the manifest");
  std::optional<Manifest> manifest;
  const std::string name = names::Path(attempt.directory, names::kManifest);
  // The committer gives up at its own deadline and says so; ours is later, so that its word wins.
  const Clock::Duration patience = deadline_ + std::min<Clock::Duration>(patience_, kGrace);
  bool passed = false;  // the committer is at the next save
  ASSIGN_OR_RETURN(
      const bool there, PollUntil(env_.clock, patience, [&]() -> Result<bool> {
        if (meanwhile_) meanwhile_();
        RETURN_IF_ERROR(env_.store->Refresh(attempt.directory));
        auto bytes = env_.store->Get(name, kMaxManifestBytes);
        if (bytes.ok()) {
          ASSIGN_OR_RETURN(manifest, DecodeManifest(*bytes));
          if (manifest->attempt != attempt.attempt) {
            return AbortedError(attempt.directory + " was committed by another writer");
          }
          return true;
        }
        if (!bytes.status().Is(Code::kNotFound)) return bytes.status();
        RETURN_IF_ERROR(CheckAbandoned(attempt));
        RETURN_IF_ERROR(generation_->CheckOvertaken());
        // One that could not even say that it gives up, on a full disk, says so by going on. Seen
        // before the manifest is looked for a last time.
        if (passed) return PassedOver(attempt);
        ASSIGN_OR_RETURN(passed, HasNext(attempt));
        return false;
      }));
  if (!there) {
    return DeadlineExceededError(participants_[self_] + " waited for " + participants_[0] +
                                 " to commit step " + std::to_string(attempt.step) +
                                 "; whether it will is unknown");
  }
  return *std::move(manifest);
}

Status Attempt::Abandon(const AttemptRecord& attempt, const std::vector<std::string>& missing) {
  env_.Step("save: abandon");
  AbandonedRecord record;
  record.attempt = attempt.attempt;
  record.missing = missing;
  Status published =
      PublishForTheLiving(env_, names::Path(attempt.directory, names::kAbandoned), Encode(record));
  return published.Is(Code::kAlreadyExists) ? Status::Ok() : published;  // somebody said so already
}

}  // namespace cairn
