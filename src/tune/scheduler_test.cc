#include "tune/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "format/json.h"
#include "tune/score.h"
#include "tune/test_simulation.h"

namespace cairn::tune {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr auto kContinue = TrialAction::kContinue;
constexpr auto kStop = TrialAction::kStop;
constexpr auto kPause = TrialAction::kPause;

Value Json(std::string_view text) { return DecodeJson(text).value(); }

Value Report(const Value& score, int iteration) {
  Value::Object result{{"training_iteration", iteration}};
  if (!score.is_null()) result["score"] = score;
  return result;
}

struct Row {
  std::string trial;
  int iteration;
  Value score;  // null: the report has none
  TrialAction expected;
};

void Play(Scheduler& scheduler, const std::vector<Row>& rows, bool negate = false) {
  std::set<std::string> added;
  for (const Row& row : rows) {
    if (added.insert(row.trial).second) {
      ASSERT_TRUE(scheduler.OnTrialAdd(row.trial, Value::Object{}).ok());
    }
    Value score = row.score;
    if (negate && score.is_number()) score = -score.AsDouble();
    const Result<Decision> decision = scheduler.OnResult(row.trial, Report(score, row.iteration));
    ASSERT_TRUE(decision.ok()) << decision.status().ToString();
    EXPECT_EQ(static_cast<int>(decision->action), static_cast<int>(row.expected))
        << row.trial << " at " << row.iteration;
  }
}

TEST(SchedulerTest, WhatATrialReportedBeforeItBeganAnewIsForgotten) {
  const std::vector<std::unique_ptr<Scheduler>> all = [] {
    std::vector<std::unique_ptr<Scheduler>> made;
    const auto add = [&](std::string_view text) {
      made.push_back(MakeScheduler(Json(text)).value());
      made.push_back(MakeScheduler(Json(text)).value());
    };
    add(R"({"name": "asha", "metric": "score", "mode": "max", "max_t": 8, "reduction_factor": 2})");
    add(R"({"name": "median", "metric": "score", "mode": "max", "time_attr": "training_iteration",
            "grace_period": 1, "min_samples_required": 1})");
    add(R"({"name": "pbt", "metric": "score", "mode": "max", "time_attr": "training_iteration",
            "perturbation_interval": 1, "hyperparam_mutations": {"lr": [1, 2]}})");
    return made;
  }();
  for (std::size_t i = 0; i < all.size(); i += 2) {
    Scheduler& begun_anew = *all[i];
    Scheduler& never_before = *all[i + 1];
    for (Scheduler* one : {&begun_anew, &never_before}) {
      for (const char* id : {"a", "b"}) {
        ASSERT_TRUE(one->OnTrialAdd(id, Value::Object{{"lr", 1}}).ok());
      }
      ASSERT_TRUE(one->OnResult("b", Report(5, 1)).ok());
    }
    ASSERT_TRUE(begun_anew.OnResult("a", Report(9, 1)).ok());
    ASSERT_TRUE(begun_anew.OnResult("a", Report(9, 2)).ok());
    ASSERT_TRUE(begun_anew.OnError("a").ok());
    ASSERT_TRUE(begun_anew.OnRestart("a").ok());
    for (Scheduler* one : {&begun_anew, &never_before}) {
      ASSERT_TRUE(one->OnResult("a", Report(6, 1)).ok());
    }
    EXPECT_EQ(EncodeJson(begun_anew.Save()), EncodeJson(never_before.Save()));
    EXPECT_TRUE(begun_anew.Check(Value::Object{{"score", 1}}).Is(Code::kInvalidArgument));
    EXPECT_TRUE(begun_anew.OnRestart("nobody").Is(Code::kNotFound));
  }
}

AshaOptions Asha(double max_t, double reduction_factor, bool promote = false) {
  return {.score = {.metric = "score"},
          .max_t = max_t,
          .reduction_factor = reduction_factor,
          .promote = promote};
}

