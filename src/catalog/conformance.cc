#include "catalog/conformance.h"

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <ostream>
#include <random>
#include <span>
#include <thread>
#include <utility>

#include "catalog/test_events.h"
#include "catalog/test_tables.h"
#include "format/json.h"
#include "trial/records_codec.h"

namespace cairn {

void PrintTo(const CatalogFactory& factory, std::ostream* out) { *out << factory.name; }

std::string CatalogConformance::Name(const ::testing::TestParamInfo<CatalogFactory>& info) {
  return info.param.name;
}

Result<std::unique_ptr<Catalog>> CatalogConformance::Open(CatalogOptions options) {
  options.url = under_test_.url;
  return Catalog::Open(std::move(options));
}

void CatalogConformance::SetUp() {
  under_test_ = GetParam().make();
  ASSERT_FALSE(under_test_.url.empty()) << "there is no database to test with";
}

void CatalogConformance::Reopen() {
  catalog_.reset();
  auto opened = Open({});
  ASSERT_TRUE(opened.ok()) << opened.status().ToString();
  catalog_ = std::move(*opened);
}

namespace {

using ::testing::HasSubstr;

Event Report(std::uint64_t seq, const std::string& trial = "t") {
  return {.seq = seq,
          .time = 7,
          .trial = trial,
          .run = 1,
          .kind = EventKind::kReport,
          .body = Value::Object{{"sequence", seq},
                                {"group", "training"},
                                {"steps_completed", seq},
                                {"metrics", Value::Object{{"x", 0.1}}}}};
}

TEST_P(CatalogConformance, RepeatedEventsAreKeptOnce) {
  Reopen();
  for (std::uint64_t seq = 1; seq <= 6; seq += 2) {
    const std::vector<Event> events = {Report(seq), Report(seq + 1)};
    ASSERT_TRUE(catalog().events().Append(events).ok());
    ASSERT_TRUE(catalog().events().Append(events).ok());
    const std::vector<Event> overlap = {Report(seq + 1)};
    ASSERT_TRUE(catalog().events().Append(overlap).ok());
  }
  Reopen();
  ASSERT_TRUE(catalog().events().Append(std::vector{Report(6), Report(7)}).ok());
  const auto events = ReplayAll(&catalog().events());
  ASSERT_EQ(events.size(), 7u);
  for (std::uint64_t i = 0; i < 7; ++i) EXPECT_EQ(events[i], Report(i + 1));
  EXPECT_EQ(ReplayAll(&catalog().events(), 5).size(), 3u);
  EXPECT_EQ(catalog().LastEvent().value(), 7u);
  // What does not follow is no event of this log, and leaves nothing behind.
  EXPECT_TRUE(catalog().events().Append(std::vector{Report(9)}).Is(Code::kInvalidArgument));
  EXPECT_EQ(catalog().LastEvent().value(), 7u);
}

TEST_P(CatalogConformance, AnErrorOfTheVisitorEndsTheReplay) {
  Reopen();
  ASSERT_TRUE(catalog().events().Append(std::vector{Report(1), Report(2)}).ok());
  int seen = 0;
  const Status stopped = catalog().events().Replay(1, [&](const Event&) {
    ++seen;
    return CancelledError("enough");
  });
  EXPECT_TRUE(stopped.Is(Code::kCancelled)) << stopped.ToString();
  EXPECT_EQ(seen, 1);
}

TEST_P(CatalogConformance, TablesAgreeWithTheFoldOfTheEvents) {
  for (const std::uint64_t seed : {1, 2, 3}) {
    under_test_ = GetParam().make();
    Reopen();
    EventMaker maker(seed);
    std::mt19937_64 random(seed);
    std::vector<Event> all;
    for (int round = 0; round < 60; ++round) {
      const std::vector<Event> events = maker.Some(1 + random() % 20);
      const Status appended = catalog().events().Append(events);
      ASSERT_TRUE(appended.ok()) << appended.ToString();
      all.insert(all.end(), events.begin(), events.end());
      if (random() % 20 == 0) Reopen();
    }
    ExpectTablesAgree(&catalog(), maker.records());
    if (HasFailure()) break;
    EXPECT_EQ(ReplayAll(&catalog().events()), all);
  }
}

TEST_P(CatalogConformance, ReportsComeBackFromBlocksAsTheyWere) {
  Reopen();
  EventMaker maker(7);
  maker.reports = 97;
  maker.max_trials = 2;
  std::vector<Event> all;
  while (all.size() < 6000) {
    const std::vector<Event> events = maker.Some(150);
    const Status appended = catalog().events().Append(events);
    ASSERT_TRUE(appended.ok()) << appended.ToString();
    all.insert(all.end(), events.begin(), events.end());
  }
  ExpectTablesAgree(&catalog(), maker.records());
  EXPECT_EQ(ReplayAll(&catalog().events()), all);
  const auto tail = ReplayAll(&catalog().events(), 5500);
  ASSERT_EQ(tail.size(), all.size() - 5499);
  EXPECT_EQ(tail.front(), all[5499]);
  Reopen();
  ASSERT_TRUE(catalog().events().Append(maker.Some(100)).ok());
  ExpectTablesAgree(&catalog(), maker.records());
}

/// The records without their reports.
std::string Known(const TrialRecords& records) {
  std::vector<TrialRecord> trials;
  for (const auto& [id, trial] : records.trials()) trials.push_back(trial.WithoutReports());
  return EncodeRecords(TrialRecords::Of(records.last_seq(), std::move(trials)).value());
}

TEST_P(CatalogConformance, SummariesStandForTheEventsBeforeThem) {
  Reopen();
  EventMaker maker(11);
  maker.max_trials = 12;
  std::mt19937_64 random(11);
  EXPECT_EQ(catalog().events().Restore()->last_seq(), 0u);
  for (int round = 0; round < 40; ++round) {
    ASSERT_TRUE(catalog().events().Append(maker.Some(1 + random() % 60)).ok());
    std::uint64_t before = catalog().events().Restore()->last_seq();
    if (random() % 3 == 0) {
      const Status compacted = catalog().events().Compact();
      ASSERT_TRUE(compacted.ok()) << compacted.ToString();
      before = maker.records().last_seq();
    }
    if (random() % 4 == 0) Reopen();
    auto records = catalog().events().Restore();
    ASSERT_TRUE(records.ok()) << records.status().ToString();
    EXPECT_EQ(records->last_seq(), before);
    for (const Event& event : ReplayAll(&catalog().events(), before + 1)) {
      const Status applied = records->Apply(event);
      ASSERT_TRUE(applied.ok()) << applied.ToString();
    }
    ASSERT_EQ(Known(*records), Known(maker.records())) << "round " << round;
  }
  EXPECT_EQ(ReplayAll(&catalog().events()).size(), maker.records().last_seq()) << "no event went";
}

TEST_P(CatalogConformance, WhatIsKnownDoesNotGrowWithTheReports) {
  Reopen();
  const TrialConfig config{.experiment = "1", .argv = {"train"}, .storage = "/data"};
  std::uint64_t seq = 0;
  const auto event = [&](EventKind kind, std::uint64_t run, Value body) {
    return Event{.seq = ++seq, .time = 1, .trial = "1", .run = run, .kind = kind, .body = body};
  };
  std::vector<Event> events = {
      event(EventKind::kTrialCreated, 0, Value::Object{{"config", ToValue(config)}}),
      event(EventKind::kRunStarted, 1, Value::Object{{"token_hash", "h"}})};
  std::uint64_t number = 0;
  const auto add = [&](int count) {
    for (int i = 0; i < count; ++i) {
      ++number;
      events.push_back(event(EventKind::kReport, 1,
                             Value::Object{{"sequence", number},
                                           {"group", number % 2 == 0 ? "validation" : "training"},
                                           {"steps_completed", number},
                                           {"metrics", Value::Object{{"loss", 0.5}}}}));
    }
    ASSERT_TRUE(catalog().events().Append(events).ok());
    events.clear();
    ASSERT_TRUE(catalog().events().Compact().ok());
  };
  add(1000);
  const std::size_t few = EncodeRecords(catalog().events().Restore().value()).size();
  add(9000);
  auto records = catalog().events().Restore().value();
  EXPECT_LT(EncodeRecords(records).size(), few + 500);
  // The next report and a checkpoint of a step that was validated are what they would be.
  EXPECT_EQ(records.Find("1")->next_sequence, 10001u);
  ASSERT_TRUE(
      records
          .Apply(event(EventKind::kCheckpointCompleted, 1,
                       Value::Object{{"registration", ""}, {"id", "c"}, {"steps_completed", 9990}}))
          .ok());
  EXPECT_NE(records.Find("1")->Find("c")->metrics.Find("loss"), nullptr);
}

TEST_P(CatalogConformance, ANewOwnerFencesTheOldOne) {
  Reopen();
  ASSERT_TRUE(catalog().events().Append(std::vector{Report(1)}).ok());
  const auto refused = Open({});
  ASSERT_TRUE(refused.status().Is(Code::kUnavailable)) << refused.status().ToString();
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("pid " + std::to_string(getpid())));

