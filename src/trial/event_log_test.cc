#include "trial/event_log.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "base/ids.h"
#include "storage/local/local_store.h"
#include "storage/local/temp_directory.h"
#include "storage/sim/faulty_fs.h"
#include "storage/sim/sim_fs.h"
#include "trial/records_codec.h"

namespace cairn {
namespace {

Event Make(std::uint64_t seq) {
  return {.seq = seq,
          .time = 7,
          .trial = "t",
          .run = 1,
          .kind = EventKind::kReport,
          .body = Value::Object{{"sequence", seq}, {"metrics", Value::Object{{"x", 0.1}}}}};
}

std::vector<Event> Contents(EventLog* log) {
  std::vector<Event> events;
  EXPECT_TRUE(log->Replay(1,
                          [&](const Event& event) {
                            events.push_back(event);
                            return Status::Ok();
                          })
                  .ok());
  return events;
}

TEST(Event, ComesBackAndDamageIsSeen) {
  const Event event = Make(3);
  EXPECT_EQ(DecodeEvent(EncodeEvent(event)).value(), event);
  EXPECT_TRUE(DecodeEvent("[]").status().Is(Code::kCorruption));
  EXPECT_TRUE(DecodeEvent(R"({"seq":0,"kind":"report"})").status().Is(Code::kCorruption));
  EXPECT_TRUE(DecodeEvent(R"({"seq":1,"kind":"new"})").status().Is(Code::kUnimplemented));
  for (int kind = 0; kind <= static_cast<int>(EventKind::kNote); ++kind) {
    Event each = Make(1);
    each.kind = static_cast<EventKind>(kind);
    EXPECT_EQ(DecodeEvent(EncodeEvent(each)).value().kind, each.kind);
  }
}

TEST(JournalEventLog, RepeatedEventsAreKeptOnceWhateverFailedInBetween) {
  for (std::uint64_t at = 0; at < 12; ++at) {
    SimFs disk;
    FaultyFs faulty(&disk);
    auto store = LocalStore::Open({.root = "/s", .fs = &faulty}).value();
    {
      auto log = JournalEventLog::Open({.store = store.get(), .prefix = "log"}).value();
      faulty.Arm({.failure = FsFailure::kIoError, .trigger = {.at = at}});
      for (std::uint64_t seq = 1; seq <= 6; seq += 2) {
        const std::vector<Event> events = {Make(seq), Make(seq + 1)};
        Status appended;
        do appended = log->Append(events);
        while (!appended.ok());
      }
      faulty.Disarm();
    }
    auto log = JournalEventLog::Open({.store = store.get(), .prefix = "log"}).value();
    const std::vector<Event> events = Contents(log.get());
    ASSERT_EQ(events.size(), 6u) << at;
    for (std::uint64_t i = 0; i < 6; ++i) EXPECT_EQ(events[i], Make(i + 1));
    ASSERT_TRUE(log->Append(std::vector<Event>{Make(7)}).ok());
  }
}

/// Events of `trials` trials that ended, with `reports` each.
std::vector<Event> Lives(int trials, int reports, std::uint64_t first_seq = 1) {
  using K = EventKind;
  using O = Value::Object;
  std::vector<Event> events;
  for (int t = 0; t < trials; ++t) {
    const std::string id = "t" + std::to_string(first_seq) + "-" + std::to_string(t);
    const auto add = [&](std::uint64_t run, K kind, Value body) {
      events.push_back({.seq = first_seq + events.size(),
                        .time = 1700000000000000000 + static_cast<std::int64_t>(events.size()),
                        .trial = id,
                        .run = run,
                        .kind = kind,
                        .body = std::move(body)});
    };
    const TrialConfig config{.experiment = "e",
                             .hparams = O{{"lr", 0.001 * t}, {"layers", t % 7}},
                             .argv = {"train"},
                             .storage = "/s"};
    add(0, K::kTrialCreated, O{{"config", ToValue(config)}, {"parent", Value()}});
    add(1, K::kRunStarted, O{{"token_hash", "00"}, {"resume_mode", "fresh"}, {"from", Value()}});
    add(1, K::kRunReady, O{{"rank", 0}});
    for (int i = 1; i <= reports; ++i) {
      add(1, K::kReport,
          O{{"sequence", i},
            {"group", "training"},
            {"steps_completed", i},
            {"metrics", O{{"loss", i % 5 == 0 ? Value("NaN") : Value(1.0 / i)}, {"x", -i}}}});
    }
    add(1, K::kCheckpointStarted, O{{"registration", "r"}, {"steps_completed", 1}});
    add(1, K::kCheckpointCompleted,
        O{{"registration", "r"}, {"id", "c" + id}, {"steps_completed", 1}, {"generation", 1}});
    add(1, K::kRunExited, O{{"code", t % 3 == 0 ? 1 : 0}});
  }
  return events;
}

TrialRecords FoldOf(const std::vector<Event>& events) {
  TrialRecords records;
  for (const Event& event : events) {
    const Status applied = records.Apply(event);
    EXPECT_TRUE(applied.ok()) << applied.ToString();
  }
  return records;
}

/// As an engine opens it.
Result<TrialRecords> Opened(EventLog* log) {
  Result<TrialRecords> records = log->Restore();
  if (!records.ok()) return records;
  const Status replayed = log->Replay(records->last_seq() + 1,
                                      [&](const Event& event) { return records->Apply(event); });
  if (!replayed.ok()) return replayed;
  return records;
}

TEST(JournalEventLog, GoesOnAfterAPositionAndKnowsWhenItIsAnothers) {
  SimFs disk;
  auto store = LocalStore::Open({.root = "/s", .fs = &disk}).value();
  EventPosition third;
  {
    auto log = JournalEventLog::Open({.store = store.get(), .prefix = "events"}).value();
    EXPECT_EQ(log->position(), EventPosition{});
    for (std::uint64_t seq = 1; seq <= 5; ++seq) {
      const Event event = Make(seq);
      ASSERT_TRUE(log->Append({&event, 1}).ok());
      if (seq == 3) third = log->position();
    }
  }
  EXPECT_EQ(third.seq, 3u);
  auto log = JournalEventLog::Open({.store = store.get(), .prefix = "events"}).value();
  const auto after = [&](const EventPosition& position) {
    std::vector<std::uint64_t> seqs;
    const Status status = log->ReplayAfter(position, [&](const Event& event) {
      seqs.push_back(event.seq);
      return Status::Ok();
    });
    return std::pair(status, seqs);
  };
  EXPECT_EQ(after(third).second, (std::vector<std::uint64_t>{4, 5}));
  EXPECT_EQ(log->position().seq, 5u);
  EXPECT_EQ(after({}).second, (std::vector<std::uint64_t>{1, 2, 3, 4, 5}));
  EXPECT_EQ(after(log->position()).second, std::vector<std::uint64_t>{});
  EventPosition wrong = third;
  ++wrong.time;
  EXPECT_TRUE(after(wrong).first.Is(Code::kFailedPrecondition));
  wrong = third;
  wrong.record = 90;
  EXPECT_TRUE(after(wrong).first.Is(Code::kFailedPrecondition));
  // What comes next is appended after all that is there.
  ASSERT_TRUE(after(third).first.ok());
  const Event sixth = Make(6);
  ASSERT_TRUE(log->Append({&sixth, 1}).ok());
  EXPECT_EQ(Contents(log.get()).size(), 6u);
}

TEST(JournalEventLog, CompactedItFoldsToTheSameAndGoesOn) {
  SimFs disk;
  auto store = LocalStore::Open({.root = "/s", .fs = &disk}).value();
  const JournalOptions options{.store = store.get(), .prefix = "log", .segment_bytes = 5000};
  std::vector<Event> events = Lives(30, 5);
  auto log = JournalEventLog::Open(options).value();
  ASSERT_EQ(log->Compact().ToString(), "OK");  // nothing to do
  ASSERT_TRUE(log->Append(events).ok());
  ASSERT_EQ(log->Compact().ToString(), "OK");
  ASSERT_EQ(log->Compact().ToString(), "OK");
  const std::vector<Event> more = Lives(3, 5, events.size() + 1);
  ASSERT_TRUE(log->Append(more).ok());
  events.insert(events.end(), more.begin(), more.end());
  log.reset();
  log = JournalEventLog::Open(options).value();
  EXPECT_EQ(EncodeRecords(Opened(log.get()).value()), EncodeRecords(FoldOf(events)));
  EXPECT_TRUE(
      log->Replay(1, [](const Event&) { return Status::Ok(); }).Is(Code::kFailedPrecondition));
  // The last events again, as after a lost answer, and one more compaction.
  ASSERT_TRUE(log->Append(more).ok());
  ASSERT_EQ(log->Compact().ToString(), "OK");
  log.reset();
  log = JournalEventLog::Open(options).value();
  EXPECT_EQ(EncodeRecords(Opened(log.get()).value()), EncodeRecords(FoldOf(events)));
  EXPECT_LT(store->List("log").value().objects.size(), 6u);
}

TEST(JournalEventLog, ACrashWhileItIsCompactedLosesNothing) {
  const std::vector<Event> events = Lives(4, 2);
  const std::string expected = EncodeRecords(FoldOf(events));
  const JournalOptions base{.prefix = "log", .segment_bytes = 600};
  SimFs disk;
  SeededIds ids(1);
  std::vector<std::shared_ptr<const SimImage>> moments;
  {
    auto store = LocalStore::Open({.root = "/s", .fs = &disk, .ids = &ids}).value();
    JournalOptions options = base;
    options.store = store.get();
    auto log = JournalEventLog::Open(options).value();
    const std::size_t half = events.size() / 2;
    for (std::size_t i = 0; i < half; ++i) ASSERT_TRUE(log->Append(std::span(&events[i], 1)).ok());
    ASSERT_EQ(log->Compact().ToString(), "OK");
    for (std::size_t i = half; i < events.size(); ++i) {
      ASSERT_TRUE(log->Append(std::span(&events[i], 1)).ok());
    }
    disk.SetHook([&](const SimOp&) { moments.push_back(disk.Snapshot()); });
    ASSERT_EQ(log->Compact().ToString(), "OK");
    disk.SetHook(nullptr);
    moments.push_back(disk.Snapshot());
  }
  ASSERT_GT(moments.size(), 10u);
  int worlds = 0;
  for (const auto& moment : moments) {
    std::vector<std::unique_ptr<SimFs>> after;
    after.push_back(SimFs::FromKill(*moment));
    after.push_back(SimFs::FromCrash(*moment, CrashMode::kForget, 0));
    after.push_back(SimFs::FromCrash(*moment, CrashMode::kKeep, 0));
    for (std::uint64_t seed = 0; seed < 5; ++seed) {
      after.push_back(SimFs::FromCrash(*moment, CrashMode::kSubset, seed));
      after.push_back(SimFs::FromCrash(*moment, CrashMode::kTorn, seed));
    }
    for (const auto& fs : after) {
      ++worlds;
      auto store = LocalStore::Open({.root = "/s", .fs = fs.get()}).value();
      JournalOptions options = base;
      options.store = store.get();
      auto log = JournalEventLog::Open(options).value();
      const auto records = Opened(log.get());
      ASSERT_TRUE(records.ok()) << records.status().ToString();
      ASSERT_EQ(EncodeRecords(*records), expected);
      ASSERT_EQ(log->Compact().ToString(), "OK");
      ASSERT_EQ(EncodeRecords(log->Restore().value()), expected);
    }
  }
  std::cout << moments.size() << " moments, " << worlds << " crashed disks\n";
}

TEST(JournalEventLog, CompactedItReadsLessThanByReplay) {
  TempDirectory directory;
  auto store = OpenLocalStore(directory.path()).value();
  const JournalOptions options{.store = store.get(), .prefix = "log"};
  const std::vector<Event> events = Lives(2000, 10);
  const auto open = [&](TrialRecords* records) {
    std::size_t replayed = 0;
    auto log = JournalEventLog::Open(options).value();
    *records = log->Restore().value();
    EXPECT_TRUE(log->Replay(records->last_seq() + 1,
                            [&](const Event& event) {
                              ++replayed;
                              return records->Apply(event);
                            })
                    .ok());
    return replayed;
  };
  const auto stored = [&] {
    std::uint64_t bytes = 0;
    for (const ObjectInfo& object : store->List("log").value().objects) bytes += object.bytes;
    return bytes;
  };
  {
    auto log = JournalEventLog::Open(options).value();
    for (std::size_t i = 0; i < events.size(); i += 4096) {
      const std::size_t count = std::min<std::size_t>(4096, events.size() - i);
      ASSERT_TRUE(log->Append(std::span(&events[i], count)).ok());
    }
  }
  TrialRecords first;
  EXPECT_EQ(open(&first), events.size());
  const std::uint64_t before = stored();
  ASSERT_TRUE(JournalEventLog::Open(options).value()->Compact().ok());
  TrialRecords second;
  EXPECT_EQ(open(&second), 0u);
  EXPECT_LT(stored(), before);
  EXPECT_EQ(second.trials().size(), 2000u);
  EXPECT_EQ(EncodeRecords(first), EncodeRecords(second));
}

}  // namespace
}  // namespace cairn
