#include "catalog/test_tables.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>

#include "format/json.h"

namespace cairn {

std::vector<Event> ReplayAll(EventLog* log, std::uint64_t from) {
  std::vector<Event> events;
  const Status replayed = log->Replay(from, [&](const Event& event) {
    events.push_back(event);
    return Status::Ok();
  });
  EXPECT_TRUE(replayed.ok()) << replayed.ToString();
  return events;
}

namespace {

void ExpectRunsAgree(Catalog* catalog, const TrialRecord& trial) {
  const auto runs = catalog->trials().Runs(trial.id);
  ASSERT_TRUE(runs.ok()) << runs.status().ToString();
  // Numbers that runs of a lost record had, as the repository of the trial's job says, are left
  // out.
  if (trial.job.empty()) {
    ASSERT_EQ(runs->size(), trial.core.run);
  }
  ASSERT_LE(runs->size(), trial.core.run);
  if (runs->empty() || (!trial.core.live && runs->back().run < trial.core.run)) return;
  EXPECT_EQ(runs->back().run, trial.core.run);
  EXPECT_EQ(runs->back().from, trial.start);
  EXPECT_EQ(runs->back().ended == 0, trial.core.live);
}

void ExpectCheckpointsAgree(Catalog* catalog, const TrialRecord& trial) {
  const auto page = catalog->trials().Checkpoints({.trial = trial.id, .limit = 1000});
  ASSERT_TRUE(page.ok()) << page.status().ToString();
  ASSERT_EQ(page->items.size(), std::min<std::size_t>(trial.checkpoints.size(), 1000));
  std::map<std::string, CheckpointRecord> stored;
  for (const CheckpointRow& row : page->items) {
    stored[row.record.registration + "|" + row.record.id] = row.record;
    EXPECT_EQ(row.trial, trial.id);
  }
  std::uint64_t bytes = 0;
  std::uint64_t completed = 0;
  for (const CheckpointRecord& expected : trial.checkpoints) {
    const auto found = stored.find(expected.registration + "|" + expected.id);
    ASSERT_NE(found, stored.end()) << trial.id << " " << expected.registration << expected.id;
    EXPECT_EQ(EncodeJson(ToValue(found->second)), EncodeJson(ToValue(expected)));
    EXPECT_EQ(found->second.awaits_score, expected.awaits_score);
    EXPECT_EQ(found->second.order, expected.order);
    if (expected.state != CheckpointState::kCompleted) continue;
    bytes += expected.bytes;
    ++completed;
  }
  const auto row = catalog->trials().Get(trial.id);
  ASSERT_TRUE(row.ok());
  EXPECT_EQ(row->checkpoint_bytes, bytes);
  EXPECT_EQ(row->checkpoints, completed);
}

void ExpectReportsAgree(Catalog* catalog, const TrialRecord& trial) {
  const auto rows = catalog->metrics().Reports({.trial = trial.id, .archived = true});
  ASSERT_TRUE(rows.ok()) << rows.status().ToString();
  ASSERT_EQ(rows->size(), trial.reports.size());
  for (std::size_t i = 0; i < rows->size(); ++i) {
    const ReportRow& row = (*rows)[i];
    const MetricPoint& point = trial.reports[i];
    ASSERT_EQ(std::tie(row.group, row.steps, row.run, row.sequence, row.time),
              std::tie(point.group, point.steps, point.run, point.sequence, point.time))
        << trial.id << " report " << i;
    EXPECT_EQ(row.archived, point.archived) << trial.id << " report " << i;
    EXPECT_EQ(EncodeJson(row.values), EncodeJson(point.values));
  }
}

}  // namespace

void ExpectTablesAgree(Catalog* catalog, const TrialRecords& records) {
  const auto page = catalog->trials().List({.limit = 1000});
  ASSERT_TRUE(page.ok()) << page.status().ToString();
  EXPECT_EQ(page->total, records.trials().size());
  for (const auto& [id, trial] : records.trials()) {
    const auto row = catalog->trials().Get(id);
    ASSERT_TRUE(row.ok()) << row.status().ToString();
    EXPECT_EQ(row->core, trial.core) << id;
    EXPECT_EQ(row->experiment, trial.config.experiment);
    EXPECT_EQ(EncodeJson(row->config), EncodeJson(ToValue(trial.config)));
    EXPECT_EQ(row->progress, trial.progress);
    EXPECT_EQ(row->status, trial.status);
    EXPECT_EQ(row->message, trial.message);
    EXPECT_EQ(row->created, trial.created);
    EXPECT_EQ(row->reports, trial.reports.size());
    ExpectRunsAgree(catalog, trial);
    ExpectCheckpointsAgree(catalog, trial);
    ExpectReportsAgree(catalog, trial);
  }
}

}  // namespace cairn