  auto second = Open({.takeover = true});
  ASSERT_TRUE(second.ok()) << second.status().ToString();
  const Status stale = catalog().events().Append(std::vector{Report(2)});
  EXPECT_TRUE(stale.Is(Code::kAborted)) << stale.ToString();
  EXPECT_TRUE(catalog().SetSetting("a", "b").Is(Code::kAborted));
  EXPECT_EQ(ReplayAll(&(*second)->events()).size(), 1u);
  ASSERT_TRUE((*second)->events().Append(std::vector{Report(2)}).ok());
  EXPECT_TRUE(catalog().events().Append(std::vector{Report(2)}).Is(Code::kAborted));
  EXPECT_EQ((*second)->LastEvent().value(), 2u);
}

TEST_P(CatalogConformance, AReaderSeesWhatALivingOwnerWritesAndWritesNothing) {
  const auto nothing = Open({.mode = CatalogOptions::Mode::kReader});
  EXPECT_FALSE(nothing.ok());
  Reopen();
  auto reader = Open({.mode = CatalogOptions::Mode::kReader});
  ASSERT_TRUE(reader.ok()) << reader.status().ToString();
  ASSERT_TRUE(catalog().events().Append(std::vector{Report(1)}).ok());
  EXPECT_EQ(ReplayAll(&(*reader)->events()).size(), 1u);
  EXPECT_TRUE((*reader)->SetSetting("a", "b").Is(Code::kFailedPrecondition));
  EXPECT_TRUE((*reader)->Ping().ok());
  EXPECT_TRUE(catalog().Ping().ok());
}

TEST_P(CatalogConformance, ReadersAndTheWriterDoNotWaitForEachOther) {
  Reopen();
  EventMaker maker(11);
  ASSERT_TRUE(catalog().events().Append(maker.Some(50)).ok());
  std::atomic<bool> stop{false};
  std::atomic<int> failures{0};
  std::atomic<int> reads{0};
  std::vector<std::jthread> readers;
  for (int i = 0; i < 6; ++i) {
    readers.emplace_back([&] {
      std::uint64_t last = 0;
      while (!stop) {
        const auto seen = catalog().LastEvent();
        if (!seen.ok() || *seen < last) ++failures;
        if (seen.ok()) last = *seen;
        if (!catalog().trials().List({}).ok()) ++failures;
        if (!catalog().metrics().Series({.trial = "1"}, 100).ok()) ++failures;
        ++reads;
      }
    });
  }
  while (reads < 60) {
    const Status appended = catalog().events().Append(maker.Some(10));
    ASSERT_TRUE(appended.ok()) << appended.ToString();
  }
  stop = true;
  readers.clear();
  EXPECT_EQ(failures, 0);
  ExpectTablesAgree(&catalog(), maker.records());
}

/// A process that appends until it is killed and tells each acknowledged number over a pipe.
TEST_P(CatalogConformance, AcknowledgedEventsSurviveKillOfTheProcess) {
  constexpr std::uint64_t kSeed = 5;
  std::mt19937_64 random(kSeed);
  std::uint64_t acknowledged = 0;
  for (int round = 0; round < 4; ++round) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
      close(ends[0]);
      auto catalog = Open({});
      if (!catalog.ok()) _exit(3);
      // The same events as ever, from where the log ends.
      EventMaker maker(kSeed);
      const std::uint64_t last = (*catalog)->LastEvent().value();
      if (last > 0) maker.Some(last);
      for (;;) {
        const std::vector<Event> events = maker.Some(1 + maker.records().last_seq() % 7);
        if (!(*catalog)->events().Append(events).ok()) _exit(4);
        const std::uint64_t seq = events.back().seq;
        if (write(ends[1], &seq, sizeof seq) != sizeof seq) _exit(5);
      }
    }
    close(ends[1]);
    const int wait_for = 5 + static_cast<int>(random() % 40);
    std::uint64_t seq = 0;
    for (int i = 0; i < wait_for && read(ends[0], &seq, sizeof seq) == sizeof seq; ++i) {
      acknowledged = seq;
    }
    kill(child, SIGKILL);
    while (read(ends[0], &seq, sizeof seq) == sizeof seq) acknowledged = seq;
    close(ends[0]);
    int how = 0;
    ASSERT_EQ(waitpid(child, &how, 0), child);
    ASSERT_TRUE(WIFSIGNALED(how)) << "it ended by itself: " << WEXITSTATUS(how);
  }
  Reopen();
  const auto events = ReplayAll(&catalog().events());
  EXPECT_GE(events.size(), acknowledged);
  EventMaker maker(kSeed);
  EXPECT_EQ(maker.Some(events.size()), events);
  ExpectTablesAgree(&catalog(), maker.records());
}