// Rungs at 1, 2, 4, 8; half of those that come to a rung may go on. The comment is what the rung
// holds before the row and the value that a trial has to reach: halfway in the sorted scores, in
// proportion.
const std::vector<Row> kTable = {
    {"a", 1, 10, kContinue},   // rung 1: empty
    {"b", 1, 5, kStop},        // 10                 needs 10
    {"c", 1, 7, kStop},        // 5 10               needs 7.5
    {"d", 1, 7, kContinue},    // 5 7 10             needs 7; a tie goes on
    {"e", 1, kNan, kStop},     // 5 7 7 10           needs 7; NaN is worse than all
    {"f", 1, {}, kContinue},   // no metric: nothing is compared
    {"f", 2, 8, kContinue},    // rung 2: empty
    {"a", 2, 9, kContinue},    // 8                  needs 8
    {"d", 2, 8.5, kContinue},  // 8 9                needs 8.5
    {"g", 1, 7, kContinue},    // 5 7 7 10           needs 7; the NaN of e does not count
    {"g", 2, 8.4, kStop},      // 8 8.5 9            needs 8.5
    {"a", 3, 1, kContinue},    // no rung between 2 and 4
    {"a", 4, 3, kContinue},    // rung 4: empty
    {"d", 5, 2, kStop},        // 3                  needs 3; the first report at or after the rung
    {"f", 4, 3, kContinue},    // 2 3                needs 2.5
    {"a", 8, 100, kStop},      // max_t
    {"h", 100, 1e9, kStop},    // beyond max_t at its first report
    {"f", 5, -5, kContinue},   // once compared at a rung, not again
};

TEST(AshaTest, DecidesAsComputedByHand) {
  auto scheduler = MakeAshaScheduler(Asha(8, 2)).value();
  Play(*scheduler, kTable);
}

TEST(AshaTest, MinimizingIsTheSameWithTheSignChanged) {
  AshaOptions options = Asha(8, 2);
  options.score.maximize = false;
  auto scheduler = MakeAshaScheduler(options).value();
  Play(*scheduler, kTable, true);
}

TEST(AshaTest, QuartersWithGracePeriod) {
  AshaOptions options = Asha(100, 4);
  options.grace_period = 5;  // rungs 5, 20, 80
  auto scheduler = MakeAshaScheduler(options).value();
  Play(*scheduler, {
                       {"a", 4, -1000, kContinue},  // before the grace period nothing is compared
                       {"a", 5, 1, kContinue},      // rung 5: empty
                       {"b", 5, 2, kContinue},      // 1              needs 1
                       {"c", 5, 3, kContinue},      // 1 2            needs 1.75
                       {"d", 5, 4, kContinue},      // 1 2 3          needs 2.5
                       {"e", 5, 3.2, kStop},        // 1 2 3 4        needs 3.25
                       {"f", 5, 3.2, kContinue},    // 1 2 3 3.2 4    needs 3.2
                   });
}

TEST(AshaTest, LargeIntegersAreComparedExactly) {
  auto scheduler = MakeAshaScheduler(Asha(8, 2)).value();
  const std::int64_t big = (std::int64_t{1} << 53) + 1;  // as a double it would be 2^53
  Play(*scheduler, {{"a", 1, big, kContinue}, {"b", 1, big - 1, kStop}, {"c", 1, big, kContinue}});
  auto largest = MakeAshaScheduler(Asha(8, 2)).value();
  const std::uint64_t top = std::numeric_limits<std::uint64_t>::max();
  Play(*largest, {{"a", 1, top, kContinue}, {"b", 1, top - 1, kStop}, {"c", 1, top, kContinue}});
}

TEST(AshaTest, NestedMetricsAreFound) {
  AshaOptions options = Asha(8, 2);
  options.score.metric = "val/acc";
  auto scheduler = MakeAshaScheduler(options).value();
  for (const std::string trial : {"a", "b"}) ASSERT_TRUE(scheduler->OnTrialAdd(trial, {}).ok());
  EXPECT_EQ(
      scheduler->OnResult("a", Json(R"({"training_iteration": 1, "val": {"acc": 0.5}})"))->action,
      kContinue);
  EXPECT_EQ(
      scheduler->OnResult("b", Json(R"({"training_iteration": 1, "val": {"acc": 0.4}})"))->action,
      kStop);
}

