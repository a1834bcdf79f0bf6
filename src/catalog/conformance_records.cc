#include <fmt/format.h>
#include <gmock/gmock.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "catalog/conformance.h"
#include "format/json.h"

namespace cairn {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<std::int64_t> Ids(const Result<Page<Experiment>>& page) {
  EXPECT_TRUE(page.ok()) << page.status().ToString();
  std::vector<std::int64_t> ids;
  if (page.ok()) {
    for (const Experiment& experiment : page->items) ids.push_back(experiment.id);
  }
  return ids;
}

TEST_P(CatalogConformance, ExperimentsComeBackAndAreListed) {
  Reopen();
  const std::string bytes("\0\xff state", 8);
  NewExperiment first{.uuid = "u1",
                      .name = "Mnist 100%",
                      .description = "first",
                      .owner = "ada",
                      .config_text = "name: Mnist\n# ünïcode",
                      .config = Value::Object{{"a", Value::List{1, 2.5, "x"}}},
                      .code_digest = "d",
                      .code_bytes = 12,
                      .storage = "/data",
                      .parent_trial = "7",
                      .parent_checkpoint = "c",
                      .metric = "score",
                      .smaller_is_better = false,
                      .labels = {"red", "blue_1"},
                      .notes = "n",
                      .searcher_state = bytes};
  ASSERT_EQ(catalog().experiments().Create(first).value(), 1);
  EXPECT_EQ(catalog().experiments().Create(first).value(), 1) << "the same again";
  ASSERT_EQ(catalog()
                .experiments()
                .Create({.uuid = "u2",
                         .name = "cifar",
                         .owner = "bob",
                         .state = "PAUSED",
                         .labels = {"blue"}})
                .value(),
            2);
  ASSERT_EQ(catalog().experiments().Create({.uuid = "u3", .name = "zoo", .owner = "ada"}).value(),
            3);
  const auto got = catalog().experiments().Get(1);
  ASSERT_TRUE(got.ok()) << got.status().ToString();
  EXPECT_EQ(got->name, first.name);
  EXPECT_EQ(got->config_text, first.config_text);
  EXPECT_EQ(got->config, first.config);
  EXPECT_EQ(got->labels, first.labels);
  EXPECT_EQ(got->parent_checkpoint, "c");
  EXPECT_FALSE(got->smaller_is_better);
  EXPECT_GT(got->created, 0);
  EXPECT_EQ(got->best_metric, std::nullopt);
  EXPECT_EQ(catalog().experiments().SearcherState(1).value(), bytes);
  EXPECT_TRUE(catalog().experiments().Get(9).status().Is(Code::kNotFound));

  auto& experiments = catalog().experiments();
  EXPECT_THAT(Ids(experiments.List({})), ElementsAre(3, 2, 1));
  EXPECT_THAT(Ids(experiments.List({.sort = ExperimentSort::kName, .descending = false})),
              ElementsAre(1, 2, 3));
  EXPECT_THAT(Ids(experiments.List({.states = {"PAUSED"}})), ElementsAre(2));
  EXPECT_THAT(Ids(experiments.List({.owners = {"ada", "eve"}})), ElementsAre(3, 1));
  EXPECT_THAT(Ids(experiments.List({.labels = {"blue"}})), ElementsAre(2));
  EXPECT_THAT(Ids(experiments.List({.search = "MNIST"})), ElementsAre(1));
  EXPECT_THAT(Ids(experiments.List({.search = "100%"})), ElementsAre(1));
  EXPECT_THAT(Ids(experiments.List({.search = "0%_"})), IsEmpty());
  EXPECT_THAT(Ids(experiments.List({.search = "' OR 1=1 --"})), IsEmpty());
  EXPECT_THAT(Ids(experiments.List({.parent_trial = "7"})), ElementsAre(1));
  const auto page = experiments.List({.descending = false, .offset = 1, .limit = 1});
  EXPECT_THAT(Ids(page), ElementsAre(2));
  EXPECT_EQ(page->total, 3u);
  for (int sort = 0; sort <= static_cast<int>(ExperimentSort::kDuration); ++sort) {
    EXPECT_THAT(Ids(experiments.List({.sort = static_cast<ExperimentSort>(sort), .now = 5})),
                SizeIs(3))
        << sort;
  }

  ASSERT_TRUE(experiments
                  .Update(2, {.name = "renamed",
                              .state = "COMPLETED",
                              .ended = 17,
                              .progress = 0.1,
                              .labels = std::vector<std::string>{"green"},
                              .archived = true,
                              .searcher_state = bytes + "2"})
                  .ok());
  const auto changed = experiments.Get(2);
  EXPECT_EQ(changed->name, "renamed");
  EXPECT_EQ(changed->progress, 0.1);
  EXPECT_EQ(changed->ended, 17);
  EXPECT_THAT(changed->labels, ElementsAre("green"));
  EXPECT_EQ(experiments.SearcherState(2).value(), bytes + "2");
  EXPECT_THAT(Ids(experiments.List({.search = "green"})), ElementsAre(2));
  EXPECT_THAT(Ids(experiments.List({.archived = false})), ElementsAre(3, 1));
  ASSERT_TRUE(experiments.Delete(3).ok());
  EXPECT_TRUE(experiments.Delete(3).Is(Code::kNotFound));
  EXPECT_TRUE(experiments.Update(3, {.state = "X"}).Is(Code::kNotFound));
  EXPECT_THAT(Ids(experiments.List({})), ElementsAre(2, 1));
  Reopen();
  EXPECT_EQ(catalog().experiments().Create({.uuid = "u4"}).value(), 4) << "no number twice";
  EXPECT_EQ(catalog().experiments().Get(4)->name, "experiment 4");
  EXPECT_THAT(Ids(catalog().experiments().List({.search = "experiment 4"})), ElementsAre(4));
  ASSERT_TRUE(catalog().experiments().Update(4, {.name = "mine"}).ok());
  ASSERT_TRUE(catalog().experiments().Update(4, {.name = ""}).ok());
  EXPECT_EQ(catalog().experiments().Get(4)->name, "experiment 4") << "no name is its number";
  EXPECT_TRUE(catalog()
                  .experiments()
                  .Create({.uuid = "u5", .name = std::string("a\0b", 3)})
                  .status()
                  .Is(Code::kInvalidArgument));
  EXPECT_TRUE(catalog()
                  .experiments()
                  .Create({.uuid = "u5", .name = "\xff"})
                  .status()
                  .Is(Code::kInvalidArgument));
}

TEST_P(CatalogConformance, TheBestComeFirstMetricByMetric) {
  Reopen();
  using O = Value::Object;
  using K = EventKind;
  std::vector<Event> events;
  const auto add = [&](const std::string& trial, K kind, Value body) {
    const std::uint64_t run = kind == K::kTrialCreated ? 0 : 1;
    events.push_back({.seq = events.size() + 1,
                      .time = 100 + static_cast<std::int64_t>(events.size()),
                      .trial = trial,
                      .run = run,
                      .kind = kind,
                      .body = std::move(body)});
  };
  struct Case {
    const char* metric;
    bool smaller_is_better;
    double value;
  };
  // Of each experiment one trial of the same number.
  const std::vector<Case> cases = {{"loss", true, 0.5},      {"accuracy", false, 0.2},
                                   {"loss", true, 0.1},      {"accuracy", false, 0.9},
                                   {"accuracy", true, 0.05}, {"accuracy", false, 0.7}};
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const std::string id = std::to_string(i + 1);
    ASSERT_TRUE(catalog()
                    .experiments()
                    .Create({.uuid = "u" + id,
                             .metric = cases[i].metric,
                             .smaller_is_better = cases[i].smaller_is_better})
                    .ok());
    const TrialConfig config{.experiment = id, .argv = {"x"}, .storage = "/data"};
    add(id, K::kTrialCreated, O{{"config", ToValue(config)}, {"parent", Value()}});
    add(id, K::kRunStarted, O{{"from", Value()}, {"resume_mode", "fresh"}});
    add(id, K::kReport,
        O{{"sequence", 1},
          {"group", "validation"},
          {"steps_completed", 10},
          {"metrics", O{{cases[i].metric, cases[i].value}}}});
  }
  ASSERT_TRUE(catalog().experiments().Create({.uuid = "none", .metric = "accuracy"}).ok());
  ASSERT_TRUE(catalog().events().Append(events).ok());
  std::vector<std::string> trials;
  for (const TrialRow& row : catalog().trials().List({.sort = "best"}).value().items) {
    trials.push_back(row.id);
  }
  EXPECT_THAT(trials, ElementsAre("4", "6", "2", "5", "3", "1"));
  std::vector<std::int64_t> experiments;
  for (const Experiment& one :
       catalog().experiments().List({.sort = ExperimentSort::kBest}).value().items) {
    experiments.push_back(one.id);
  }
  EXPECT_THAT(experiments, ElementsAre(4, 6, 2, 5, 3, 1, 7)) << "those without one last";
}

