#include "catalog/catalog_event_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <queue>
#include <set>
#include <utility>

#include "base/status_macros.h"
#include "catalog/event_body.h"
#include "catalog/report_block.h"
#include "catalog/report_reader.h"
#include "catalog/row_inserter.h"
#include "format/json.h"

namespace cairn {
namespace {

/// Blocks that one Append makes at most, beyond twice those that it brings the reports for: trials
/// in step would otherwise all wait for each other.
constexpr std::size_t kMaxBlocksAtOnce = 4;
/// Events that are read at a time.
constexpr std::int64_t kReadAhead = 4096;

Result<std::uint64_t> LastOf(Connection* connection) {
  std::uint64_t last = 0;
  for (const std::string_view sql : {"SELECT MAX(seq) FROM events", "SELECT MAX(seq) FROM reports",
                                     "SELECT MAX(last_seq) FROM report_blocks"}) {
    ASSIGN_OR_RETURN(const auto seq, connection->QueryInt(sql));
    last = std::max(last, static_cast<std::uint64_t>(seq.value_or(0)));
  }
  return last;
}

/// Gives the reports that are in blocks in the order of their numbers. Blocks overlap when trials
/// report at the same time; one is held from the first of its numbers to the last.
class BlockMerge {
 public:
  BlockMerge(Connection* connection, std::uint64_t from, std::uint64_t to)
      : connection_(connection), from_(from), to_(to) {}

  Status Start() {
    RETURN_IF_ERROR(connection_->Query(
        "SELECT first_seq FROM report_blocks WHERE last_seq >= ? AND first_seq <= ?",
        {Number(from_), Number(to_)}, "i", [&](const SqlRow& row) {
          firsts_.push_back(row.Int(0));
          return Status::Ok();
        }));
    std::sort(firsts_.begin(), firsts_.end());
    return Status::Ok();
  }

  /// The event `seq` when it is in a block.
  Result<std::optional<Event>> Take(std::uint64_t seq) {
    while (next_ < firsts_.size() && static_cast<std::uint64_t>(firsts_[next_]) <= seq) {
      RETURN_IF_ERROR(Load(firsts_[next_++]));
    }
    while (!open_.empty() && open_.top().seq < seq) RETURN_IF_ERROR(Advance());
    if (open_.empty() || open_.top().seq != seq) return std::optional<Event>();
    const Cursor top = open_.top();
    Held& held = *blocks_[top.block];
    Event event{.seq = seq,
                .time = held.block.time()[top.row],
                .trial = held.trial,
                .run = static_cast<std::uint64_t>(held.block.run()[top.row]),
                .kind = EventKind::kReport};
    ASSIGN_OR_RETURN(event.body, held.block.Body(top.row));
    RETURN_IF_ERROR(Advance());
    return std::optional(std::move(event));
  }

 private:
  struct Held {
    std::string trial;
    ReportBlock block;
  };
  struct Cursor {
    std::uint64_t seq = 0;
    std::size_t block = 0;
    std::size_t row = 0;
    bool operator<(const Cursor& other) const { return seq > other.seq; }  // least on top
  };

  Status Load(std::int64_t first) {
    return connection_->Query(
        "SELECT trial, grp, data FROM report_blocks WHERE first_seq = ?", {first}, "ttb",
        [&](const SqlRow& row) -> Status {
          ASSIGN_OR_RETURN(auto block, ReportBlock::Decode(row.Bytes(2), row.Text(1)));
          if (block.size() == 0) return CorruptionError("report block: it is empty");
          open_.push({static_cast<std::uint64_t>(block.seq()[0]), blocks_.size(), 0});
          blocks_.push_back(std::make_unique<Held>(Held{row.Text(0), std::move(block)}));
          return Status::Ok();
        });
  }
  Status Advance() {
    Cursor cursor = open_.top();
    open_.pop();
    const ReportBlock& block = blocks_[cursor.block]->block;
    if (++cursor.row < block.size()) {
      const auto seq = static_cast<std::uint64_t>(block.seq()[cursor.row]);
      if (seq <= cursor.seq) return CorruptionError("report block: its order is wrong");
      open_.push({seq, cursor.block, cursor.row});
    } else {
      blocks_[cursor.block].reset();
    }
    return Status::Ok();
  }