TEST(AshaTest, PromotesAsComputedByHand) {
  // Rungs at 1, 2 (and 4 = max_t). Of n trials at a rung the best n/2 go on.
  auto scheduler = MakeAshaScheduler(Asha(4, 2, true)).value();
  std::vector<std::string> pending = {"a", "b", "c", "d"};
  std::vector<std::string> paused;
  for (const std::string& trial : pending) ASSERT_TRUE(scheduler->OnTrialAdd(trial, {}).ok());
  auto choose = [&](bool more) {
    const Choice choice = scheduler->ChooseTrialToRun({pending, paused, more}).value();
    std::erase(pending, choice.trial);
    std::erase(paused, choice.trial);
    return (choice.kind == Choice::Kind::kStop ? "stop " : "") + choice.trial;
  };
  auto report = [&](const std::string& trial, int iteration, double score) {
    const Decision decision = scheduler->OnResult(trial, Report(score, iteration)).value();
    if (decision.action == kPause) paused.push_back(trial);
    return decision.action;
  };
  EXPECT_EQ(choose(false), "a");
  EXPECT_EQ(choose(true), "b");
  EXPECT_EQ(report("a", 1, 3), kPause);
  EXPECT_EQ(choose(true), "c");  // rung 1: a3, none of one
  EXPECT_EQ(report("b", 1, 5), kPause);
  EXPECT_EQ(choose(true), "b");  // b5 a3: the best of two
  EXPECT_EQ(report("c", 1, 4), kPause);
  EXPECT_EQ(choose(true), "d");  // b5 c4 a3: one of three, b has gone on
  EXPECT_EQ(report("b", 2, 5), kPause);
  EXPECT_EQ(choose(true), "");  // rung 2: b5, none of one
  EXPECT_EQ(report("d", 1, 6), kPause);
  EXPECT_EQ(choose(true), "d");  // rung 1: d6 b5 c4 a3: two of four
  EXPECT_EQ(report("d", 2, 7), kPause);
  EXPECT_EQ(choose(false), "d");  // rung 2: d7 b5: the best of two
  EXPECT_EQ(report("d", 3, 7), kContinue);
  EXPECT_EQ(choose(true), "");
  EXPECT_EQ(report("d", 4, 8), kStop);  // max_t
  EXPECT_EQ(choose(false), "stop a");   // nothing can change any more
  EXPECT_EQ(choose(false), "stop c");
  EXPECT_EQ(choose(false), "stop b");
  EXPECT_EQ(choose(false), "");
}

TEST(AshaTest, AnInterruptedTrialIsNotOneThatWaitsForItsPromotion) {
  auto scheduler = MakeAshaScheduler(Asha(4, 2, true)).value();
  const std::vector<std::string> all = {"a"};
  ASSERT_TRUE(scheduler->OnTrialAdd("a", {}).ok());
  EXPECT_EQ(scheduler->ChooseTrialToRun({all, {}, false})->trial, "a");
  // The tuner ended and came back: "a" was running, so it runs again.
  EXPECT_EQ(scheduler->ChooseTrialToRun({{}, all, false})->trial, "a");
  EXPECT_EQ(scheduler->OnResult("a", Report(1, 1))->action, kPause);
  EXPECT_EQ(scheduler->ChooseTrialToRun({{}, all, true})->kind, Choice::Kind::kNone);
}

TEST(AshaTest, BracketsAreDrawnAndBeginLater) {
  AshaOptions options = Asha(16, 4);
  options.brackets = 2;  // rungs 1 4 16 and 4 16
  auto scheduler = MakeAshaScheduler(options).value();
  int stopped = 0;
  const int trials = 1000;
  for (int i = 0; i < trials; ++i) {
    const std::string trial = "t" + std::to_string(i);
    ASSERT_TRUE(scheduler->OnTrialAdd(trial, {}).ok());
    if (scheduler->OnResult(trial, Report(-i, 1))->action == kStop)
      ++stopped;  // each worse than all before
  }
  // The first bracket is e times as likely as the second.
  EXPECT_NEAR(stopped, trials * M_E / (1 + M_E), 45);
}