TEST_P(CatalogConformance, ExperimentsSumUpTheirTrials) {
  Reopen();
  ASSERT_EQ(catalog()
                .experiments()
                .Create({.uuid = "u", .metric = "score", .smaller_is_better = true})
                .value(),
            1);
  using O = Value::Object;
  using K = EventKind;
  std::vector<Event> events;
  const auto add = [&](const std::string& trial, std::uint64_t run, K kind, Value body) {
    events.push_back({.seq = events.size() + 1,
                      .time = 100 + static_cast<std::int64_t>(events.size()),
                      .trial = trial,
                      .run = run,
                      .kind = kind,
                      .body = std::move(body)});
  };
  for (const std::string trial : {"1", "2", "10"}) {
    const TrialConfig config{.experiment = "1", .argv = {"x"}, .storage = "/data"};
    add(trial, 0, K::kTrialCreated, O{{"config", ToValue(config)}, {"parent", Value()}});
  }
  for (const std::string trial : {"1", "2"}) {
    add(trial, 1, K::kRunStarted, O{{"from", Value()}, {"resume_mode", "fresh"}});
    add(trial, 1, K::kRunReady, O{{"rank", 0}});
    const double score = trial == "1" ? 3 : 2;
    for (const Value& value : {Value(score), Value("NaN"), Value(score + 1)}) {
      add(trial, 1, K::kReport,
          O{{"sequence", static_cast<std::int64_t>(events.size())},
            {"group", "validation"},
            {"steps_completed", 10},
            {"metrics", O{{"score", value}}}});
    }
    add(trial, 1, K::kCheckpointCompleted,
        O{{"id", "c" + trial}, {"steps_completed", 10}, {"bytes", 50}});
  }
  add("2", 1, K::kRunExited, O{{"code", 0}});
  ASSERT_TRUE(catalog().events().Append(events).ok());
  const auto got = catalog().experiments().Get(1);
  ASSERT_TRUE(got.ok()) << got.status().ToString();
  EXPECT_EQ(got->trials, 3u);
  EXPECT_THAT(got->trials_by_state, ElementsAre(std::pair("COMPLETED", 1), std::pair("QUEUED", 1),
                                                std::pair("RUNNING", 1)));
  EXPECT_EQ(got->best_metric, 2.0);
  EXPECT_EQ(got->best_trial, "2");
  EXPECT_EQ(got->checkpoints, 2u);
  EXPECT_EQ(got->checkpoint_bytes, 100u);
  EXPECT_EQ(got->started, 104);
  const auto trials = catalog().trials().List({.experiment = "1"});
  ASSERT_TRUE(trials.ok());
  ASSERT_EQ(trials->items.size(), 3u);
  EXPECT_EQ(trials->items[2].id, "10") << "numbers by value";
  EXPECT_EQ(trials->items[1].best_metric, 2.0);
  EXPECT_EQ(trials->items[1].ended, events.back().time);
  EXPECT_EQ(catalog().trials().List({.sort = "best_metric"}).value().items[0].id, "2");
  const auto first = [&](TrialQuery query) {
    return catalog().trials().List(query).value().items.at(0).id;
  };
  EXPECT_EQ(first({.sort = "best", .descending = true}), "2") << "the smallest is the best here";
  EXPECT_EQ(first({.sort = "duration", .descending = true, .now = events.back().time + 1000}), "1")
      << "goes on since it began";
  EXPECT_TRUE(catalog().trials().List({.sort = "id; DROP"}).status().Is(Code::kInvalidArgument));
  EXPECT_EQ(catalog().trials().GetCheckpoint("c2").value().trial, "2");
  EXPECT_TRUE(catalog().trials().GetCheckpoint("").status().Is(Code::kNotFound));
  EXPECT_EQ(catalog().trials().FindCheckpoint("c2").value().trial, "2");
  EXPECT_TRUE(catalog().trials().FindCheckpoint("c").status().Is(Code::kNotFound)) << "too short";
  EXPECT_TRUE(catalog().trials().FindCheckpoint("%%%%").status().Is(Code::kNotFound));
  EXPECT_EQ(catalog().trials().StorageUsage().value().at(0).bytes, 100u);
  EXPECT_EQ(catalog().trials().Checkpoints({.experiment = "1", .sort = "steps"})->total, 2u);
  // A better one, in a commit of its own.
  const std::vector<Event> better = {{.seq = events.size() + 1,
                                      .trial = "1",
                                      .run = 1,
                                      .kind = K::kReport,
                                      .body = O{{"sequence", 9},
                                                {"group", "validation"},
                                                {"steps_completed", 20},
                                                {"metrics", O{{"score", 0.5}}}}}};
  ASSERT_TRUE(catalog().events().Append(better).ok());
  EXPECT_EQ(catalog().experiments().Get(1)->best_metric, 0.5);
  EXPECT_EQ(catalog().experiments().Get(1)->best_trial, "1");
  EXPECT_EQ(catalog().trials().List({.of_deleted = false})->total, 3u);
  ASSERT_TRUE(catalog().experiments().Delete(1).ok());
  EXPECT_EQ(catalog().trials().List({.of_deleted = false})->total, 0u);
  EXPECT_EQ(catalog().trials().List({})->total, 3u) << "whoever clears up finds them";
}

