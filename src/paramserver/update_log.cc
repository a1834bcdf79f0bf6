#include "paramserver/update_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <string_view>
#include <utility>

#include "base/status_macros.h"

namespace cairn::ps {
namespace {

constexpr std::uint64_t kSegmentBytes = std::uint64_t{64} << 20;
// At the level written nobody waits for the disk unless so much is on its way to it: what was not
// synced is kept in memory too.
constexpr std::uint64_t kMaxUnsynced = std::uint64_t{64} << 20;

constexpr char kRemedy[] = "; start once with --recovery exact: all go back to the last checkpoint";

}  // namespace

std::string BootId() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id;
}

Result<std::unique_ptr<UpdateLog>> UpdateLog::Open(std::shared_ptr<Store> store, std::string prefix,
                                                   LogLevel level, std::string boot) {
  JournalOptions options;
  options.store = store.get();
  options.prefix = std::move(prefix);
  options.segment_bytes = kSegmentBytes;
  options.max_unsynced_bytes = kMaxUnsynced;
  options.sync_beside = level == LogLevel::kWritten;
  ASSIGN_OR_RETURN(auto journal, Journal::Open(std::move(options)));
  return std::unique_ptr<UpdateLog>(
      new UpdateLog(std::move(store), std::move(journal), level, std::move(boot)));
}

Status UpdateLog::Replay(std::uint64_t from, const std::function<Status(const LogRecord&)>& visit) {
  std::string opened = boot_ + " synced";  // where the records so far were written
  std::uint64_t expected = from;
  if (next() < from) {
    return FailedPreconditionError(
        fmt::format("the update log ends before record {}, and the checkpoint is of record {}{}",
                    next(), from, kRemedy));
  }
  // From the first: which machine wrote it stands at the beginning of each opening.
  RETURN_IF_ERROR(journal_->Replay(1, [&](std::uint64_t index, std::string_view bytes) -> Status {
    ASSIGN_OR_RETURN(const LogRecord record,
                     DecodeLogRecord(std::as_bytes(std::span(bytes.data(), bytes.size()))));
    if (record.kind == Kind::kStatus) opened = AsText(record.body);
    if (index < from) return Status::Ok();
    if (index != expected) {
      return FailedPreconditionError(fmt::format("records {} … {} of the update log were removed{}",
                                                 expected, index - 1, kRemedy));
    }
    ++expected;
    return visit(record);
  }));
  if (expected != next()) {
    return FailedPreconditionError(
        fmt::format("records {} … {} of the update log are gone{}", expected, next() - 1, kRemedy));
  }
  if (opened != boot_ + " synced" && opened != boot_ + " tailed" && opened != boot_ + " written") {
    if (!opened.ends_with(" synced")) {
      return FailedPreconditionError(
          std::string("the update log was written (not synced) before this machine was started: "
                      "its end may be missing") +
          kRemedy + ", and use --log-level synced where machines may go down");
    }
  }
  // Durable at any level: a log whose end the machine took with it has to be known by it.
  ASSIGN_OR_RETURN(place_, AppendPlace(Durability::kSynced));
  return Status::Ok();
}

Result<std::uint64_t> UpdateLog::AppendPlace(Durability durability) {
  // Not "written", as a program said that knows of no tails: it shall not open this one.
  const std::string now = boot_ + (level_ == LogLevel::kSynced ? " synced" : " tailed");
  return journal_->Append(
      Encode({.kind = Kind::kStatus, .body = std::as_bytes(std::span(now.data(), now.size()))}),
      durability);
}

Status UpdateLog::Trim(std::uint64_t index) {
  // One that is durable stays. Nobody waits for the disk for that: the next time it will be.
  if (next_place_ == 0) {
    ASSIGN_OR_RETURN(next_place_, AppendPlace(durability()));
  }
  if (journal_->durable_index() >= next_place_) place_ = std::exchange(next_place_, 0);
  return journal_->DropBefore(std::min(index, place_));
}

Status UpdateLog::Append(const LogRecord& record) {
  const auto head = EncodeHead(record);
  const std::array<std::string_view, 2> pieces{std::string_view(head.data(), head.size()),
                                               AsText(record.body)};
  return journal_->AppendJoined(pieces, durability()).status();
}

}  // namespace cairn::ps
