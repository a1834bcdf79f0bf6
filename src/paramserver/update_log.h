#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <cairn/ps.h>
#include <cairn/status.h>

#include "journal/journal.h"
#include "paramserver/log_record.h"
#include "storage/store.h"

namespace cairn::ps {

/// Differs after each start of the machine; "" where it cannot be told.
std::string BootId();

/// The update log of one server: every change since some checkpoint, in the order in which it was
/// taken. Belongs to one process at a time. Append from any thread; the rest when nobody appends.
class UpdateLog {
 public:
  /// `prefix`: the log's directory in the store. Made when it is not there. `boot`: the start of
  /// the machine that it is written under.
  static Result<std::unique_ptr<UpdateLog>> Open(std::shared_ptr<Store> store, std::string prefix,
                                                 LogLevel level, std::string boot = BootId());

  /// Hands out the records from number `from` on, then lets appends follow. FailedPrecondition when
  /// some of them are gone, or may be: the log was not synced, and its machine was started anew.
  Status Replay(std::uint64_t from, const std::function<Status(const LogRecord&)>& visit);

  /// OK: the record is as durable as the level says. After an error it is in doubt: open the log
  /// anew.
  Status Append(const LogRecord& record);
  /// Records below `index` are no longer needed.
  Status Trim(std::uint64_t index);
  /// The number that the next record gets.
  std::uint64_t next() const { return journal_->last_index() + 1; }

 private:
  UpdateLog(std::shared_ptr<Store> store, std::unique_ptr<Journal> journal, LogLevel level,
            std::string boot)
      : store_(std::move(store)),
        journal_(std::move(journal)),
        level_(level),
        boot_(std::move(boot)) {}
  /// Where and how what follows is written. Its number.
  Result<std::uint64_t> AppendPlace(Durability durability);
  Durability durability() const {
    return level_ == LogLevel::kSynced ? Durability::kSynced : Durability::kWritten;
  }

  const std::shared_ptr<Store> store_;  // shared: as OpenStore gives it; outlives the journal
  const std::unique_ptr<Journal> journal_;
  const LogLevel level_;
  const std::string boot_;
  // Of Trim: the newest place that is durable, and the one behind it that may not be yet; 0: none.
  std::uint64_t place_ = 0;
  std::uint64_t next_place_ = 0;
};

}  // namespace cairn::ps