/// What an experiment's and its trials' times come to.
TEST_P(CatalogConformance, TimeCountsFromWhenProcessesRunAndOnlyWhileTheyDo) {
  Reopen();
  ASSERT_EQ(catalog().experiments().Create({.uuid = "u"}).value(), 1);
  using O = Value::Object;
  using K = EventKind;
  std::uint64_t seq = 0;
  const auto add = [&](std::int64_t time, const std::string& trial, std::uint64_t run, K kind,
                       Value body) {
    const std::vector<Event> events = {{.seq = ++seq,
                                        .time = time,
                                        .trial = trial,
                                        .run = run,
                                        .kind = kind,
                                        .body = std::move(body)}};
    const Status appended = catalog().events().Append(events);
    ASSERT_TRUE(appended.ok()) << appended.ToString();
  };
  const auto ask = [&](std::int64_t time, const std::string& trial, std::uint64_t run) {
    add(time, trial, run, K::kRunStarted, O{{"from", Value()}, {"resume_mode", "fresh"}});
  };
  const auto began = [&](std::int64_t time, const std::string& trial, std::int64_t run) {
    add(time + 1, trial, 0, K::kNote, O{{"what", kRunBegan}, {"run", run}, {"time", time}});
  };
  const auto times = [&](const auto& row) {
    return std::tuple(row.started, row.ran, row.running_since);
  };
  const auto trial = [&](const std::string& id) {
    return times(catalog().trials().Get(id).value());
  };
  const auto experiment = [&] { return times(catalog().experiments().Get(1).value()); };
  for (const std::string id : {"1", "2"}) {
    const TrialConfig config{.experiment = "1", .argv = {"x"}, .storage = "/data"};
    add(100, id, 0, K::kTrialCreated, O{{"config", ToValue(config)}, {"parent", Value()}});
  }
  ask(100, "1", 1);
  EXPECT_EQ(trial("1"), std::tuple(0, 0, 0)) << "it waits for slots";
  EXPECT_EQ(catalog().trials().Runs("1")->at(0).began, 0);
  began(1000, "1", 1);
  EXPECT_EQ(trial("1"), std::tuple(1000, 0, 1000));
  EXPECT_EQ(experiment(), std::tuple(1000, 0, 1000));
  EXPECT_EQ(catalog().trials().Runs("1")->at(0).began, 1000);
  began(1000, "1", 1);  // by a master that was started again
  add(1010, "1", 1, K::kRunReady, O{{"rank", 0}});
  EXPECT_EQ(trial("1"), std::tuple(1000, 0, 1000));
  // The second is heard of before its launcher has looked.
  ask(1100, "2", 1);
  add(1250, "2", 1, K::kRunReady, O{{"rank", 0}});
  EXPECT_EQ(trial("2"), std::tuple(1250, 0, 1250));
  began(1200, "2", 1);
  EXPECT_EQ(trial("2"), std::tuple(1200, 0, 1200));
  // Told of late: the master was away.
  add(1900, "1", 1, K::kRunExited, O{{"code", 1}, {"ended", 1300}});
  EXPECT_EQ(trial("1"), std::tuple(1000, 300, 0));
  EXPECT_EQ(catalog().trials().Runs("1")->at(0).ended, 1300);
  EXPECT_EQ(experiment(), std::tuple(1000, 0, 1000)) << "the other one runs";
  Reopen();  // nothing of it is in memory alone
  add(2000, "2", 1, K::kRunExited, O{{"code", 0}});
  EXPECT_EQ(trial("2"), std::tuple(1200, 800, 0));
  EXPECT_EQ(experiment(), std::tuple(1000, 1000, 0)) << "side by side counts once";
  // Restarted: it waits again, and is stopped before it runs.
  ask(3000, "1", 2);
  EXPECT_EQ(trial("1"), std::tuple(1000, 300, 0));
  began(4000, "1", 1);  // of the run before
  EXPECT_EQ(trial("1"), std::tuple(1000, 300, 0));
  add(5000, "1", 2, K::kRunExited, O{{"code", 1}});
  EXPECT_EQ(trial("1"), std::tuple(1000, 300, 0));
  EXPECT_EQ(catalog().trials().Runs("1")->at(1).began, 0);
  ask(6000, "1", 3);
  began(7000, "1", 3);
  EXPECT_EQ(trial("1"), std::tuple(1000, 300, 7000));
  EXPECT_EQ(experiment(), std::tuple(1000, 1000, 7000));
  const auto longest = [&](std::int64_t now) {
    return catalog()
        .trials()
        .List({.sort = "duration", .descending = true, .now = now})
        .value()
        .items.at(0)
        .id;
  };
  EXPECT_EQ(longest(7400), "2") << "700 ns against 800";
  EXPECT_EQ(longest(7600), "1");
  add(8000, "1", 3, K::kRunExited, O{{"code", 0}});
  EXPECT_EQ(experiment(), std::tuple(1000, 2000, 0));
}

