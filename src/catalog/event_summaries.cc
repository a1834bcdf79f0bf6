// What the events came to, trial by trial, so that an engine starts with what it has to know and
// the few events that came later: neither takes longer the more was reported.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <utility>

#include "base/status_macros.h"
#include "catalog/catalog_event_log.h"
#include "format/json.h"
#include "trial/records_codec.h"

namespace cairn {
namespace {

/// The setting that says up to which event the summaries stand for.
constexpr std::string_view kUpTo = "events summarized";
/// Events that are taken into the summaries in one transaction.
constexpr std::uint64_t kEventsAtOnce = 8192;

Result<std::uint64_t> SummarizedUpTo(Connection* connection) {
  std::uint64_t seq = 0;
  RETURN_IF_ERROR(connection->Query(
      "SELECT value FROM settings WHERE name = ?", {std::string(kUpTo)}, "t",
      [&](const SqlRow& row) -> Status {
        const std::string text = row.Text(0);
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seq);
        if (error == std::errc() && end == text.data() + text.size()) return Status::Ok();
        return CorruptionError(fmt::format("the setting {}: {}", kUpTo, QuoteForMessage(text)));
      }));
  return seq;
}

Status TakeSummary(const std::string& trial, std::string_view bytes,
                   std::vector<TrialRecord>* out) {
  const auto records = DecodeRecords(bytes);
  const TrialRecord* found = records.ok() ? records->Find(trial) : nullptr;
  if (!records.ok()) return records.status().WithContext("summary of trial " + trial);
  if (found == nullptr) return CorruptionError("summary of trial " + trial + ": of another");
  out->push_back(*found);
  return Status::Ok();
}

}  // namespace

Result<TrialRecords> CatalogEventLog::Restore() {
  std::uint64_t seq = 0;
  std::vector<TrialRecord> trials;
  RETURN_IF_ERROR(db_->ReadSnapshot([&](Connection& connection) -> Status {
    trials.clear();
    ASSIGN_OR_RETURN(seq, SummarizedUpTo(&connection));
    return connection.Query("SELECT trial, data FROM trial_summaries", {}, "tb",
                            [&](const SqlRow& row) -> Status {
                              return TakeSummary(row.Text(0), row.Bytes(1), &trials);
                            });
  }));
  ASSIGN_OR_RETURN(TrialRecords records, TrialRecords::Of(seq, std::move(trials)));
  records.KeepNewestReports();
  return records;
}

Status CatalogEventLog::Compact() {
  ASSIGN_OR_RETURN(const std::uint64_t last, Last());
  for (;;) {
    std::uint64_t done = 0;
    RETURN_IF_ERROR(db_->Read([&](Connection& connection) -> Status {
      ASSIGN_OR_RETURN(done, SummarizedUpTo(&connection));
      return Status::Ok();
    }));
    if (done >= last) return Status::Ok();
    RETURN_IF_ERROR(Summarize(done, std::min(last, done + kEventsAtOnce)));
  }
}

Status CatalogEventLog::Summarize(std::uint64_t from, std::uint64_t to) {
  std::vector<Event> events;
  RETURN_IF_ERROR(ReplayRange(from + 1, to, [&](const Event& event) {
    events.push_back(event);
    return Status::Ok();
  }));
  std::set<std::string> touched;
  for (const Event& event : events) {
    if (event.kind != EventKind::kNote) touched.insert(event.trial);
  }
  std::vector<TrialRecord> trials;
  RETURN_IF_ERROR(db_->Read([&](Connection& connection) -> Status {
    trials.clear();
    for (const std::string& trial : touched) {
      RETURN_IF_ERROR(connection.Query(
          "SELECT data FROM trial_summaries WHERE trial = ?", {trial}, "b",
          [&](const SqlRow& row) -> Status { return TakeSummary(trial, row.Bytes(0), &trials); }));
    }
    return Status::Ok();
  }));
  ASSIGN_OR_RETURN(TrialRecords records, TrialRecords::Of(from, std::move(trials)));
  records.KeepNewestReports();
  for (const Event& event : events) RETURN_IF_ERROR(records.Apply(event));
  std::map<std::string, std::string> summaries;
  for (const auto& [id, trial] : records.trials()) {
    ASSIGN_OR_RETURN(const TrialRecords alone, TrialRecords::Of(to, {trial}));
    summaries[id] = EncodeRecords(alone);
    // What cannot be read again must not stand for anything.
    ASSIGN_OR_RETURN(const TrialRecords again, DecodeRecords(summaries[id]));
    if (EncodeRecords(again) != summaries[id]) {
      return InternalError("the summary of trial " + id + " reads as something else");
    }
  }
  return db_->Write([&](Connection& connection) -> Status {
    for (const auto& [trial, bytes] : summaries) {
      RETURN_IF_ERROR(connection.Run(
          "INSERT INTO trial_summaries (trial, data) VALUES (?, ?) ON CONFLICT (trial) DO UPDATE "
          "SET data = excluded.data",
          {trial, Blob{bytes}}));
    }
    return connection.Run(
        "INSERT INTO settings (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = "
        "excluded.value",
        {std::string(kUpTo), std::to_string(to)});
  });
}

}  // namespace cairn
