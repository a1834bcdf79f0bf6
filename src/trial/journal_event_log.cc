#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "trial/event_log.h"
#include "trial/records_codec.h"

namespace cairn {

Result<std::unique_ptr<JournalEventLog>> JournalEventLog::Open(JournalOptions options) {
  ASSIGN_OR_RETURN(auto journal, Journal::Open(std::move(options)));
  return std::unique_ptr<JournalEventLog>(new JournalEventLog(std::move(journal)));
}

Status JournalEventLog::Append(std::span<const Event> events) {
  std::vector<std::string> records;
  for (const Event& event : events) {
    if (event.seq > taken_) records.push_back(EncodeEvent(event));
  }
  if (records.empty()) return journal_->Sync();  // a repetition: the journal still has them
  const std::vector<std::string_view> views(records.begin(), records.end());
  const auto appended = journal_->Append(views, Durability::kSynced);
  if (!appended.status().Is(Code::kInvalidArgument)) taken_ = events.back().seq;
  if (appended.ok()) {
    MutexLock hold(&mu_);
    position_ = {*appended, events.back().seq, events.back().time};
  }
  return appended.status();
}

void JournalEventLog::Passed(std::uint64_t at, const Event& event) {
  taken_ = event.seq;
  MutexLock hold(&mu_);
  position_ = {at, event.seq, event.time};
}

EventPosition JournalEventLog::position() const {
  MutexLock hold(&mu_);
  return position_;
}

Status JournalEventLog::ReplayAfter(const EventPosition& position, const Visitor& visit) {
  if (position.record == 0) return Replay(1, visit);
  const auto absent = [&] {
    return FailedPreconditionError(
        fmt::format("event log: event {} is not in record {}", position.seq, position.record));
  };
  bool found = false;
  RETURN_IF_ERROR(Visit(position.record, 0, [&](std::uint64_t at, const Event& event) -> Status {
    if (!found) {
      if (EventPosition{at, event.seq, event.time} != position) return absent();
      found = true;
      Passed(at, event);
      return Status::Ok();
    }
    Passed(at, event);
    return visit(event);
  }));
  return found ? Status::Ok() : absent();
}

Status JournalEventLog::Visit(std::uint64_t index, std::uint64_t seq, const Stored& visit) {
  std::uint64_t expected = seq == 0 ? 0 : seq + 1;
  return journal_->Replay(index, [&](std::uint64_t at, std::string_view record) -> Status {
    ASSIGN_OR_RETURN(const Event event, DecodeEvent(record));
    if (expected != 0 && event.seq < expected) return Status::Ok();  // written twice
    if (expected != 0 && event.seq > expected) {
      return CorruptionError(
          fmt::format("event log: event {} follows where {} belongs", event.seq, expected));
    }
    expected = event.seq + 1;
    return visit(at, event);
  });
}

/// What the newest summary says; `index` is the last record that it stands for.
Result<TrialRecords> JournalEventLog::Fold(std::uint64_t* index) {
  ASSIGN_OR_RETURN(const Journal::Summary summary, journal_->ReadSummary());
  *index = summary.index;
  if (summary.index == 0) return TrialRecords();
  auto records = DecodeRecords(summary.payload);
  if (!records.ok()) return records.status().WithContext("event log: summary");
  return records;
}

Result<TrialRecords> JournalEventLog::Restore() {
  std::uint64_t index = 0;
  ASSIGN_OR_RETURN(TrialRecords records, Fold(&index));
  taken_ = records.last_seq();
  restored_ = std::pair(index, records.last_seq());
  return records;
}

Status JournalEventLog::Replay(std::uint64_t from, const Visitor& visit) {
  if (!restored_) RETURN_IF_ERROR(Restore().status());
  const auto [index, seq] = *restored_;
  if (from <= seq) {
    return FailedPreconditionError(
        fmt::format("event log: events up to {} were compacted; {} is asked for", seq, from));
  }
  taken_ = seq;
  return Visit(index + 1, seq, [&, from](std::uint64_t at, const Event& event) {
    Passed(at, event);
    return event.seq < from ? Status::Ok() : visit(event);
  });
}

Status JournalEventLog::Compact() {
  const std::uint64_t durable = journal_->durable_index();
  std::uint64_t index = 0;
  ASSIGN_OR_RETURN(TrialRecords records, Fold(&index));
  if (durable <= index) return Status::Ok();
  RETURN_IF_ERROR(Visit(index + 1, records.last_seq(), [&](std::uint64_t at, const Event& event) {
    return at > durable ? Status::Ok() : records.Apply(event);
  }));
  const std::string bytes = EncodeRecords(records);
  // What cannot be read again must not take the place of anything.
  ASSIGN_OR_RETURN(const TrialRecords again, DecodeRecords(bytes));
  if (EncodeRecords(again) != bytes) {
    return InternalError("event log: a summary reads as something else; the events stay");
  }
  return journal_->Summarize(durable, bytes);
}

}  // namespace cairn