TEST(AshaTest, MistakesAreRefused) {
  for (const auto& [text, part] : std::vector<std::pair<std::string, std::string>>{
           {R"({"name": "asha"})", "metric"},
           {R"({"name": "asha", "metric": "m", "max_t": 0})", "max_t"},
           {R"({"name": "asha", "metric": "m", "max_t": 5, "grace_period": 6})", "grace_period"},
           {R"({"name": "asha", "metric": "m", "reduction_factor": 1})", "reduction_factor"},
           {R"({"name": "asha", "metric": "m", "brackets": 0})", "brackets"},
           {R"({"name": "asha", "metric": "m", "brackets": 5})", "at most 4"},
           {R"({"name": "asha", "metric": "m", "mode": "maximum"})", "min or max"},
           {R"({"name": "asha", "metric": "m", "max_tt": 3})", "max_tt"},
           {R"({"name": "asha", "metric": "m", "max_t": "3"})", "a number"},
           {R"({"name": "pbt", "metric": "m", "quantile_fraction": 0.6})", "quantile_fraction"},
           {R"({"name": "pbt", "metric": "m", "hyperparam_mutations": {"a": {"lr": 3}}})",
            "\"lr\""},
           {R"({"name": "pbt", "metric": "m", "hyperparam_mutations": {"lr": []}})", "empty"},
           {R"({"name": "pbt", "metric": "m", "perturbation_factors": []})",
            "perturbation_factors"},
           {R"({"name": "median", "metric": "m", "min_samples_required": 0})",
            "min_samples_required"},
           {R"({"name": "hyperband"})", "none is called"},
           {R"([])", "must be an object"}}) {
    const Status status = MakeScheduler(Json(text)).status();
    EXPECT_TRUE(status.Is(Code::kInvalidArgument)) << text;
    EXPECT_NE(status.message().find(part), std::string_view::npos) << text << "\n"
                                                                   << status.message();
  }
  auto scheduler = MakeScheduler(Json(R"({"name": "asha", "metric": "m", "mode": "min"})")).value();
  ASSERT_TRUE(scheduler->OnTrialAdd("a", {}).ok());
  EXPECT_TRUE(scheduler->OnTrialAdd("a", {}).Is(Code::kAlreadyExists));
  EXPECT_TRUE(scheduler->OnResult("b", Report(1, 1)).status().Is(Code::kNotFound));
  EXPECT_TRUE(scheduler->OnResult("a", Json(R"({"m": 1})")).status().Is(Code::kInvalidArgument));
  EXPECT_TRUE(scheduler->OnResult("a", Json(R"({"m": "good", "training_iteration": 1})"))
                  .status()
                  .Is(Code::kInvalidArgument));
}

TEST(FifoTest, RunsInOrder) {
  auto scheduler = MakeScheduler(Json(R"({"name": "fifo"})")).value();
  const std::vector<std::string> pending = {"b", "a"};
  const std::vector<std::string> paused = {"c"};
  EXPECT_EQ(scheduler->ChooseTrialToRun({pending, paused, true})->trial, "b");
  EXPECT_EQ(scheduler->ChooseTrialToRun({{}, paused, true})->trial, "c");
  EXPECT_EQ(scheduler->ChooseTrialToRun({{}, {}, false})->kind, Choice::Kind::kNone);
}

MedianStoppingOptions MedianRule() {
  return {.score = {.metric = "score"}, .grace_period = 2, .min_samples_required = 2};
}

