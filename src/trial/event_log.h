#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include <cairn/status.h>

#include "base/thread_annotations.h"
#include "journal/journal.h"
#include "trial/event.h"
#include "trial/trial_record.h"

namespace cairn {

/// Where an engine's events are: the record of everything it knows. A journal (tuner) or a catalog
/// (master).
///
/// One engine owns a log. Append is called by one thread at a time, with seqs that go on from the
/// last; Restore and Replay before the first Append. Compact may be called beside Append, by one
/// thread at a time.
class EventLog {
 public:
  using Visitor = std::function<Status(const Event& event)>;
  virtual ~EventLog() = default;
  /// Durable when it returns OK, all of them or none. After an error they may be there or not: the
  /// same events again are no contradiction and are kept once. Aborted is final: another engine has
  /// taken over.
  virtual Status Append(std::span<const Event> events) = 0;
  /// The events with seq ≥ from, in order, each once. An error of the visitor ends it.
  /// FailedPrecondition when some of them were compacted: Restore gives what they came to.
  virtual Status Replay(std::uint64_t from, const Visitor& visit) = 0;
  /// What the oldest events came to, as far as the log keeps that instead of them: Replay goes on
  /// with the next one.
  virtual Result<TrialRecords> Restore() { return TrialRecords(); }
  /// Puts what all durable events came to in their place, so that opening takes as long as what is
  /// known is large, and not as what happened was long. Logs that are quick anyway do nothing.
  virtual Status Compact() { return Status::Ok(); }
  /// Whether Compact takes as long as what came since the last one, and not as all that is known.
  virtual bool CompactsInSteps() const { return false; }
};

/// An event and the record of a journal that holds it; zeros: before the first.
struct EventPosition {
  std::uint64_t record = 0;
  std::uint64_t seq = 0;
  std::int64_t time = 0;
  friend bool operator==(const EventPosition&, const EventPosition&) = default;
};

/// An event log in a journal, a record for each event; summaries hold EncodeRecords.
class JournalEventLog final : public EventLog {
 public:
  static Result<std::unique_ptr<JournalEventLog>> Open(JournalOptions options);

  /// The last event that became durable here or was replayed. May be called beside Append.
  EventPosition position() const;
  /// The events after a position, for an owner who keeps elsewhere what those before came to.
  /// FailedPrecondition, with nothing visited, when the journal does not have that event there.
  Status ReplayAfter(const EventPosition& position, const Visitor& visit);

  Status Append(std::span<const Event> events) override;
  Status Replay(std::uint64_t from, const Visitor& visit) override;
  Result<TrialRecords> Restore() override;
  Status Compact() override;

 private:
  using Stored = std::function<Status(std::uint64_t index, const Event& event)>;
  /// The events in records from `index` on, each once; `seq` is the last before them, 0: unknown.
  Status Visit(std::uint64_t index, std::uint64_t seq, const Stored& visit);
  Result<TrialRecords> Fold(std::uint64_t* index);
  void Passed(std::uint64_t at, const Event& event) EXCLUDES(mu_);

  explicit JournalEventLog(std::unique_ptr<Journal> journal) : journal_(std::move(journal)) {}

  const std::unique_ptr<Journal> journal_;
  std::uint64_t taken_ = 0;  // the journal has it, durable or in doubt
  // Up to which record, and which event, Restore gave what they came to.
  std::optional<std::pair<std::uint64_t, std::uint64_t>> restored_;
  mutable Mutex mu_;
  EventPosition position_ GUARDED_BY(mu_);
};

}  // namespace cairn