/// A process that was started by hand runs when it joins, and replaces the one before.
TEST_P(CatalogConformance, TimeOfWhoJoinsCountsAtOnce) {
  Reopen();
  ASSERT_EQ(catalog().experiments().Create({.uuid = "u"}).value(), 1);
  using O = Value::Object;
  using K = EventKind;
  const TrialConfig config{.experiment = "1", .storage = "/data", .detached = true};
  const O start{{"from", Value()}, {"resume_mode", "fresh"}};
  const std::vector<Event> events = {
      {.seq = 1,
       .time = 100,
       .trial = "1",
       .kind = K::kTrialCreated,
       .body = O{{"config", ToValue(config)}, {"parent", Value()}}},
      {.seq = 2, .time = 200, .trial = "1", .run = 1, .kind = K::kRunStarted, .body = start},
      {.seq = 3, .time = 500, .trial = "1", .run = 2, .kind = K::kRunStarted, .body = start}};
  ASSERT_TRUE(catalog().events().Append(events).ok());
  const auto row = catalog().trials().Get("1").value();
  EXPECT_EQ(std::tuple(row.started, row.ran, row.running_since), std::tuple(200, 300, 500));
  const auto experiment = catalog().experiments().Get(1).value();
  EXPECT_EQ(std::tuple(experiment.ran, experiment.running_since), std::tuple(300, 500));
}

TEST_P(CatalogConformance, TheBestIsOfTheGroupThatTheExperimentNames) {
  Reopen();
  ASSERT_EQ(catalog()
                .experiments()
                .Create({.uuid = "u",
                         .metric = "loss",
                         .metric_group = "training",
                         .smaller_is_better = false})
                .value(),
            1);
  using O = Value::Object;
  using K = EventKind;
  const TrialConfig config{.experiment = "1", .argv = {"x"}, .storage = "/data"};
  std::vector<Event> events = {{.seq = 1,
                                .trial = "1",
                                .kind = K::kTrialCreated,
                                .body = O{{"config", ToValue(config)}, {"parent", Value()}}},
                               {.seq = 2,
                                .trial = "1",
                                .run = 1,
                                .kind = K::kRunStarted,
                                .body = O{{"from", Value()}, {"resume_mode", "fresh"}}}};
  for (const auto& [group, loss] :
       {std::pair{"training", 1.0}, {"training", 3.0}, {"validation", 9.0}, {"training", 2.0}}) {
    events.push_back({.seq = events.size() + 1,
                      .trial = "1",
                      .run = 1,
                      .kind = K::kReport,
                      .body = O{{"sequence", static_cast<std::int64_t>(events.size()) - 1},
                                {"group", group},
                                {"steps_completed", static_cast<std::int64_t>(events.size())},
                                {"metrics", O{{"loss", loss}}}}});
  }
  ASSERT_TRUE(catalog().events().Append(events).ok());
  EXPECT_EQ(catalog().experiments().Get(1)->best_metric, 3.0);
  EXPECT_EQ(catalog().trials().Get("1")->best_metric, 3.0);
}