TEST_P(CatalogConformance, SeriesKeepSpikesAndLeaveOutWhatWasArchived) {
  Reopen();
  std::vector<Event> events;
  const auto add = [&](EventKind kind, std::uint64_t run, Value body) {
    events.push_back({.seq = events.size() + 1,
                      .time = static_cast<std::int64_t>(events.size()),
                      .trial = "1",
                      .run = run,
                      .kind = kind,
                      .body = std::move(body)});
  };
  using O = Value::Object;
  const TrialConfig config{.experiment = "1", .argv = {"x"}, .storage = "/data"};
  add(EventKind::kTrialCreated, 0, O{{"config", ToValue(config)}, {"parent", Value()}});
  std::uint64_t sequence = 0;
  const auto report = [&](std::uint64_t run, std::int64_t steps, double loss) {
    add(EventKind::kReport, run,
        O{{"sequence", ++sequence},
          {"group", "training"},
          {"steps_completed", steps},
          {"metrics", O{{"loss", loss}, {"a", O{{"b", steps}}}}}});
  };
  add(EventKind::kRunStarted, 1, O{{"from", Value()}, {"resume_mode", "fresh"}});
  for (int i = 1; i <= 3000; ++i) report(1, i, i == 1234 ? 1e9 : i % 10);
  add(EventKind::kCheckpointCompleted, 1, O{{"id", "c"}, {"steps_completed", 2000}});
  add(EventKind::kRunExited, 1, O{{"code", 1}});
  add(EventKind::kRunStarted, 2,
      O{{"resume_mode", "resume"},
        {"from", O{{"id", "c"},
                   {"steps_completed", 2000},
                   {"metadata", O{}},
                   {"repository", "/data/1/1"}}}});
  sequence = 0;
  for (int i = 2001; i <= 2100; ++i) report(2, i, -1);
  for (std::size_t at = 0; at < events.size(); at += 500) {
    ASSERT_TRUE(
        catalog()
            .events()
            .Append(std::span(events).subspan(at, std::min<std::size_t>(500, events.size() - at)))
            .ok());
  }
  const auto all = catalog().metrics().Series({.trial = "1"}, 0);
  ASSERT_TRUE(all.ok()) << all.status().ToString();
  ASSERT_EQ(all->size(), 2u);
  EXPECT_EQ((*all)[0].name, "a/b");
  EXPECT_EQ((*all)[1].name, "loss");
  EXPECT_EQ((*all)[1].points.size(), 2100u);
  EXPECT_EQ(catalog().metrics().Series({.trial = "1", .archived = true}, 0).value()[1].total,
            3100u);

  const auto few = catalog().metrics().Series({.trial = "1", .names = {"loss"}}, 100);
  ASSERT_TRUE(few.ok());
  ASSERT_EQ(few->size(), 1u);
  EXPECT_LE((*few)[0].points.size(), 100u);
  EXPECT_EQ((*few)[0].total, 2100u);
  bool spike = false;
  for (std::size_t i = 0; i < (*few)[0].points.size(); ++i) {
    const SeriesPoint& point = (*few)[0].points[i];
    spike = spike || point.value == 1e9;
    EXPECT_EQ(point.run, point.steps > 2000 ? 2u : 1u);
    if (i > 0) {
      EXPECT_GT(point.steps, (*few)[0].points[i - 1].steps);
    }
  }
  EXPECT_TRUE(spike);
  EXPECT_EQ((*few)[0].points.front().steps, 1);
  EXPECT_EQ((*few)[0].points.back().steps, 2100);

  const auto nested =
      catalog().metrics().Reports({.trial = "1", .names = {"a/b"}, .from_steps = 5, .to_steps = 6});
  ASSERT_TRUE(nested.ok());
  ASSERT_EQ(nested->size(), 2u);
  EXPECT_EQ(EncodeJson((*nested)[1].values), R"({"a":{"b":6}})");
  EXPECT_EQ(catalog().metrics().Reports({.trial = "1"}, 0, 10)->size(), 10u);
  EXPECT_EQ(catalog().metrics().Names("1").value(),
            (std::vector<MetricName>{{"training", "a/b"}, {"training", "loss"}}));
  EXPECT_EQ(catalog().trials().Get("1").value().steps, 2100);
}

