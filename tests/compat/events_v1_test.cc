// Events of the trial engine as they were written once: each line must decode, be encoded to the
// same bytes, and fold. CAIRN_WRITE_GOLDEN=1 writes the file when it does not exist.

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "trial/event.h"
#include "trial/records_codec.h"
#include "trial/trial_record.h"

namespace cairn {
namespace {

const std::filesystem::path kFile = "tests/compat/events_v1/events.jsonl";

std::vector<Event> Golden() {
  using K = EventKind;
  using O = Value::Object;
  const TrialConfig config{
      .experiment = "tutorial",
      .hparams = O{{"lr", 0.1}},
      .argv = {"python", "train.py"},
      .storage = "/data",
      .retention = {.keep_last = 2, .keep_best = 1, .score = "loss", .maximize = false}};
  const O start{{"id", "c10"},
                {"steps_completed", 10},
                {"metadata", O{{"steps_completed", 10}}},
                {"repository", "/data/tutorial/1"}};
  std::vector<Event> events;
  const auto add = [&](std::uint64_t run, K kind, Value body) {
    events.push_back({.seq = events.size() + 1,
                      .time = 1700000000000000000 + static_cast<std::int64_t>(events.size()),
                      .trial = "1",
                      .run = run,
                      .kind = kind,
                      .body = std::move(body)});
  };
  add(0, K::kTrialCreated, O{{"config", ToValue(config)}, {"parent", Value()}});
  add(1, K::kRunStarted, O{{"token_hash", "00ff"}, {"resume_mode", "fresh"}, {"from", Value()}});
  add(1, K::kRunReady, O{{"rank", 0}});
  add(1, K::kReport,
      O{{"sequence", 1},
        {"group", "training"},
        {"steps_completed", 10},
        {"metrics", O{{"loss", "NaN"}, {"big", std::int64_t{9007199254740993}}}}});
  add(1, K::kProgress, O{{"progress", 0.5}});
  add(1, K::kStatus, O{{"status", "warming up"}});
  add(1, K::kCheckpointStarted,
      O{{"registration", "r1"}, {"steps_completed", 10}, {"ranks", 2}, {"metadata", O{}}});
  add(1, K::kCheckpointCompleted,
      O{{"registration", "r1"},
        {"id", "c10"},
        {"steps_completed", 10},
        {"metadata", O{{"steps_completed", 10}}},
        {"metrics", O{{"loss", 0.5}}},
        {"bytes", 1000},
        {"generation", 1},
        {"sequence", 1},
        {"path", "/data/tutorial/1/checkpoint_000010"},
        {"awaits_score", true}});
  add(1, K::kCheckpointStarted, O{{"registration", "r2"}, {"steps_completed", 20}});
  add(1, K::kCheckpointAbandoned, O{{"registration", "r2"}, {"reason", "rank 1 died"}});
  add(0, K::kCheckpointPinned, O{{"id", "c10"}, {"pinned", true}});
  add(0, K::kRetentionChanged, O{{"retention", ToValue(RetentionPolicy{.keep_last = 1})}});
  add(1, K::kPauseRequested, O{{"deadline_ms", 600000}});
  add(1, K::kPreemptAcknowledged, O{});
  add(1, K::kRunExited, O{{"code", 0}, {"message", ""}, {"stopped", false}});
  add(1, K::kActivated, O{{"from", "c10"}});
  add(2, K::kRunStarted, O{{"token_hash", "11ff"}, {"resume_mode", "resume"}, {"from", start}});
  add(2, K::kCancelRequested, O{{"deadline_ms", 600000}});
  add(2, K::kSignalled, O{{"signal", "SIGTERM"}});
  add(2, K::kKillRequested, O{{"deadline_ms", 0}});
  add(2, K::kRunExited, O{{"signal", 9}, {"message", "killed"}, {"stopped", true}});
  add(2, K::kCheckpointDeleted, O{{"id", "c10"}, {"reason", "no rule keeps it"}});
  add(0, K::kNote, O{{"what", "complete"}});
  return events;
}

TEST(EventsV1, TheGoldenEventsReadFoldAndAreWrittenToTheSameBytes) {
  if (std::getenv("CAIRN_WRITE_GOLDEN") != nullptr && !std::filesystem::exists(kFile)) {
    std::filesystem::create_directories(kFile.parent_path());
    std::ofstream out(kFile);
    for (const Event& event : Golden()) out << EncodeEvent(event) << "\n";
  }
  const std::vector<Event> expected = Golden();
  std::ifstream in(kFile);
  TrialRecords records;
  std::set<EventKind> kinds;
  std::size_t count = 0;
  for (std::string line; std::getline(in, line); ++count) {
    ASSERT_LT(count, expected.size());
    const auto event = DecodeEvent(line);
    ASSERT_TRUE(event.ok()) << event.status().ToString();
    EXPECT_EQ(*event, expected[count]);
    EXPECT_EQ(EncodeEvent(*event), line);
    const Status applied = records.Apply(*event);
    ASSERT_TRUE(applied.ok()) << line << ": " << applied.ToString();
    kinds.insert(event->kind);
  }
  EXPECT_EQ(count, expected.size());
  EXPECT_EQ(kinds.size(), static_cast<std::size_t>(EventKind::kNote) + 1);
  const TrialRecord* trial = records.Find("1");
  ASSERT_NE(trial, nullptr);
  EXPECT_EQ(trial->core.state, TrialState::kCanceled);
  EXPECT_EQ(trial->reports.at(0).values.Find("big")->AsInt(), std::int64_t{9007199254740993});
  EXPECT_EQ(trial->Find("c10")->state, CheckpointState::kDeleted);
  EXPECT_EQ(trial->Find("r2")->state, CheckpointState::kError);

  // What they come to.
  const std::filesystem::path file = "tests/compat/events_v1/records.bin";
  if (std::getenv("CAIRN_WRITE_GOLDEN") != nullptr && !std::filesystem::exists(file)) {
    std::ofstream(file, std::ios::binary) << EncodeRecords(records);
  }
  std::ifstream binary(file, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(binary)), {});
  const auto read = DecodeRecords(bytes);
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(read->last_seq(), expected.size());
  EXPECT_EQ(EncodeRecords(*read), bytes);
  EXPECT_EQ(EncodeRecords(records), bytes);
  EXPECT_EQ(read->Find("1")->reports.at(0).values.Find("big")->AsInt(),
            std::int64_t{9007199254740993});
}

}  // namespace
}  // namespace cairn