LogLine Line(std::string text, LineLevel level = LineLevel::kInfo, int rank = 0,
             std::int64_t time = 1) {
  return {.time = time, .rank = rank, .level = level, .text = std::move(text)};
}

TEST_P(CatalogConformance, RunsTellWhatTheirEndWasToTheirTrial) {
  Reopen();
  using O = Value::Object;
  using K = EventKind;
  std::vector<Event> events;
  const auto add = [&](std::uint64_t run, K kind, Value body) {
    events.push_back({.seq = events.size() + 1,
                      .time = 100 + static_cast<std::int64_t>(events.size()),
                      .trial = "1",
                      .run = run,
                      .kind = kind,
                      .body = std::move(body)});
  };
  const auto start = [&](std::uint64_t run) {
    add(run, K::kRunStarted, O{{"from", Value()}, {"resume_mode", "fresh"}});
    add(run, K::kRunReady, O{{"rank", 0}});
  };
  const TrialConfig config{.experiment = "1", .argv = {"x"}, .storage = "/data", .max_restarts = 5};
  add(0, K::kTrialCreated, O{{"config", ToValue(config)}, {"parent", Value()}});
  start(1);
  add(1, K::kPauseRequested, O{{"deadline_ms", 1000}});
  add(1, K::kPreemptAcknowledged, O{});
  add(1, K::kRunExited, O{{"code", 0}});
  add(0, K::kActivated, O{{"from", ""}});
  start(2);
  add(2, K::kRunExited, O{{"code", 0}, {"signal", 9}});
  start(3);
  add(3, K::kPauseRequested, O{{"deadline_ms", 1000}});
  add(3, K::kPreemptAcknowledged, O{});
  add(3, K::kActivated, O{{"from", ""}});
  add(3, K::kRunExited, O{{"code", 0}});
  start(4);
  add(4, K::kRunExited, O{{"code", 0}, {"lost", true}});
  start(5);
  add(5, K::kCancelRequested, O{{"deadline_ms", 1000}});
  add(5, K::kPreemptAcknowledged, O{});
  add(5, K::kRunExited, O{{"code", 0}});
  add(0, K::kActivated, O{{"from", ""}});
  start(6);
  add(6, K::kRunExited, O{{"code", 0}});
  add(0, K::kActivated, O{{"from", ""}});
  start(7);
  const Status appended = catalog().events().Append(events);
  ASSERT_TRUE(appended.ok()) << appended.ToString();
  const auto runs = catalog().trials().Runs("1");
  ASSERT_TRUE(runs.ok()) << runs.status().ToString();
  std::vector<std::string> outcomes;
  for (const RunRow& run : *runs) outcomes.push_back(run.outcome);
  EXPECT_THAT(outcomes,
              ElementsAre("paused", "failed", "paused", "lost", "canceled", "completed", ""));
}

TEST_P(CatalogConformance, LogsAreReadByPagesFiltersAndTail) {
  Reopen();
  CatalogLogs& logs = catalog().logs();
  std::vector<std::string> told;
  logs.OnAppend([&](const std::string& trial) { told.push_back(trial); });
  std::uint64_t offset = 0;
  for (int i = 0; i < 300; ++i) {
    const LogBatch batch{
        .trial = "1",
        .run = i < 200 ? 1u : 2u,
        .from = i == 200 ? 0 : offset,
        .next = (i == 200 ? 0 : offset) + 10,
        .lines = {Line("Line " + std::to_string(i),
                       i % 100 == 7 ? LineLevel::kError : LineLevel::kInfo, i % 4, i)}};
    offset = batch.next;
    const Status appended = logs.Append(std::vector{batch});
    ASSERT_TRUE(appended.ok()) << appended.ToString();
    if (i == 150) {
      EXPECT_TRUE(logs.Append(std::vector{batch}).Is(Code::kFailedPrecondition)) << "doubled";
    }
  }
  EXPECT_EQ(told.size(), 300u);
  EXPECT_EQ(logs.Position("1", 1).value(), 2000u);
  EXPECT_EQ(logs.Position("1", 2).value(), 1000u);
  EXPECT_EQ(logs.Position("1", 3).value(), 0u);

  std::vector<std::string> texts;
  LogQuery query{.trial = "1", .limit = 7};
  for (;;) {
    const auto page = logs.Read(query);
    ASSERT_TRUE(page.ok()) << page.status().ToString();
    for (const LogLine& line : page->lines) {
      texts.push_back(line.text);
      EXPECT_EQ(line.id, texts.size());
      EXPECT_EQ(line.run, texts.size() <= 200 ? 1u : 2u);
    }
    query.from_id = page->next_id;
    if (!page->more) break;
  }
  ASSERT_EQ(texts.size(), 300u);
  EXPECT_EQ(texts[299], "Line 299");
  EXPECT_EQ(query.from_id, 301u);
  EXPECT_THAT(logs.Read(query)->lines, IsEmpty());

  const auto errors = logs.Read({.trial = "1", .levels = {LineLevel::kError}});
  ASSERT_THAT(errors->lines, SizeIs(3));
  EXPECT_EQ(errors->lines[1].text, "Line 107");
  EXPECT_EQ(errors->next_id, 301u);
  EXPECT_THAT(logs.Read({.trial = "1", .ranks = {1, 3}})->lines, SizeIs(150));
  EXPECT_THAT(logs.Read({.trial = "1", .run = 2})->lines, SizeIs(100));
  EXPECT_THAT(logs.Read({.trial = "1", .text = "line 29"})->lines, SizeIs(11));
  EXPECT_THAT(logs.Read({.trial = "1", .from_time = 10, .to_time = 19})->lines, SizeIs(10));
  const auto tail = logs.Read({.trial = "1", .tail = true, .limit = 5});
  ASSERT_THAT(tail->lines, SizeIs(5));
  EXPECT_EQ(tail->lines.front().id, 296u);
  EXPECT_EQ(tail->lines.back().id, 300u);
  EXPECT_EQ(tail->next_id, 301u);
  const auto older = logs.Read({.trial = "1", .before_id = 296, .tail = true, .limit = 5});
  EXPECT_EQ(older->lines.back().id, 295u);
  EXPECT_THAT(logs.Read({.trial = "1", .from_id = 10, .before_id = 13})->lines, SizeIs(3));
  EXPECT_THAT(logs.Read({.trial = "none"})->lines, IsEmpty());
  EXPECT_EQ(logs.Read({.trial = "none"})->next_id, 1u);

  // Whatever a process writes can be stored and shown.
  ASSERT_TRUE(logs.Append(std::vector{LogBatch{.trial = "2",
                                               .run = 1,
                                               .next = 1,
                                               .lines = {Line(std::string("a\0\xff\xc3", 4)),
                                                         Line("<b>ü</b>"), Line("")}}})
                  .ok());
  const auto odd = logs.Read({.trial = "2"});
  ASSERT_THAT(odd->lines, SizeIs(3));
  EXPECT_TRUE(IsValidUtf8(odd->lines[0].text));
  EXPECT_EQ(odd->lines[1].text, "<b>ü</b>");
}