TEST_P(CatalogConformance, AStepThatALaterRunReportsAgainCountsOnce) {
  Reopen();
  ASSERT_TRUE(catalog()
                  .experiments()
                  .Create({.uuid = "u", .metric = "loss", .smaller_is_better = true})
                  .ok());
  using O = Value::Object;
  TrialRecords fold;
  const auto add = [&](EventKind kind, std::uint64_t run, Value body) {
    const Event event{.seq = fold.last_seq() + 1,
                      .time = static_cast<std::int64_t>(fold.last_seq()),
                      .trial = "1",
                      .run = run,
                      .kind = kind,
                      .body = std::move(body)};
    ASSERT_TRUE(fold.Apply(event).ok());
    ASSERT_TRUE(catalog().events().Append(std::span(&event, 1)).ok());
  };
  const auto report = [&](std::uint64_t run, int sequence, const char* group, int steps,
                          double loss) {
    add(EventKind::kReport, run,
        O{{"sequence", sequence},
          {"group", group},
          {"steps_completed", steps},
          {"metrics", O{{"loss", loss}}}});
  };
  const TrialConfig config{.experiment = "1", .argv = {"x"}, .storage = "/data"};
  const O from{
      {"id", "c"}, {"steps_completed", 100}, {"metadata", O{}}, {"repository", "/data/1/1"}};
  add(EventKind::kTrialCreated, 0, O{{"config", ToValue(config)}, {"parent", Value()}});
  add(EventKind::kRunStarted, 1, O{{"from", Value()}, {"resume_mode", "fresh"}});
  report(1, 1, "validation", 50, 0.5);
  report(1, 2, "training", 100, 0.3);
  report(1, 3, "validation", 100, 0.2);
  add(EventKind::kCheckpointCompleted, 1, O{{"id", "c"}, {"steps_completed", 100}});
  add(EventKind::kRunExited, 1, O{{"code", 0}});
  for (std::uint64_t run = 2; run <= 3; ++run) {
    add(EventKind::kActivated, run - 1, O{{"from", ""}});
    add(EventKind::kRunStarted, run, O{{"resume_mode", "resume"}, {"from", from}});
    Reopen();  // what it needs to know of the run is in the tables
    report(run, 1, "validation", 100, 0.1 * static_cast<double>(run + 1));
    add(EventKind::kRunExited, run, O{{"code", 0}});
    ExpectTablesAgree(&catalog(), fold);
  }
  const auto validation = catalog().metrics().Series({.trial = "1", .group = "validation"}, 0);
  ASSERT_TRUE(validation.ok()) << validation.status().ToString();
  ASSERT_EQ(validation->size(), 1u);
  ASSERT_EQ((*validation)[0].points.size(), 2u);
  EXPECT_EQ((*validation)[0].points[1].run, 3u);
  EXPECT_DOUBLE_EQ((*validation)[0].points[1].value, 0.4);
  EXPECT_EQ(catalog().metrics().Reports({.trial = "1"})->size(), 3u);
  EXPECT_EQ(catalog().metrics().Reports({.trial = "1", .archived = true})->size(), 5u);
  // The best that there was does not count any more.
  const TrialRow trial = catalog().trials().Get("1").value();
  EXPECT_DOUBLE_EQ(trial.best_metric.value(), 0.4);
  EXPECT_EQ(trial.best_steps, 100);
  EXPECT_DOUBLE_EQ(catalog().experiments().Get(1)->best_metric.value(), 0.4);
}

}  // namespace
}  // namespace cairn
