#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include <cairn/status.h>

#include "journal/journal.h"
#include "trial/event.h"

namespace cairn {

/// Where an engine's events are: the record of everything it knows. A journal (tuner) or a catalog
/// (master).
///
/// One engine owns a log. Append is called by one thread at a time, with seqs that go on from the
/// last; Replay before the first Append.
class EventLog {
 public:
  using Visitor = std::function<Status(const Event& event)>;
  virtual ~EventLog() = default;
  /// Durable when it returns OK, all of them or none. After an error they may be there or not: the
  /// same events again are no contradiction and are kept once. Aborted is final: another engine has
  /// taken over.
  virtual Status Append(std::span<const Event> events) = 0;
  /// The events with seq ≥ from, in order, each once. An error of the visitor ends it.
  virtual Status Replay(std::uint64_t from, const Visitor& visit) = 0;
};

/// An event log in a journal, a record for each event.
class JournalEventLog final : public EventLog {
 public:
  static Result<std::unique_ptr<JournalEventLog>> Open(JournalOptions options);

  Status Append(std::span<const Event> events) override;
  Status Replay(std::uint64_t from, const Visitor& visit) override;

 private:
  explicit JournalEventLog(std::unique_ptr<Journal> journal) : journal_(std::move(journal)) {}

  const std::unique_ptr<Journal> journal_;
  std::uint64_t taken_ = 0;  // the journal has it, durable or in doubt
};

}  // namespace cairn
