#include "catalog/logs.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/status_macros.h"
#include "catalog/database.h"
#include "catalog/log_block.h"
#include "format/json.h"

namespace cairn {
namespace {

/// A batch is a block of its own until so many of a trial lie loose; then they become one. So many
/// of those, of a log that grows by few lines at a time, become one again.
constexpr std::int64_t kLooseBlocks = 64;
constexpr std::int64_t kSmallBlocks = 64;
/// The column `merged`: a batch as it came, made of those, and as large as blocks get.
constexpr std::int64_t kLoose = 0;
constexpr std::int64_t kSmall = 1;
constexpr std::int64_t kLarge = 2;
/// Lines of a block at most; text of a merged block at about most.
constexpr std::size_t kMaxLines = 8192;
constexpr std::size_t kMergedBytes = 1u << 20;
/// Text of one line that is kept.
constexpr std::size_t kMaxText = 1u << 20;
/// Small blocks that are read at once to become large ones.
constexpr std::int64_t kMostSmall = 512;
constexpr std::uint64_t kMaxLinesPerPage = 10'000;

/// Bytes that are no UTF-8 become U+FFFD, as EncodeJson does it.
std::string Printable(const std::string& text) {
  std::string cut = text.substr(0, kMaxText);
  if (IsValidUtf8(cut)) return cut;
  const auto value = DecodeJson(EncodeJson(Value(cut)));
  return value.ok() && value->is_string() ? *value->if_string() : std::string();
}

std::string LowerCase(std::string text) {
  for (char& c : text) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return text;
}

std::uint64_t TextBytes(std::span<const LogLine> lines) {
  std::uint64_t bytes = 0;
  for (const LogLine& line : lines) bytes += line.text.size() + 1;
  return bytes;
}

Status Insert(Connection* connection, const std::string& trial, std::span<const LogLine> lines,
              std::int64_t merged) {
  auto run = std::pair(lines.front().run, lines.front().run);
  auto time = std::pair(lines.front().time, lines.front().time);
  std::int64_t levels = 0;
  for (const LogLine& line : lines) {
    run = {std::min(run.first, line.run), std::max(run.second, line.run)};
    time = {std::min(time.first, line.time), std::max(time.second, line.time)};
    levels |= LevelBit(line.level);
  }
  return connection->Run(
      "INSERT INTO log_blocks (trial, first_id, last_id, min_run, max_run, min_time, max_time, "
      "levels, bytes, merged, data) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
      {trial, Number(lines.front().id), Number(lines.back().id), Number(run.first),
       Number(run.second), time.first, time.second, levels, Number(TextBytes(lines)), merged,
       Blob{EncodeLogBlock(lines)}});
}

/// Writes lines that follow each other as few blocks. Those that are not large are `small`.
Status InsertMerged(Connection* connection, const std::string& trial,
                    std::span<const LogLine> lines, std::int64_t small) {
  for (std::size_t at = 0; at < lines.size();) {
    std::size_t end = at;
    std::size_t bytes = 0;
    while (end < lines.size() && end - at < kMaxLines && (end == at || bytes < kMergedBytes)) {
      bytes += lines[end++].text.size();
    }
    const bool large = end - at >= kMaxLines / 2 || bytes >= kMergedBytes / 2;
    RETURN_IF_ERROR(Insert(connection, trial, lines.subspan(at, end - at), large ? kLarge : small));
    at = end;
  }
  return Status::Ok();
}

/// Makes a block of the many that a followed log leaves, which are the last ones.
Status MergeLoose(Connection* connection, const std::string& trial) {
  std::vector<LogLine> lines;
  RETURN_IF_ERROR(connection->Query(
      "SELECT data FROM log_blocks WHERE trial = ? AND merged = 0 ORDER BY first_id", {trial}, "b",
      [&](const SqlRow& row) -> Status {
        ASSIGN_OR_RETURN(auto more, DecodeLogBlock(row.Bytes(0)));
        lines.insert(lines.end(), std::make_move_iterator(more.begin()),
                     std::make_move_iterator(more.end()));
        return Status::Ok();
      }));
  RETURN_IF_ERROR(
      connection->Run("DELETE FROM log_blocks WHERE trial = ? AND merged = 0", {trial}));
  return InsertMerged(connection, trial, lines, kSmall);
}

/// Makes large blocks of the small ones of a log that grows slowly. Each line is written a bounded
/// number of times: what comes of it is not merged again.
Status MergeSmall(Connection* connection, const std::string& trial) {
  const std::string which =
      "FROM log_blocks WHERE trial = ? AND merged = 1 AND bytes < ? AND last_id - first_id < ?";
  const std::vector<Cell> values = {trial, static_cast<std::int64_t>(kMergedBytes / 2),
                                    static_cast<std::int64_t>(kMaxLines / 2)};
  std::int64_t count = 0;
  RETURN_IF_ERROR(
      connection->Query("SELECT COUNT(*) " + which, values, "i", [&](const SqlRow& row) {
        count = row.Int(0);
        return Status::Ok();
      }));
  if (count < kSmallBlocks) return Status::Ok();
  // Blocks that large ones, or removed ones, lie between stay apart: their lines are in order.
  struct Stretch {
    std::vector<std::int64_t> first_ids;
    std::int64_t last_id = 0;
    std::vector<LogLine> lines;
  };
  std::vector<Stretch> stretches;
  RETURN_IF_ERROR(connection->Query(
      fmt::format("SELECT first_id, last_id, data {} ORDER BY first_id LIMIT {}", which,
                  kMostSmall),
      values, "iib", [&](const SqlRow& row) -> Status {
        ASSIGN_OR_RETURN(auto more, DecodeLogBlock(row.Bytes(2)));
        if (stretches.empty() || stretches.back().last_id + 1 != row.Int(0)) {
          stretches.emplace_back();
        }
        Stretch& stretch = stretches.back();
        stretch.first_ids.push_back(row.Int(0));
        stretch.last_id = row.Int(1);
        stretch.lines.insert(stretch.lines.end(), std::make_move_iterator(more.begin()),
                             std::make_move_iterator(more.end()));
        return Status::Ok();
      }));
  for (const Stretch& stretch : stretches) {
    for (const std::int64_t first : stretch.first_ids) {
      RETURN_IF_ERROR(connection->Run("DELETE FROM log_blocks WHERE trial = ? AND first_id = ?",
                                      {trial, first}));
    }
    RETURN_IF_ERROR(InsertMerged(connection, trial, stretch.lines, kLarge));
  }
  return Status::Ok();
}

struct TrialLog {
  std::uint64_t next_id = 1;
  std::uint64_t bytes = 0;
  std::int64_t loose = 0;
};

Result<TrialLog> Load(Connection* connection, const std::string& trial) {
  TrialLog log;
  RETURN_IF_ERROR(
      connection->Query("SELECT next_id, bytes, loose FROM log_trials WHERE trial = ?", {trial},
                        "iii", [&](const SqlRow& row) {
                          log = {.next_id = row.Uint(0), .bytes = row.Uint(1), .loose = row.Int(2)};
                          return Status::Ok();
                        }));
  return log;
}

Result<std::uint64_t> PositionOf(Connection* connection, const std::string& trial,
                                 std::uint64_t run) {
  ASSIGN_OR_RETURN(
      const auto next,
      connection->QueryInt("SELECT next FROM log_positions WHERE trial = ? AND run = ?",
                           {trial, Number(run)}));
  return static_cast<std::uint64_t>(next.value_or(0));
}

Status AppendOne(Connection* connection, const LogBatch& batch) {
  ASSIGN_OR_RETURN(const std::uint64_t position, PositionOf(connection, batch.trial, batch.run));
  if (position != batch.from) {
    return FailedPreconditionError(
        fmt::format("the log of trial {}, run {} is known up to {}, not {}", batch.trial, batch.run,
                    position, batch.from));
  }
  RETURN_IF_ERROR(connection->Run(
      "INSERT INTO log_positions (trial, run, next) VALUES (?, ?, ?) ON CONFLICT (trial, run) DO "
      "UPDATE SET next = excluded.next",
      {batch.trial, Number(batch.run), Number(batch.next)}));
  if (batch.lines.empty()) return Status::Ok();
  ASSIGN_OR_RETURN(TrialLog log, Load(connection, batch.trial));
  std::vector<LogLine> lines = batch.lines;
  for (LogLine& line : lines) {
    line.id = log.next_id++;
    line.run = batch.run;
    line.text = Printable(line.text);
  }
  log.bytes += TextBytes(lines);
  for (std::size_t at = 0; at < lines.size(); at += kMaxLines) {
    RETURN_IF_ERROR(Insert(connection, batch.trial,
                           std::span(lines).subspan(at, std::min(kMaxLines, lines.size() - at)),
                           kLoose));
    ++log.loose;
  }
  if (log.loose >= kLooseBlocks) {
    RETURN_IF_ERROR(MergeLoose(connection, batch.trial));
    RETURN_IF_ERROR(MergeSmall(connection, batch.trial));
    log.loose = 0;
  }
  return connection->Run(
      "INSERT INTO log_trials (trial, next_id, bytes, loose) VALUES (?, ?, ?, ?) ON CONFLICT "
      "(trial) DO UPDATE SET next_id = excluded.next_id, bytes = excluded.bytes, loose = "
      "excluded.loose",
      {batch.trial, Number(log.next_id), Number(log.bytes), log.loose});
}

/// The part of a query that is about a single line.
class LineFilter {
 public:
  explicit LineFilter(const LogQuery& query) : query_(query), text_(LowerCase(query.text)) {
    for (const LineLevel level : query.levels) levels_ |= LevelBit(level);
    if (query.levels.empty()) levels_ = 15;
  }
  int levels() const { return levels_; }
  bool Takes(const LogLine& line) const {
    if (line.id < query_.from_id || line.id >= query_.before_id) return false;
    if (query_.run && line.run != *query_.run) return false;
    if ((LevelBit(line.level) & levels_) == 0) return false;
    if (query_.from_stderr && line.from_stderr != *query_.from_stderr) return false;
    if (line.time < query_.from_time || line.time > query_.to_time) return false;
    if (!query_.ranks.empty() &&
        std::find(query_.ranks.begin(), query_.ranks.end(), line.rank) == query_.ranks.end()) {
      return false;
    }
    return text_.empty() || LowerCase(line.text).find(text_) != std::string::npos;
  }

