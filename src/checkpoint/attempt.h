#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <cairn/status.h>

#include "checkpoint/environment.h"
#include "checkpoint/generation.h"
#include "format/manifest.h"
#include "format/records.h"

namespace cairn {

/// The steps of a save that several participants make together (docs/protocol.md, "Saving"). The
/// committer announces, waits for the parts and commits; the others follow the announcements.
class Attempt {
 public:
  /// `meanwhile` is called now and then while it waits for others; may be empty.
  Attempt(const Environment& env, Generation* generation, std::vector<std::string> participants,
          std::size_t self, std::chrono::nanoseconds deadline,
          std::function<void()> meanwhile = nullptr)
      : env_(env),
        generation_(generation),
        participants_(std::move(participants)),
        self_(self),
        patience_(deadline),
        deadline_(env.clock->Now() + deadline),
        meanwhile_(std::move(meanwhile)) {}

  /// Committer: publishes attempts/<n>.json.
  Status Announce(const AttemptRecord& record);
  /// What was announced under that number, if anything yet; one look. May be called beside others.
  Result<std::optional<AttemptRecord>> Announced(std::uint64_t number) const;
  /// The others: waits for attempts/<n>.json. Aborted when overtaken meanwhile, DeadlineExceeded
  /// when the committer never announced it, FailedPrecondition when its step is another one.
  Result<AttemptRecord> WaitAnnounced(std::uint64_t number, std::int64_t step);

  Status PublishPart(const AttemptRecord& attempt, PartRecord part);
  /// Committer: all parts, in the order of the participants. DeadlineExceeded naming the missing,
  /// Unavailable when one of them gave up; `missing` says who has not delivered. Participants that
  /// were restarted meanwhile are admitted again, restoring `restore_id`.
  Result<std::vector<PartRecord>> WaitParts(const AttemptRecord& attempt,
                                            const std::string& restore_id,
                                            std::vector<std::string>* missing);
  /// The others: the committed manifest. DeadlineExceeded: the outcome is unknown, also when the
  /// committer went on without a word.
  Result<Manifest> WaitManifest(const AttemptRecord& attempt);
  /// Unavailable, with who was missing, when somebody gave the attempt up.
  Status CheckAbandoned(const AttemptRecord& attempt);
  /// What CheckAbandoned says of a record that names these.
  static Status GivenUp(const AttemptRecord& attempt, const std::vector<std::string>& missing);
  /// Gives the attempt up: everybody who waits for it is told who was missing.
  Status Abandon(const AttemptRecord& attempt, const std::vector<std::string>& missing);

 private:
  /// Whether the committer, which makes one save after the other, is at a later one.
  Result<bool> HasNext(const AttemptRecord& attempt);
  Status PassedOver(const AttemptRecord& attempt) const;

  const Environment& env_;
  Generation* const generation_;
  const std::vector<std::string> participants_;
  const std::size_t self_;
  const Clock::Duration patience_;
  const Clock::Duration deadline_;
  const std::function<void()> meanwhile_;
  std::uint64_t skipped_ = 0;  // HasNext's: up to there all later ones were skipped
};

}  // namespace cairn
