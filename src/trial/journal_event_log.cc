#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "trial/event_log.h"

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
  return appended.status();
}

Status JournalEventLog::Replay(std::uint64_t from, const Visitor& visit) {
  std::uint64_t expected = 0;
  return journal_->Replay(1, [&](std::uint64_t, std::string_view record) -> Status {
    ASSIGN_OR_RETURN(const Event event, DecodeEvent(record));
    if (expected != 0 && event.seq < expected) return Status::Ok();  // written twice
    if (expected != 0 && event.seq > expected) {
      return CorruptionError(
          fmt::format("event log: event {} follows where {} belongs", event.seq, expected));
    }
    expected = event.seq + 1;
    taken_ = event.seq;
    return event.seq < from ? Status::Ok() : visit(event);
  });
}

}  // namespace cairn
