#include "tune/tuner_record.h"

#include <gtest/gtest.h>

#include "tune/tuner_news.h"

namespace cairn::tune {
namespace {

using O = Value::Object;

Event Note(std::string trial, O body) {
  return {.trial = std::move(trial), .kind = EventKind::kNote, .body = Value(std::move(body))};
}

Event Report(std::string trial, std::int64_t at, const char* action = nullptr) {
  O body{{"steps_completed", at}, {"metrics", O{{"training_iteration", at}}}};
  if (action != nullptr) body["decision"] = O{{"action", action}};
  return {.trial = std::move(trial), .kind = EventKind::kReport, .body = Value(std::move(body))};
}

TEST(TunerRecord, ATrialGoesFromSuggestedToEnded) {
  TunerRecord record;
  ASSERT_TRUE(record.Apply(Note("", {{"what", "experiment"}, {"description", O{{"a", 1}}}})).ok());
  ASSERT_TRUE(record.Apply(Note("t", {{"what", "suggest"}, {"config", O{{"lr", 1}}}})).ok());
  EXPECT_EQ(record.pending(), std::vector<std::string>{"t"});
  ASSERT_TRUE(
      record.Apply(Note("t", {{"what", "choose"}, {"choice", O{{"kind", "run"}, {"trial", "t"}}}}))
          .ok());
  EXPECT_TRUE(record.pending().empty());
  ASSERT_TRUE(record.Apply(Report("t", 1)).ok());
  ASSERT_TRUE(record.Apply(Report("t", 2, "pause")).ok());
  EXPECT_EQ(record.Find("t")->DecidedAt(2).action, TrialAction::kPause);
  ASSERT_TRUE(record.Apply(Note("t", {{"what", "paused"}})).ok());
  EXPECT_EQ(record.paused(), std::vector<std::string>{"t"});
  ASSERT_TRUE(
      record.Apply(Note("t", {{"what", "choose"}, {"choice", O{{"kind", "run"}, {"trial", "t"}}}}))
          .ok());
  EXPECT_EQ(record.Find("t")->DecidedAt(2).action, TrialAction::kContinue);  // the pause is over
  ASSERT_TRUE(record.Apply(Report("t", 2)).ok());                            // it went back
  EXPECT_EQ(record.Find("t")->iteration, 2);
  ASSERT_TRUE(record.Apply(Note("t", {{"what", "end"}, {"error", false}})).ok());
  EXPECT_EQ(record.Find("t")->phase, TunePhase::kEnded);
}

TEST(TunerRecord, AClonedTrialCountsFromItsDonorsIteration) {
  TunerRecord record;
  for (const char* id : {"a", "b"}) {
    ASSERT_TRUE(record.Apply(Note(id, {{"what", "suggest"}, {"config", O{}}})).ok());
  }
  ASSERT_TRUE(record.Apply(Report("a", 9, "pause")).ok());
  const Choice choice{
      .kind = Choice::Kind::kRun, .trial = "a", .donor = "b", .config = O{{"lr", 2}}};
  ASSERT_TRUE(record
                  .Apply(Note("a", {{"what", "choose"},
                                    {"choice", ToValue(choice)},
                                    {"checkpoint", "c"},
                                    {"iteration", 6}}))
                  .ok());
  EXPECT_EQ(record.Find("a")->iteration, 6);
  EXPECT_EQ(record.Find("a")->donor_checkpoint, "c");
  EXPECT_EQ(record.Find("a")->config, Value(O{{"lr", 2}}));
  ASSERT_TRUE(record
                  .Apply({.trial = "a",
                          .run = 1,
                          .kind = EventKind::kCheckpointCompleted,
                          .body = O{{"generation", 1}}})
                  .ok());
  EXPECT_EQ(record.Find("a")->donor, "");
}

TEST(TunerRecord, DamageIsAnErrorAndNoTrial) {
  TunerRecord record;
  EXPECT_TRUE(record.Apply(Report("t", 1)).Is(Code::kCorruption));
  EXPECT_TRUE(record.Apply(Note("t", {{"what", "end"}})).Is(Code::kCorruption));
  ASSERT_TRUE(record.Apply(Note("t", {{"what", "suggest"}, {"config", O{}}})).ok());
  EXPECT_TRUE(
      record.Apply(Note("t", {{"what", "suggest"}, {"config", O{}}})).Is(Code::kCorruption));
  EXPECT_TRUE(record.Apply(Note("t", {{"what", "unheard of"}})).Is(Code::kUnimplemented));
}

TEST(TunerRecord, OnlyACheckpointOfALaterRunTakesTheDonorsPlace) {
  TunerRecord record;
  const auto add = [&](EventKind kind, std::uint64_t run, O body) {
    ASSERT_TRUE(
        record.Apply({.trial = "t", .run = run, .kind = kind, .body = Value(std::move(body))})
            .ok());
  };
  const auto saved = [&](std::uint64_t run) {
    add(EventKind::kCheckpointCompleted, run, {{"id", "c"}, {"generation", 2}});
  };
  ASSERT_TRUE(record.Apply(Note("t", {{"what", "suggest"}, {"config", O{{"lr", 1}}}})).ok());
  add(EventKind::kRunStarted, 1, {});
  ASSERT_TRUE(record.Apply(Report("t", 3, "pause")).ok());
  ASSERT_TRUE(record.Apply(Note("t", {{"what", "paused"}})).ok());
  ASSERT_TRUE(
      record
          .Apply(Note(
              "t", {{"what", "choose"},
                    {"choice",
                     O{{"kind", "run"}, {"trial", "t"}, {"donor", "d"}, {"config", O{{"lr", 2}}}}},
                    {"checkpoint", "d3"},
                    {"iteration", 3}}))
          .ok());
  // A worker of a killed tuner was still at it when the next tuner looked; it is found late.
  saved(1);
  EXPECT_EQ(record.Find("t")->donor, "d");
  add(EventKind::kRunStarted, 2, {});
  EXPECT_EQ(record.Find("t")->donor_checkpoint, "d3");
  saved(2);
  EXPECT_EQ(record.Find("t")->donor, "");
}

TEST(TunerRecord, ReportsHaveTheHyperparametersThatTheyWereMadeWith) {
  TunerRecord record;
  ASSERT_TRUE(record.Apply(Note("t", {{"what", "suggest"}, {"config", O{{"lr", 1}}}})).ok());
  TrialRecord trial{.id = "t"};
  for (std::int64_t at = 1; at <= 3; ++at) {
    const auto run = static_cast<std::uint64_t>(at);
    ASSERT_TRUE(
        record.Apply({.trial = "t", .run = run, .kind = EventKind::kRunStarted, .body = O{}}).ok());
    trial.reports.push_back({.steps = at, .run = run, .values = O{{"x", at}}});
    if (at == 3) break;
    const O choice{{"kind", "run"}, {"trial", "t"}, {"donor", "d"}, {"config", O{{"lr", at + 1}}}};
    ASSERT_TRUE(
        record
            .Apply(Note(
                "t",
                {{"what", "choose"}, {"choice", choice}, {"checkpoint", "c"}, {"iteration", at}}))
            .ok());
  }
  const TuneTrial& known = *record.Find("t");
  EXPECT_EQ(known.config, Value(O{{"lr", 3}}));
  const Value::List results = ResultsOf(&trial, known.former);
  EXPECT_EQ(results, (Value::List{O{{"x", 1}, {"config", O{{"lr", 1}}}},
                                  O{{"x", 2}, {"config", O{{"lr", 2}}}}, O{{"x", 3}}}));
}

TEST(TunerRecord, CountsTheTimeInWhichATunerWasAtWork) {
  TunerRecord record;
  const auto at = [&](std::int64_t time, const char* what) {
    Event event = Note("", {{"what", what}});
    event.time = time;
    ASSERT_TRUE(record.Apply(event).ok());
  };
  at(1000, "opened");
  at(1400, "stopped");
  at(9000, "opened");  // killed before; nobody was there
  at(9100, "stopped");
  at(9050, "stopped");  // the clock was set back
  at(9060, "stopped");
  EXPECT_EQ(record.worked().count(), 400 + 100 + 10);
}

}  // namespace
}  // namespace cairn::tune
