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

const std::filesystem::path kDirectory = "tests/compat/events_v1";

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

/// Of trials whose repositories are jobs of their own: what came later.
std::vector<Event> GoldenOfJobs() {
  using K = EventKind;
  using O = Value::Object;
  const TrialConfig config{.experiment = "7",
                           .argv = {"train"},
                           .cwd = InDataDirectory("work/7-00c0ffee"),
                           .storage = InDataDirectory("checkpoints")};
  const std::string job = "0c0ffee0-1234-4321-8888-0123456789ab";
  std::vector<Event> events;
  const auto add = [&](K kind, Value body) {
    events.push_back({.seq = events.size() + 1,
                      .time = 1800000000000000000 + static_cast<std::int64_t>(events.size()),
                      .trial = "9",
                      .run = 0,
                      .kind = kind,
                      .body = std::move(body)});
  };
  add(K::kTrialCreated, O{{"config", ToValue(config)}, {"parent", Value()}, {"job", job}});
  add(K::kRepositoryChosen, O{{"job", job}, {"directory", "7-0c0ffee0/9"}, {"run", 2}});
  add(K::kCheckpointCompleted, O{{"id", "c3"},
                                 {"steps_completed", 3},
                                 {"kind", "increment"},
                                 {"base", "c1"},
                                 {"time", std::int64_t{1700000000000000000}}});
  return events;
}

std::string ReadAll(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return std::string((std::istreambuf_iterator<char>(in)), {});
}

/// Writes the files of these events where they are missing and that was asked for.
void WriteGolden(const std::vector<Event>& events, const std::string& lines,
                 const std::string& binary) {
  if (std::getenv("CAIRN_WRITE_GOLDEN") == nullptr) return;
  std::filesystem::create_directories(kDirectory);
  TrialRecords records;
  for (const Event& event : events) ASSERT_TRUE(records.Apply(event).ok());
  if (!std::filesystem::exists(kDirectory / lines)) {
    std::ofstream out(kDirectory / lines);
    for (const Event& event : events) out << EncodeEvent(event) << "\n";
  }
  if (!std::filesystem::exists(kDirectory / binary)) {
    std::ofstream(kDirectory / binary, std::ios::binary) << EncodeRecords(records);
  }
}

/// Reads the lines, compares them with what they were written from, and folds them.
TrialRecords Fold(const std::vector<Event>& expected, const std::string& lines,
                  const std::string& binary, std::set<EventKind>* kinds) {
  WriteGolden(expected, lines, binary);
  std::ifstream in(kDirectory / lines);
  TrialRecords records;
  std::size_t count = 0;
  for (std::string line; std::getline(in, line); ++count) {
    const auto event = DecodeEvent(line);
    EXPECT_TRUE(event.ok()) << event.status().ToString();
    if (!event.ok() || count >= expected.size()) break;
    EXPECT_EQ(*event, expected[count]);
    EXPECT_EQ(EncodeEvent(*event), line);
    const Status applied = records.Apply(*event);
    EXPECT_TRUE(applied.ok()) << line << ": " << applied.ToString();
    kinds->insert(event->kind);
  }
  EXPECT_EQ(count, expected.size());
  // What they come to.
  const std::string bytes = ReadAll(kDirectory / binary);
  const auto read = DecodeRecords(bytes);
  EXPECT_TRUE(read.ok()) << read.status().ToString();
  if (!read.ok()) return records;
  EXPECT_EQ(read->last_seq(), expected.size());
  EXPECT_EQ(EncodeRecords(*read), bytes);
  EXPECT_EQ(EncodeRecords(records), bytes);
  return *read;
}

TEST(EventsV1, TheGoldenEventsReadFoldAndAreWrittenToTheSameBytes) {
  std::set<EventKind> kinds;
  const TrialRecords records = Fold(Golden(), "events.jsonl", "records.bin", &kinds);
  const TrialRecords of_jobs = Fold(GoldenOfJobs(), "jobs.jsonl", "jobs.bin", &kinds);
  EXPECT_EQ(kinds.size(), static_cast<std::size_t>(EventKind::kNote) + 1);
  const TrialRecord* trial = records.Find("1");
  ASSERT_NE(trial, nullptr);
  EXPECT_EQ(trial->core.state, TrialState::kCanceled);
  EXPECT_EQ(trial->reports.at(0).values.Find("big")->AsInt(), std::int64_t{9007199254740993});
  EXPECT_EQ(trial->Find("c10")->state, CheckpointState::kDeleted);
  EXPECT_EQ(trial->Find("r2")->state, CheckpointState::kError);

  const TrialRecord* own = of_jobs.Find("9");
  ASSERT_NE(own, nullptr);
  EXPECT_EQ(own->job, "0c0ffee0-1234-4321-8888-0123456789ab");
  EXPECT_EQ(Located(RepositoryOf(*own), "/data"), "/data/checkpoints/7-0c0ffee0/9");
  EXPECT_EQ(own->core.run, 2u);
  EXPECT_EQ(own->Find("c3")->time, std::int64_t{1700000000000000000});
}

}  // namespace
}  // namespace cairn