 private:
  const LogQuery& query_;
  const std::string text_;
  int levels_ = 0;
};

/// Signed numbers are all that databases know.
std::int64_t Clamped(std::uint64_t value) {
  return static_cast<std::int64_t>(
      std::min<std::uint64_t>(value, std::numeric_limits<std::int64_t>::max()));
}

}  // namespace

void CatalogLogs::OnAppend(std::function<void(const std::string& trial)> listener) {
  listener_ = std::move(listener);
}

Status CatalogLogs::Append(std::span<const LogBatch> batches) {
  RETURN_IF_ERROR(db_->Write([&](Connection& connection) -> Status {
    for (const LogBatch& batch : batches) RETURN_IF_ERROR(AppendOne(&connection, batch));
    return Status::Ok();
  }));
  if (listener_) {
    for (const LogBatch& batch : batches) {
      if (!batch.lines.empty()) listener_(batch.trial);
    }
  }
  return Status::Ok();
}

Result<std::uint64_t> CatalogLogs::Position(const std::string& trial, std::uint64_t run) {
  std::uint64_t position = 0;
  RETURN_IF_ERROR(db_->Read([&](Connection& connection) -> Status {
    ASSIGN_OR_RETURN(position, PositionOf(&connection, trial, run));
    return Status::Ok();
  }));
  return position;
}

Result<LogPage> CatalogLogs::Read(const LogQuery& query) {
  const LineFilter filter(query);
  const std::uint64_t limit = std::min(query.limit, kMaxLinesPerPage);
  LogPage page;
  RETURN_IF_ERROR(db_->ReadSnapshot([&](Connection& connection) -> Status {
    page = {};
    ASSIGN_OR_RETURN(const TrialLog log, Load(&connection, query.trial));
    const std::uint64_t before = std::min(query.before_id, log.next_id);
    ASSIGN_OR_RETURN(
        const auto first,
        connection.QueryInt("SELECT MIN(first_id) FROM log_blocks WHERE trial = ?", {query.trial}));
    page.first_id = first ? static_cast<std::uint64_t>(*first) : log.next_id;
    // Blocks are taken a few at a time, from the end that is asked for.
    std::uint64_t low = query.from_id;  // ids that are still to be looked at: [low, high)
    std::uint64_t high = before;
    std::size_t looked = 0;
    bool full = false;
    while (!full && low < high && looked < query.max_blocks) {
      std::size_t got = 0;
      std::vector<std::vector<LogLine>> blocks;
      std::string sql =
          "SELECT first_id, last_id, data FROM log_blocks WHERE trial = ? AND last_id >= ? AND "
          "first_id < ? AND (levels & ?) <> 0 AND max_time >= ? AND min_time <= ?";
      std::vector<Cell> values = {query.trial,     Clamped(low),
                                  Clamped(high),   static_cast<std::int64_t>(filter.levels()),
                                  query.from_time, query.to_time};
      if (query.run) {
        sql += " AND min_run <= ? AND max_run >= ?";
        values.push_back(Number(*query.run));
        values.push_back(Number(*query.run));
      }
      sql += query.tail ? " ORDER BY first_id DESC LIMIT 8" : " ORDER BY first_id LIMIT 8";
      RETURN_IF_ERROR(connection.Query(sql, values, "iib", [&](const SqlRow& row) -> Status {
        ++got;
        ASSIGN_OR_RETURN(auto lines, DecodeLogBlock(row.Bytes(2)));
        if (!lines.empty()) blocks.push_back(std::move(lines));
        return Status::Ok();
      }));
      looked += got;
      if (got == 0) {  // nothing here may match
        (query.tail ? high : low) = query.tail ? low : high;
        break;
      }
      for (std::vector<LogLine>& lines : blocks) {
        if (query.tail) std::reverse(lines.begin(), lines.end());
        for (LogLine& line : lines) {
          if (line.id < low || line.id >= high) continue;
          if (page.lines.size() >= limit) {
            full = true;
            break;
          }
          (query.tail ? high : low) = query.tail ? line.id : line.id + 1;
          if (filter.Takes(line)) page.lines.push_back(std::move(line));
        }
        if (full) break;
      }
    }
    if (query.tail) {
      std::reverse(page.lines.begin(), page.lines.end());
      page.next_id = std::max(before, query.from_id);
      page.previous_id = high;
      page.more = low < high && page.first_id < high;
    } else {
      page.next_id = std::max(low, std::min(query.from_id, log.next_id));
      page.previous_id = std::min(query.from_id, log.next_id);
      page.more = low < high;
    }
    page.next_id = std::max<std::uint64_t>(page.next_id, 1);
    page.previous_id = std::max<std::uint64_t>(page.previous_id, 1);
    return Status::Ok();
  }));
  return page;
}

Result<CatalogLogs::Removed> CatalogLogs::Retain(const LogRetention& rules, std::int64_t now) {
  struct Stretch {
    std::string trial;
    std::int64_t first_id = 0;
    std::uint64_t lines = 0;
    std::int64_t max_time = 0;
    std::uint64_t bytes = 0;
  };
  std::vector<Stretch> all;
  RETURN_IF_ERROR(db_->Read([&](Connection& connection) {
    all.clear();
    return connection.Query(
        "SELECT trial, first_id, last_id, max_time, bytes FROM log_blocks ORDER BY max_time, "
        "first_id",
        {}, "tiiii", [&](const SqlRow& row) {
          all.push_back(
              {row.Text(0), row.Int(1), row.Uint(2) - row.Uint(1) + 1, row.Int(3), row.Uint(4)});
          return Status::Ok();
        });
  }));
  std::map<std::string, std::uint64_t> of_trial;
  std::uint64_t total = 0;
  for (const Stretch& stretch : all) {
    of_trial[stretch.trial] += stretch.bytes;
    total += stretch.bytes;
  }
  std::vector<const Stretch*> going;
  for (const Stretch& stretch : all) {  // oldest first
    const bool old = rules.max_age.count() > 0 && stretch.max_time < now - rules.max_age.count();
    const bool trial_full =
        rules.max_trial_bytes > 0 && of_trial[stretch.trial] > rules.max_trial_bytes;
    const bool all_full = rules.max_bytes > 0 && total > rules.max_bytes;
    if (!old && !trial_full && !all_full) continue;
    of_trial[stretch.trial] -= stretch.bytes;
    total -= stretch.bytes;
    going.push_back(&stretch);
  }
  Removed removed;
  // A few at a time: others want to write too.
  constexpr std::size_t kAtOnce = 100;
  for (std::size_t at = 0; at < going.size(); at += kAtOnce) {
    Removed part;
    RETURN_IF_ERROR(db_->Write([&](Connection& connection) -> Status {
      part = {};
      for (std::size_t i = at; i < std::min(at + kAtOnce, going.size()); ++i) {
        const Stretch& stretch = *going[i];
        std::int64_t changed = 0;
        // Merged into another one meanwhile: then it has its turn next time.
        RETURN_IF_ERROR(connection.Run(
            "DELETE FROM log_blocks WHERE trial = ? AND first_id = ? AND last_id = ?",
            {stretch.trial, stretch.first_id,
             stretch.first_id + static_cast<std::int64_t>(stretch.lines) - 1},
            &changed));
        if (changed == 0) continue;
        RETURN_IF_ERROR(connection.Run(
            "UPDATE log_trials SET bytes = bytes - ?, loose = (SELECT COUNT(*) FROM log_blocks b "
            "WHERE b.trial = log_trials.trial AND b.merged = 0) WHERE trial = ?",
            {Number(stretch.bytes), stretch.trial}));
        part.lines += stretch.lines;
        part.bytes += stretch.bytes;
      }
      return Status::Ok();
    }));
    removed.lines += part.lines;
    removed.bytes += part.bytes;
  }
  return removed;
}

}  // namespace cairn