TEST(MedianTest, StopsWhatIsWorseThanTheMedianOfTheRunningMeans) {
  auto scheduler = MakeMedianStoppingScheduler(MedianRule()).value();
  Play(*scheduler, {
                       {"a", 1, 100, kContinue},  // in the grace period: counts in no mean
                       {"a", 2, 4, kContinue},    // nobody to compare with
                       {"a", 3, 6, kContinue},    // mean of a at 3: 5
                       {"b", 2, 1, kContinue},    // one other
                       {"b", 3, 2, kContinue},    // mean of b at 3: 1.5
                       {"c", 2, 2, kStop},        // at 2: a 4, b 1 → 2.5
                       {"d", 2, 2.5, kContinue},  // at 2: a 4, b 1, c 2 → 2
                       {"d", 3, 1, kStop},        // at 3: a 5, b 1.5 → 3.25; its best is 2.5
                       {"e", 3, kNan, kStop},     // at 3: a 5, b 1.5, d 1.75 → 1.75
                   });
  auto minimizing = MedianRule();
  minimizing.score.maximize = false;
  auto other = MakeMedianStoppingScheduler(minimizing).value();
  Play(*other, {{"a", 2, 1, kContinue},
                {"b", 2, 2, kContinue},
                {"c", 2, 3, kStop},
                {"d", 2, 1.5, kContinue}});
}

TEST(MedianTest, WithoutHardStopThePoorWaitForTheOthers) {
  auto options = MedianRule();
  options.hard_stop = false;
  auto scheduler = MakeMedianStoppingScheduler(options).value();
  for (const std::string trial : {"a", "b", "c", "d"})
    ASSERT_TRUE(scheduler->OnTrialAdd(trial, {}).ok());
  ASSERT_TRUE(scheduler->OnResult("a", Report(5, 2)).ok());
  ASSERT_TRUE(scheduler->OnResult("b", Report(6, 2)).ok());
  EXPECT_EQ(scheduler->OnResult("c", Report(1, 2))->action, kPause);  // d waits
  const std::vector<std::string> pending = {"d"};
  const std::vector<std::string> paused = {"c"};
  EXPECT_EQ(scheduler->ChooseTrialToRun({pending, paused, true})->trial, "d");
  EXPECT_EQ(scheduler->ChooseTrialToRun({{}, paused, true})->trial, "c");
  EXPECT_EQ(scheduler->OnResult("c", Report(1, 2))->action, kContinue);  // nobody else waits
}

// --- PBT: a population whose best hyperparameter is known
// -----------------------------------------

constexpr std::string_view kMutations =
    R"({"lr": {"__domain__": "loguniform", "lower": 1e-4, "upper": 1.0}, "width": [16, 32, 64, 128], "opt": {"momentum": {"__domain__": "uniform", "lower": 0.1, "upper": 0.9}}})";

PbtOptions Pbt(bool synch = false) {
  return {.score = {.metric = "score", .maximize = true, .time_attr = "training_iteration"},
          .perturbation_interval = 3,
          .hyperparam_mutations = Json(kMutations),
          .synch = synch,
          .seed = 11};
}

double OffBy(const Value& config) {
  return std::abs(std::log10(config.Find("lr")->AsDouble()) + 2);
}

/// The better the nearer the learning rate is to 0.01, at any iteration.
Value Quality(int, int, const Value& config) { return -OffBy(config); }

Simulation Population(bool synch, int trials = 12, int places = 12) {
  Simulation simulation;
  simulation.make = [=] { return MakePbtScheduler(Pbt(synch)).value(); };
  simulation.score = Quality;
  simulation.config = [](int i) {
    return Value(Value::Object{
        {"lr", std::pow(10, -4 + i / 3.0)}, {"width", 16 << (i % 4)}, {"fixed", "x"}});
  };
  simulation.trials = trials;
  simulation.places = places;
  simulation.iterations = 40;
  return simulation;
}

TEST(PbtTest, ThePopulationMovesTowardsTheBest) {
  for (const bool synch : {false, true}) {
    const Simulation::Outcome outcome = Population(synch).Run();
    ASSERT_GT(outcome.log.size(), 10U);
    double distance = 0;
    for (const Simulation::Trial& trial : outcome.trials) {
      EXPECT_TRUE(trial.ended);
      EXPECT_EQ(trial.config.Find("fixed")->if_string()[0], "x");
      distance += OffBy(trial.config) / static_cast<double>(outcome.trials.size());
    }
    EXPECT_LT(distance, 0.6) << synch;  // it began with 0.97
  }
}