  Connection* const connection_;
  const std::uint64_t from_;
  const std::uint64_t to_;
  std::vector<std::int64_t> firsts_;
  std::size_t next_ = 0;
  std::vector<std::unique_ptr<Held>> blocks_;  // null: done with
  std::priority_queue<Cursor> open_;
};

/// Events and loose reports with first ≤ seq < end, in order.
Result<std::vector<Event>> ReadRows(Connection* connection, std::uint64_t first,
                                    std::uint64_t end) {
  std::vector<Event> events;
  RETURN_IF_ERROR(connection->Query(
      "SELECT seq, time, trial, run, kind, body FROM events WHERE seq >= ? AND seq < ?",
      {Number(first), Number(end)}, "iititt", [&](const SqlRow& row) -> Status {
        Event event{
            .seq = row.Uint(0), .time = row.Int(1), .trial = row.Text(2), .run = row.Uint(3)};
        const auto kind = EventKindFromName(row.Text(4));
        if (!kind) {
          return UnimplementedError(fmt::format(
              "event {}: kind {} is not known; the catalog was written by a newer program",
              event.seq, QuoteForMessage(row.Text(4))));
        }
        event.kind = *kind;
        ASSIGN_OR_RETURN(event.body, DecodeJson(row.Text(5)));
        events.push_back(std::move(event));
        return Status::Ok();
      }));
  RETURN_IF_ERROR(connection->Query(
      "SELECT seq, time, trial, run, body FROM reports WHERE seq >= ? AND seq < ?",
      {Number(first), Number(end)}, "iitit", [&](const SqlRow& row) -> Status {
        Event event{.seq = row.Uint(0),
                    .time = row.Int(1),
                    .trial = row.Text(2),
                    .run = row.Uint(3),
                    .kind = EventKind::kReport};
        ASSIGN_OR_RETURN(event.body, DecodeJson(row.Text(4)));
        events.push_back(std::move(event));
        return Status::Ok();
      }));
  std::sort(events.begin(), events.end(),
            [](const Event& a, const Event& b) { return a.seq < b.seq; });
  return events;
}

}  // namespace

Status CatalogEventLog::LoadTail(Connection* connection) {
  ASSIGN_OR_RETURN(last_, LastOf(connection));
  std::map<Group, std::size_t> loose;
  RETURN_IF_ERROR(connection->Query("SELECT trial, grp, COUNT(*) FROM reports GROUP BY trial, grp",
                                    {}, "tti", [&](const SqlRow& row) {
                                      loose[{row.Text(0), row.Text(1)}] = row.Uint(2);
                                      return Status::Ok();
                                    }));
  loose_ = std::move(loose);
  tail_known_ = true;
  return Status::Ok();
}

Status CatalogEventLog::Append(std::span<const Event> events) {
  MutexLock hold(&mu_);
  if (events.empty()) return Status::Ok();
  const Status written = db_->Write([&](Connection& connection) NO_THREAD_SAFETY_ANALYSIS {
    return AppendIn(&connection, events);
  });
  if (!written.ok()) {
    tail_known_ = false;
    tables_.Forget();
  }
  return written.ok() ? written : written.WithContext("events");
}

Status CatalogEventLog::AppendIn(Connection* connection, std::span<const Event> events) {
  if (!tail_known_) RETURN_IF_ERROR(LoadTail(connection));
  RowInserter others("INSERT INTO events (seq, time, trial, run, kind, body) VALUES ", 6);
  RowInserter reports("INSERT INTO reports (seq, trial, grp, run, time, steps, body) VALUES ", 7);
  for (const Event& event : events) {
    if (event.seq <= last_) continue;  // a repetition of what is there
    if (event.seq != last_ + 1) {
      return InvalidArgumentError(fmt::format("event {} where {} belongs", event.seq, last_ + 1));
    }
    last_ = event.seq;
    if (event.kind == EventKind::kReport) {
      const std::string group = TextOf(event, "group");
      reports.Add({Number(event.seq), event.trial, group, Number(event.run), event.time,
                   StepsOf(event.body), EncodeJson(event.body)});
      ++loose_[{event.trial, group}];
    } else {
      others.Add({Number(event.seq), event.time, event.trial, Number(event.run),
                  std::string(EventKindName(event.kind)), EncodeJson(event.body)});
    }
    if (EventTables::LooksAtReports(event)) RETURN_IF_ERROR(reports.Flush(connection));
    RETURN_IF_ERROR(tables_.Apply(connection, event));
  }
  RETURN_IF_ERROR(others.Flush(connection));
  RETURN_IF_ERROR(reports.Flush(connection));
  RETURN_IF_ERROR(tables_.Flush(connection));
  // One that has to wait has its turn with its next report.
  std::size_t left = kMaxBlocksAtOnce + 2 * (events.size() / kReportsPerBlock);
  std::set<Group> reported;
  for (const Event& event : events) {
    if (event.kind != EventKind::kReport) continue;
    const Group group(event.trial, TextOf(event, "group"));
    if (!reported.insert(group).second) continue;
    for (; left > 0 && loose_[group] >= kReportsPerBlock; --left) {
      RETURN_IF_ERROR(MakeBlock(connection, group));
    }
  }
  return Status::Ok();
}

Status CatalogEventLog::MakeBlock(Connection* connection, const Group& group) {
  std::vector<StoredReport> reports;
  RETURN_IF_ERROR(connection->Query(
      "SELECT seq, time, run, body FROM reports WHERE trial = ? AND grp = ? ORDER BY seq LIMIT ?",
      {group.first, group.second, Number(kReportsPerBlock)}, "iiit",
      [&](const SqlRow& row) -> Status {
        StoredReport report{.seq = row.Uint(0), .time = row.Int(1), .run = row.Uint(2)};
        ASSIGN_OR_RETURN(report.body, DecodeJson(row.Text(3)));
        reports.push_back(std::move(report));
        return Status::Ok();
      }));
  if (reports.empty()) return Status::Ok();
  std::int64_t least = StepsOf(reports.front().body);
  std::int64_t greatest = least;
  for (const StoredReport& report : reports) {
    least = std::min(least, StepsOf(report.body));
    greatest = std::max(greatest, StepsOf(report.body));
  }
  RETURN_IF_ERROR(connection->Run(
      "INSERT INTO report_blocks (first_seq, last_seq, trial, grp, reports, min_steps, max_steps, "
      "data) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
      {Number(reports.front().seq), Number(reports.back().seq), group.first, group.second,
       Number(reports.size()), least, greatest, Blob{EncodeReportBlock(group.second, reports)}}));
  RETURN_IF_ERROR(connection->Run("DELETE FROM reports WHERE trial = ? AND grp = ? AND seq <= ?",
                                  {group.first, group.second, Number(reports.back().seq)}));
  std::size_t& loose = loose_[group];
  loose -= std::min(loose, reports.size());
  return Status::Ok();
}

Result<std::uint64_t> CatalogEventLog::Last() {
  std::uint64_t last = 0;
  RETURN_IF_ERROR(db_->ReadSnapshot([&](Connection& connection) -> Status {
    ASSIGN_OR_RETURN(last, LastOf(&connection));
    return Status::Ok();
  }));
  return last;
}

Status CatalogEventLog::Replay(std::uint64_t from, const Visitor& visit) {
  return ReplayRange(from, std::numeric_limits<std::uint64_t>::max(), visit);
}

Status CatalogEventLog::ReplayRange(std::uint64_t from, std::uint64_t to, const Visitor& visit) {
  from = std::max<std::uint64_t>(from, 1);
  // A connection that is lost half way starts the body again: what was given is not given twice.
  std::uint64_t next = from;
  Status told;
  const Status read = db_->ReadSnapshot([&](Connection& connection) -> Status {
    ASSIGN_OR_RETURN(std::uint64_t last, LastOf(&connection));
    last = std::min(last, to);
    BlockMerge blocks(&connection, next, last);
    RETURN_IF_ERROR(blocks.Start());
    while (next <= last) {
      const std::uint64_t end = std::min(next + kReadAhead, last + 1);
      ASSIGN_OR_RETURN(const auto rows, ReadRows(&connection, next, end));
      std::size_t at = 0;
      for (; next < end; ++next) {
        std::optional<Event> event;
        if (at < rows.size() && rows[at].seq == next) {
          event = rows[at++];
        } else {
          ASSIGN_OR_RETURN(event, blocks.Take(next));
        }
        if (!event) {
          return CorruptionError(fmt::format("the catalog has no event {}", next));
        }
        told = visit(*event);
        if (!told.ok()) return told;
      }
    }
    return Status::Ok();
  });
  return told.ok() ? read : told;
}

}  // namespace cairn