TEST_P(CatalogConformance, ASearchThatFindsNothingInAStretchGoesOnAtItsEnd) {
  Reopen();
  CatalogLogs& logs = catalog().logs();
  std::vector<LogBatch> batches;
  constexpr std::uint64_t kLines = 40;
  for (std::uint64_t i = 0; i < kLines; ++i) {
    LogLine line = Line(i == 1 || i == 38 ? "the needle" : "hay");
    line.from_stderr = i == 20;
    batches.push_back({.trial = "1", .run = 1, .from = i, .next = i + 1, .lines = {line}});
  }
  ASSERT_TRUE(logs.Append(batches).ok());
  // Each of the lines is a stretch of its own, and a page looks at few of them.
  LogQuery query{.trial = "1", .text = "NEEDLE", .max_blocks = 8};
  std::vector<std::uint64_t> found;
  int pages = 0;
  for (;; ++pages) {
    const auto page = logs.Read(query);
    ASSERT_TRUE(page.ok()) << page.status().ToString();
    for (const LogLine& line : page->lines) found.push_back(line.id);
    if (!page->more) break;
    ASSERT_GT(page->next_id, query.from_id);
    query.from_id = page->next_id;
  }
  EXPECT_THAT(found, ElementsAre(2, 39));
  EXPECT_GT(pages, 2);
  // Backwards.
  found.clear();
  query = {.trial = "1", .text = "needle", .tail = true, .max_blocks = 8};
  for (;;) {
    const auto page = logs.Read(query);
    ASSERT_TRUE(page.ok()) << page.status().ToString();
    for (const LogLine& line : page->lines) found.push_back(line.id);
    EXPECT_EQ(page->next_id, std::min(query.before_id, kLines + 1));
    if (!page->more) break;
    ASSERT_LT(page->previous_id, query.before_id);
    query.before_id = page->previous_id;
  }
  EXPECT_THAT(found, ElementsAre(39, 2));
  // Which stream it came from is judged before lines are counted.
  const auto errors = logs.Read({.trial = "1", .from_stderr = true, .limit = 1});
  ASSERT_THAT(errors->lines, SizeIs(1));
  EXPECT_EQ(errors->lines[0].id, 21u);
  const auto last = logs.Read({.trial = "1", .from_stderr = true, .tail = true, .limit = 1});
  ASSERT_THAT(last->lines, SizeIs(1));
  EXPECT_EQ(last->lines[0].id, 21u);
}

TEST_P(CatalogConformance, ALogThatGrowsByLinesIsKeptInFewStretches) {
  Reopen();
  CatalogLogs& logs = catalog().logs();
  constexpr std::uint64_t kLines = 64 * 64 * 2 + 30;
  std::vector<LogBatch> batches;
  for (std::uint64_t i = 0; i < kLines; ++i) {
    batches.push_back({.trial = "1",
                       .run = 1,
                       .from = i,
                       .next = i + 1,
                       .lines = {Line("line " + std::to_string(i))}});
  }
  ASSERT_TRUE(logs.Append(batches).ok());
  // Two large ones, none of the middle size, and 30 as they came.
  const auto page = logs.Read({.trial = "1", .text = "line 8190", .max_blocks = 40});
  ASSERT_TRUE(page.ok());
  ASSERT_THAT(page->lines, SizeIs(1));
  EXPECT_FALSE(page->more);
  // Nothing was lost or moved.
  std::uint64_t seen = 0;
  LogQuery query{.trial = "1", .limit = 1000};
  for (;;) {
    const auto next = logs.Read(query);
    ASSERT_TRUE(next.ok());
    for (const LogLine& line : next->lines) {
      EXPECT_EQ(line.text, "line " + std::to_string(seen));
      EXPECT_EQ(line.id, ++seen);
    }
    if (!next->more) break;
    query.from_id = next->next_id;
  }
  EXPECT_EQ(seen, kLines);
}