TEST(PbtTest, CopiesGoFromTheBestQuarterToTheWorst) {
  // Replays the synchronous population by the log alone: between two meetings all have the same
  // iteration, so the order of the scores is the order of the learning rates' distances.
  const Simulation::Outcome outcome = Population(true).Run();
  for (const Value& line : outcome.log) {
    EXPECT_LT(line.Find("score")->AsDouble(), line.Find("donor_score")->AsDouble());
    EXPECT_EQ(std::fmod(line.Find("time")->AsDouble(), 3), 0);
    EXPECT_EQ(*line.Find("time"), *line.Find("donor_time"));
  }
  std::map<double, std::set<std::string>> worst;
  std::map<double, std::set<std::string>> best;
  for (const Value& line : outcome.log) {
    worst[line.Find("time")->AsDouble()].insert(*line.Find("trial")->if_string());
    best[line.Find("time")->AsDouble()].insert(*line.Find("donor")->if_string());
  }
  for (const auto& [time, trials] : worst) {
    EXPECT_EQ(trials.size(), 3U) << time;  // a quarter of 12
    for (const std::string& trial : best[time]) EXPECT_FALSE(trials.contains(trial));
  }
  EXPECT_EQ(worst.size(), 13U);  // 3, 6, … 39
}

TEST(PbtTest, NewHyperparametersAreNearTheDonorsOrDrawnAnew) {
  int resampled = 0;
  int perturbed = 0;
  std::map<std::string, Value> configs;
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    Simulation simulation = Population(false);
    simulation.seed = seed;
    for (const Value& line : simulation.Run().log) {
      const Value& now = *line.Find("new_config");
      const double lr = now.Find("lr")->AsDouble();
      // The donor's score tells its learning rate up to the side of 0.01.
      const double off = -line.Find("donor_score")->AsDouble();
      bool near = false;
      for (const double exponent : {-2 + off, -2 - off}) {
        for (const double factor : {0.8, 1.2}) {
          if (std::abs(lr / (std::pow(10, exponent) * factor) - 1) < 1e-9) near = true;
        }
      }
      near ? ++perturbed : ++resampled;
      EXPECT_TRUE(near || (lr >= 1e-4 && lr <= 1)) << lr;
      const std::set<std::int64_t> widths = {16, 32, 64, 128};
      EXPECT_TRUE(widths.contains(now.Find("width")->AsInt()));
      const double momentum = now.Find("opt/momentum")->AsDouble();
      EXPECT_TRUE(momentum > 0 && std::isfinite(momentum));
    }
  }
  const double share = static_cast<double>(resampled) / (resampled + perturbed);
  EXPECT_GT(resampled + perturbed, 300);
  EXPECT_NEAR(share, 0.25, 0.07);
}

TEST(PbtTest, APopulationLargerThanItsPlacesSharesThem) {
  for (const bool synch : {false, true}) {
    const Simulation::Outcome outcome = Population(synch, 9, 2).Run();
    for (const Simulation::Trial& trial : outcome.trials) EXPECT_TRUE(trial.ended) << synch;
    EXPECT_GT(outcome.log.size(), 3U);
    // After the first eighteen choices every trial has had its turn.
    std::set<std::string> started;
    for (std::size_t i = 0; i < outcome.transcript.size() && started.size() < 9; ++i) {
      const std::string& line = outcome.transcript[i];
      if (line.starts_with("1 ")) started.insert(line.substr(2, 2));
      EXPECT_LT(i, 200U);
    }
  }
}

TEST(PbtTest, SynchronousPopulationsDoNotDependOnSpeed) {
  std::vector<std::vector<double>> rates;
  for (const std::uint64_t seed : {1, 2, 3}) {
    Simulation simulation = Population(true, 8, seed == 3 ? 3 : 8);
    simulation.seed = seed;
    std::vector<double> final_rates;
    for (const Simulation::Trial& trial : simulation.Run().trials)
      final_rates.push_back(trial.config.Find("lr")->AsDouble());
    rates.push_back(final_rates);
  }
  EXPECT_EQ(rates[0], rates[1]);
  EXPECT_EQ(rates[0], rates[2]);
}

