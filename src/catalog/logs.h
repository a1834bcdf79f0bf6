#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <cairn/status.h>

#include "launch/launcher.h"

namespace cairn {

class CatalogDatabase;

/// A line that a trial wrote.
struct LogLine {
  std::uint64_t id = 0;  // 1, 2, 3 … in the trial
  std::uint64_t run = 0;
  std::int64_t time = 0;  // nanoseconds since 1970
  int rank = 0;           // -1: said by the launcher itself
  LineLevel level = LineLevel::kInfo;
  bool from_stderr = false;
  std::string text;  // without newline; UTF-8 (other bytes were replaced)

  friend bool operator==(const LogLine&, const LogLine&) = default;
};

/// Lines of one run, in order, with the place in their source up to which they were read.
struct LogBatch {
  std::string trial;
  std::uint64_t run = 0;
  /// The place before and after: LaunchLogPage offsets. A batch is taken only when `from` is where
  /// the last one of this run ended, so that nothing is doubled or left out after a crash.
  std::uint64_t from = 0;
  std::uint64_t next = 0;
  std::vector<LogLine> lines;  // `id` and `run` are set by Append
};

struct LogQuery {
  std::string trial;
  std::uint64_t from_id = 0;  // lines with a greater or the same id …
  std::uint64_t before_id = std::numeric_limits<std::uint64_t>::max();  // … and a smaller one
  std::optional<std::uint64_t> run;
  std::vector<int> ranks;         // empty: all
  std::vector<LineLevel> levels;  // empty: all
  std::optional<bool> from_stderr;
  std::string text;  // contained, letter case (ASCII) does not matter
  std::int64_t from_time = std::numeric_limits<std::int64_t>::min();
  std::int64_t to_time = std::numeric_limits<std::int64_t>::max();
  bool tail = false;  // the last `limit` lines that match, not the first
  std::uint64_t limit = 1000;
  /// Stretches of lines that are looked at for one page: a search for what is not there must end.
  std::size_t max_blocks = 256;
};

struct LogPage {
  std::vector<LogLine> lines;  // in the order of their ids, also for tail
  /// Where to go on: all lines of the trial below it have been looked at, or lie before the page.
  /// Following is asking again with from_id = next_id.
  std::uint64_t next_id = 1;
  /// The same backwards: all from it on have been looked at, or lie behind the page. The page
  /// before is the tail with before_id = previous_id.
  std::uint64_t previous_id = 1;
  /// A line that may match is there at next_id already; for tail, one below previous_id. Whatever
  /// the page holds: a search that found nothing in a long stretch goes on there.
  bool more = false;
  std::uint64_t first_id = 1;  // the oldest line that is kept
};

struct LogRetention {
  std::chrono::nanoseconds max_age{0};  // by the lines' time; 0: no bound
  std::uint64_t max_bytes = 0;  // of text of all trials together: the oldest go first; 0: no bound
  std::uint64_t max_trial_bytes = 0;  // of each trial; 0: no bound
};

/// The logs of trials. May be called from any thread.
class CatalogLogs {
 public:
  explicit CatalogLogs(CatalogDatabase* db) : db_(db) {}

  /// Durable when it returns OK, all of them or none. FailedPrecondition when a batch does not
  /// begin where the last one of its run ended: ask Position.
  Status Append(std::span<const LogBatch> batches);
  /// Where the next batch of that run begins; 0 when there is none yet.
  Result<std::uint64_t> Position(const std::string& trial, std::uint64_t run);
  Result<LogPage> Read(const LogQuery& query);
  /// Called after lines became durable, on the appending thread; must be quick. Set it before
  /// anybody appends.
  void OnAppend(std::function<void(const std::string& trial)> listener);

  struct Removed {
    std::uint64_t lines = 0;
    std::uint64_t bytes = 0;
  };
  /// Removes what the rules let go, in stretches of lines: of a stretch that is old in part, all
  /// stays.
  Result<Removed> Retain(const LogRetention& rules, std::int64_t now);

 private:
  CatalogDatabase* const db_;
  std::function<void(const std::string& trial)> listener_;
};

}  // namespace cairn