TEST_P(CatalogConformance, OldLogsGoByAgeAndBytes) {
  Reopen();
  CatalogLogs& logs = catalog().logs();
  const auto fill = [&](const std::string& trial, int from, int to) {
    for (int i = from; i < to; ++i) {
      ASSERT_TRUE(logs.Append(std::vector{LogBatch{
                                  .trial = trial,
                                  .run = 1,
                                  .from = static_cast<std::uint64_t>(i),
                                  .next = static_cast<std::uint64_t>(i) + 1,
                                  .lines = {Line(std::string(99, 'x'), LineLevel::kInfo, 0, i)}}})
                      .ok());
    }
  };
  fill("1", 0, 100);  // 64 lines in one block, the others by themselves
  fill("2", 0, 10);
  auto removed = logs.Retain({.max_age = std::chrono::nanoseconds(20)}, 100);
  ASSERT_TRUE(removed.ok()) << removed.status().ToString();
  EXPECT_EQ(removed->lines, 80u + 10u);
  auto page = logs.Read({.trial = "1"});
  EXPECT_EQ(page->first_id, 81u);
  EXPECT_THAT(page->lines, SizeIs(20));
  EXPECT_EQ(logs.Read({.trial = "2"})->next_id, 11u) << "numbers go on";
  fill("2", 10, 20);
  removed = logs.Retain({.max_trial_bytes = 1000}, 100);
  EXPECT_EQ(removed->bytes, 1000u);
  removed = logs.Retain({.max_bytes = 1500}, 100);
  EXPECT_EQ(removed->lines, 5u) << "the oldest of all";
  EXPECT_THAT(logs.Read({.trial = "2"})->lines, SizeIs(5));
  EXPECT_THAT(logs.Read({.trial = "1"})->lines, SizeIs(10));
  fill("1", 100, 200);
  EXPECT_EQ(logs.Read({.trial = "1"})->lines.back().id, 200u);
  removed = logs.Retain({}, 100);
  EXPECT_EQ(removed->lines, 0u);
}

TEST_P(CatalogConformance, UsersAndTokens) {
  Reopen();
  CatalogAccounts& accounts = catalog().accounts();
  const std::int64_t ada =
      accounts.CreateUser({.name = "Ada", .password_hash = "h", .role = "admin"}).value();
  EXPECT_TRUE(accounts.CreateUser({.name = "ADA"}).status().Is(Code::kAlreadyExists));
  const std::int64_t bob = accounts.CreateUser({.name = "bob", .role = "viewer"}).value();
  EXPECT_EQ(accounts.FindUser("ada")->id, ada);
  EXPECT_EQ(accounts.GetUser(ada)->password_hash, "h");
  EXPECT_TRUE(accounts.FindUser("eve").status().Is(Code::kNotFound));
  EXPECT_TRUE(accounts.UpdateUser(bob, {.name = "ada"}).Is(Code::kAlreadyExists));
  ASSERT_TRUE(accounts.UpdateUser(bob, {.role = "user", .active = false}).ok());
  EXPECT_EQ(accounts.FindUser("Bob")->role, "user");
  EXPECT_FALSE(accounts.FindUser("Bob")->active);
  EXPECT_TRUE(accounts.UpdateUser(99, {.role = "x"}).Is(Code::kNotFound));
  EXPECT_THAT(accounts.ListUsers().value(), SizeIs(2));

  const std::int64_t minute = 60'000'000'000;
  const std::int64_t token =
      accounts.AddToken({.hash = "a", .user = ada, .label = "laptop"}).value();
  EXPECT_TRUE(accounts.AddToken({.hash = "a", .user = ada}).status().Is(Code::kAlreadyExists));
  EXPECT_FALSE(accounts.AddToken({.hash = "x", .user = 999}).ok()) << "no such user";
  ASSERT_TRUE(
      accounts.AddToken({.kind = TokenKind::kSession, .hash = "s", .user = ada, .expires = 100})
          .ok());
  ASSERT_TRUE(
      accounts.AddToken({.kind = TokenKind::kRun, .hash = "r", .trial = "1", .run = 2}).ok());
  EXPECT_EQ(accounts.FindToken("a", 5)->label, "laptop");
  EXPECT_EQ(accounts.FindToken("r", 5)->run, 2u);
  EXPECT_EQ(accounts.FindToken("r", 5)->user, 0);
  EXPECT_EQ(accounts.FindToken("s", 99)->kind, TokenKind::kSession);
  EXPECT_TRUE(accounts.FindToken("s", 100).status().Is(Code::kNotFound));
  EXPECT_THAT(accounts.ListTokens(ada).value(), SizeIs(2));
  EXPECT_THAT(accounts.ListTokens(0, TokenKind::kRun).value(), SizeIs(1));
  ASSERT_TRUE(accounts.TouchToken(token, minute).ok());
  ASSERT_TRUE(accounts.TouchToken(token, minute + 5).ok());
  EXPECT_EQ(accounts.FindToken("a", 5)->last_used, minute);
  ASSERT_TRUE(accounts.DeleteExpiredTokens(100).ok());
  EXPECT_THAT(accounts.ListTokens(0).value(), SizeIs(2));

  for (const std::int64_t user : {ada, bob}) {
    for (const TokenKind kind : {TokenKind::kSession, TokenKind::kUser}) {
      const std::string hash = fmt::format("{} {}", user, TokenKindName(kind));
      ASSERT_TRUE(accounts.AddToken({.kind = kind, .hash = hash, .user = user}).ok());
    }
  }
  ASSERT_TRUE(accounts.UpdateUser(bob, {.role = "viewer", .active = true}).ok());
  EXPECT_THAT(accounts.ListTokens(bob).value(), SizeIs(2));
  ASSERT_TRUE(accounts.UpdateUser(bob, {.password_hash = "new"}).ok());
  EXPECT_THAT(accounts.ListTokens(bob, TokenKind::kSession).value(), SizeIs(0));
  EXPECT_THAT(accounts.ListTokens(bob).value(), SizeIs(1));
  ASSERT_TRUE(accounts.UpdateUser(bob, {.active = false}).ok());
  EXPECT_THAT(accounts.ListTokens(bob).value(), SizeIs(0));
  EXPECT_THAT(accounts.ListTokens(ada).value(), SizeIs(3));

  ASSERT_TRUE(accounts.DeleteUser(ada).ok());
  EXPECT_TRUE(accounts.FindToken("a", 5).status().Is(Code::kNotFound)) << "goes with its user";
  EXPECT_TRUE(accounts.FindToken("r", 5).ok());
}