TEST(PbtTest, SynchronousCopiesWaitForTheirDonors) {
  auto options = Pbt(true);
  options.quantile_fraction = 0.5;
  auto scheduler = MakePbtScheduler(options).value();
  for (const std::string trial : {"a", "b"}) {
    ASSERT_TRUE(scheduler->OnTrialAdd(trial, Json(R"({"lr": 0.1})")).ok());
  }
  ASSERT_EQ(scheduler->OnResult("a", Report(1, 3))->action, kPause);
  ASSERT_EQ(scheduler->OnResult("b", Report(2, 3))->action, kPause);
  // "a" is to become a copy of "b", which is still saving the checkpoint that is meant.
  const std::vector<std::string> worst = {"a"};
  const std::vector<std::string> best = {"b"};
  const std::vector<std::string> both = {"b", "a"};
  EXPECT_EQ(scheduler->ChooseTrialToRun({{}, worst, true})->kind, Choice::Kind::kNone);
  // And "b" does not go on before it was copied.
  EXPECT_EQ(scheduler->ChooseTrialToRun({{}, best, true})->kind, Choice::Kind::kNone);
  const Choice copy = scheduler->ChooseTrialToRun({{}, both, true}).value();
  EXPECT_EQ(copy.trial, "a");
  EXPECT_EQ(copy.donor, "b");
  EXPECT_EQ(scheduler->ChooseTrialToRun({{}, best, true})->trial, "b");
}

TEST(PbtTest, NobodyCopiesFromATrialWithoutANumber) {
  Simulation simulation = Population(false, 4, 4);
  simulation.score = [](int, int, const Value&) { return Value(kNan); };
  EXPECT_TRUE(simulation.Run().log.empty());
  auto scheduler = MakePbtScheduler(Pbt()).value();
  ASSERT_TRUE(scheduler->OnTrialAdd("a", Json(R"({"lr": 0.1})")).ok());
  EXPECT_TRUE(scheduler->OnResult("a", Report({}, 1)).status().Is(Code::kInvalidArgument));
}

TEST(PbtTest, IntegersStayIntegersAndAbsentOnesAreFilledIn) {
  auto options = Pbt();
  options.hyperparam_mutations =
      Json(R"({"n": {"__domain__": "randint", "lower": 1, "upper": 100}})");
  options.resample_probability = 0;
  auto scheduler = MakePbtScheduler(options).value();
  const Value first = scheduler->CompleteConfig("a", Json(R"({"lr": 1})"));
  ASSERT_TRUE(first.Find("n") != nullptr && first.Find("n")->is_int());
  ASSERT_TRUE(scheduler->OnTrialAdd("a", Json(R"({"n": 10})")).ok());
  ASSERT_TRUE(scheduler->OnTrialAdd("b", Json(R"({"n": 99})")).ok());
  const std::vector<std::string> both = {"a", "b"};
  const std::vector<std::string> second = {"b"};
  ASSERT_EQ(scheduler->ChooseTrialToRun({both, {}, false})->trial, "a");
  ASSERT_EQ(scheduler->ChooseTrialToRun({second, {}, true})->trial, "b");
  ASSERT_TRUE(scheduler->OnResult("a", Report(5, 3)).ok());
  EXPECT_EQ(scheduler->OnResult("b", Report(1, 3))->action, kPause);
  const Choice choice = scheduler->ChooseTrialToRun({{}, second, true}).value();
  EXPECT_EQ(choice.donor, "a");
  const Value* n = choice.config.Find("n");
  EXPECT_TRUE(*n == Value(12) || *n == Value(8)) << EncodeJson(choice.config);
}

// --- state
// ----------------------------------------------------------------------------------------