TEST_P(CatalogConformance, WhatIsToldOfAnExperimentIsQueuedWithItsChangeOrNotAtAll) {
  Reopen();
  CatalogWebhooks& webhooks = catalog().webhooks();
  const std::int64_t hook = webhooks.Create({.url = "http://x", .secret = "s"}).value();
  const std::int64_t id = catalog().experiments().Create({.uuid = "u", .state = "QUEUED"}).value();
  ExperimentChange change;
  change.state = "COMPLETED";
  change.deliveries = {{.webhook = hook, .key = "experiment.1.5.COMPLETED", .payload = "done"}};
  EXPECT_TRUE(catalog().experiments().Update(id + 1, change).Is(Code::kNotFound));
  EXPECT_THAT(webhooks.Due(1).value(), IsEmpty());
  ExperimentChange refused = change;
  refused.deliveries.front().webhook = hook + 1;
  EXPECT_FALSE(catalog().experiments().Update(id, refused).ok());
  EXPECT_EQ(catalog().experiments().Get(id)->state, "QUEUED");
  ASSERT_TRUE(catalog().experiments().Update(id, change).ok());
  EXPECT_EQ(catalog().experiments().Get(id)->state, "COMPLETED");
  const auto due = webhooks.Due(1).value();
  ASSERT_THAT(due, SizeIs(1));
  EXPECT_EQ(due[0].payload, "done");
  EXPECT_GT(due[0].created, 0);
}

TEST_P(CatalogConformance, WebhooksAreToldOnceEachWhateverIsRepeated) {
  Reopen();
  CatalogWebhooks& webhooks = catalog().webhooks();
  const std::int64_t hook =
      webhooks.Create({.url = "http://x", .secret = "s", .triggers = Value::List{"COMPLETED"}})
          .value();
  EXPECT_EQ(webhooks.Get(hook)->triggers, Value(Value::List{"COMPLETED"}));
  EXPECT_EQ(webhooks.Cursor().value(), 0u);
  const std::vector<Delivery> two = {{.webhook = hook, .key = "7", .payload = "a"},
                                     {.webhook = hook, .key = "8", .payload = "b"}};
  ASSERT_TRUE(webhooks.Enqueue(two, 8).ok());
  ASSERT_TRUE(webhooks.Enqueue(two, 8).ok());
  EXPECT_EQ(webhooks.Cursor().value(), 8u);
  auto due = webhooks.Due(1).value();
  ASSERT_THAT(due, SizeIs(2));
  EXPECT_EQ(due[0].payload, "a");
  ASSERT_TRUE(webhooks.Delivered(due[0].id, "200").ok());
  ASSERT_TRUE(webhooks.Failed(due[1].id, "refused", 50).ok());
  EXPECT_THAT(webhooks.Due(49).value(), IsEmpty());
  EXPECT_EQ(webhooks.Due(50).value().at(0).attempts, 1u);
  ASSERT_TRUE(webhooks.SetActive(hook, false).ok());
  EXPECT_THAT(webhooks.Due(50).value(), IsEmpty());
  ASSERT_TRUE(webhooks.SetActive(hook, true).ok());
  ASSERT_TRUE(webhooks.Failed(due[1].id, "refused", 0).ok());
  const auto page = webhooks.Deliveries(hook, 0, 10);
  EXPECT_EQ(page->total, 2u);
  EXPECT_EQ(page->items[0].state, DeliveryState::kFailed);
  EXPECT_EQ(page->items[1].message, "200");
  ASSERT_TRUE(webhooks.Enqueue(std::vector<Delivery>{}, 9).ok());
  EXPECT_EQ(webhooks.Cursor().value(), 9u);
  ASSERT_TRUE(webhooks.Delete(hook).ok());
  EXPECT_TRUE(webhooks.Get(hook).status().Is(Code::kNotFound));
  EXPECT_EQ(webhooks.Deliveries(hook, 0, 10)->total, 0u);
}

TEST_P(CatalogConformance, Settings) {
  Reopen();
  EXPECT_EQ(catalog().GetSetting("a").value(), std::nullopt);
  ASSERT_TRUE(catalog().SetSetting("a/1", "x").ok());
  ASSERT_TRUE(catalog().SetSetting("a/1", "ÿ\n").ok());
  ASSERT_TRUE(catalog().SetSetting("b", "").ok());
  Reopen();
  EXPECT_EQ(catalog().GetSetting("a/1").value(), "ÿ\n");
  EXPECT_EQ(catalog().GetSetting("b").value(), "");
  EXPECT_THAT(catalog().ListSettings("a/").value(), SizeIs(1));
  ASSERT_TRUE(catalog().DeleteSetting("a/1").ok());
  EXPECT_EQ(catalog().GetSetting("a/1").value(), std::nullopt);
  EXPECT_FALSE(catalog().Describe().value().empty());
}

}  // namespace
}  // namespace cairn