TEST(SchedulerStateTest, SavedBeforeEveryCallNothingChanges) {
  const std::vector<std::string> descriptions = {
      R"({"name": "fifo"})",
      R"({"name": "asha", "metric": "score", "max_t": 20, "reduction_factor": 2})",
      R"({"name": "asha", "metric": "score", "mode": "min", "max_t": 20, "reduction_factor": 3, "brackets": 2, "seed": 5})",
      R"({"name": "asha", "metric": "score", "max_t": 20, "reduction_factor": 2, "promote": true})",
      R"({"name": "median", "metric": "score", "time_attr": "training_iteration", "grace_period": 3})",
      R"({"name": "median", "metric": "score", "time_attr": "training_iteration", "grace_period": 3, "min_time_slice": 2, "hard_stop": false})",
      R"({"name": "pbt", "metric": "score", "time_attr": "training_iteration", "perturbation_interval": 4, "hyperparam_mutations": {"lr": [1, 2, 3]}})",
      R"({"name": "pbt", "metric": "score", "time_attr": "training_iteration", "perturbation_interval": 4, "synch": true, "hyperparam_mutations": {"lr": [1, 2, 3]}})",
  };
  for (const std::string& description : descriptions) {
    Simulation simulation;
    simulation.make = [&] { return MakeScheduler(Json(description)).value(); };
    simulation.trials = 14;
    simulation.score = [](int trial, int iteration, const Value& config) -> Value {
      if ((trial * 7 + iteration) % 11 == 0) return kNan;
      const Value* lr = config.Find("lr");
      return std::sin(trial) * 10 + iteration * 0.5 + (lr == nullptr ? 0 : lr->AsDouble());
    };
    const Simulation::Outcome plain = simulation.Run();
    simulation.restart_always = true;
    const Simulation::Outcome restarted = simulation.Run();
    EXPECT_EQ(plain.transcript, restarted.transcript) << description;
    EXPECT_EQ(EncodeJson(plain.final_state), EncodeJson(restarted.final_state)) << description;
    EXPECT_EQ(EncodeJson(plain.log), EncodeJson(restarted.log)) << description;
    for (const Simulation::Trial& trial : plain.trials)
      EXPECT_TRUE(trial.ended) << description << trial.name;
    EXPECT_GT(plain.transcript.size(), 50U);
  }
}

TEST(SchedulerStateTest, DamagedStateIsRefusedAndChangesNothing) {
  for (const std::string_view name : {"asha", "median", "pbt"}) {
    const Value description = Value::Object{{"name", std::string(name)}, {"metric", "score"}};
    auto scheduler = MakeScheduler(description).value();
    ASSERT_TRUE(scheduler->OnTrialAdd("a", Value::Object{}).ok());
    const Value good = scheduler->Save();
    EXPECT_FALSE(scheduler->Load(Value()).ok()) << name;
    for (const auto& [key, value] : *good.if_object()) {
      Value::Object without = *good.if_object();
      without.erase(key);
      EXPECT_TRUE(scheduler->Load(without).Is(Code::kCorruption)) << name << " " << key;
      without[key] = "damage";
      EXPECT_TRUE(scheduler->Load(without).Is(Code::kCorruption)) << name << " " << key;
    }
    EXPECT_EQ(scheduler->Save(), good);
  }
}

TEST(ScoreTest, QuantilesLieBetweenScoresInProportion) {
  SortedScores scores(true);
  EXPECT_FALSE(scores.IsBelowQuantile(1, 4));
  for (const int score : {40, 10, 30, 20}) scores.Add(score);
  // numpy.percentile([10, 20, 30, 40], 75) = 32.5
  EXPECT_TRUE(scores.IsBelowQuantile(32.4, 4));
  EXPECT_FALSE(scores.IsBelowQuantile(32.5, 4));
  EXPECT_TRUE(scores.IsBelowQuantile(kNan, 4));
  EXPECT_TRUE(scores.IsBelowQuantile(-std::numeric_limits<double>::infinity(), 4));
  EXPECT_FALSE(scores.IsBelowQuantile(std::numeric_limits<double>::infinity(), 4));
}

}  // namespace
}  // namespace cairn::tune
