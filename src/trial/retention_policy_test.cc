#include "trial/retention_policy.h"

#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "trial/trial_record.h"

namespace cairn {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

RetainedCheckpoint Make(int step, Value score = {}, std::string trial = "t") {
  RetainedCheckpoint item{.trial = trial,
                          .id = trial + std::to_string(step),
                          .steps = step,
                          .time = step * kSecond,
                          .bytes = 100};
  if (!score.is_null()) item.metrics = Value::Object{{"m", Value::Object{{"loss", score}}}};
  return item;
}

std::set<int> Kept(const RetentionPolicy& policy, std::vector<RetainedCheckpoint> items,
                   std::int64_t now = 0, std::vector<RetainedCheckpoint> others = {}) {
  if (!items.empty()) items.back().latest = true;
  std::vector<RetainedCheckpoint> all = items;
  all.insert(all.end(), others.begin(), others.end());
  std::set<int> kept;
  for (const auto& item : items) kept.insert(static_cast<int>(item.steps));
  for (const Removal& removal : ChooseRemovals(policy, items, all, now)) {
    EXPECT_FALSE(removal.reason.empty());
    EXPECT_EQ(kept.erase(std::stoi(removal.id.substr(1))), 1u);
  }
  return kept;
}

using Set = std::set<int>;

TEST(RetentionPolicy, WithoutRulesAllStay) {
  EXPECT_EQ(Kept({}, {Make(1), Make(2), Make(3)}), (Set{1, 2, 3}));
}

TEST(RetentionPolicy, KeepsTheLastAndEveryNth) {
  std::vector<RetainedCheckpoint> items;
  for (int i = 1; i <= 10; ++i) items.push_back(Make(i));
  EXPECT_EQ(Kept({.keep_last = 2}, items), (Set{9, 10}));
  EXPECT_EQ(Kept({.keep_last = 1, .keep_every = 4}, items), (Set{4, 8, 10}));
}

TEST(RetentionPolicy, TheBestStayInEveryOrderOfArrival) {
  std::vector<int> scores = {1, 2, 3, 4, 5};
  do {
    std::vector<RetainedCheckpoint> items;
    for (std::size_t i = 0; i < scores.size(); ++i)
      items.push_back(Make(static_cast<int>(i) + 1, scores[i]));
    const Set kept = Kept({.keep_best = 2, .score = "m/loss", .maximize = false}, items);
    for (std::size_t i = 0; i < scores.size(); ++i) {
      const bool stays = scores[i] <= 2 || i + 1 == scores.size();
      EXPECT_EQ(kept.contains(static_cast<int>(i) + 1), stays);
    }
  } while (std::ranges::next_permutation(scores).found);
}

/// As a trial does it: the rules are asked after each save, and what they let go is gone.
Set KeptOneByOne(const RetentionPolicy& policy, const std::vector<int>& scores) {
  std::vector<RetainedCheckpoint> there;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    if (!there.empty()) there.back().latest = false;
    there.push_back(Make(static_cast<int>(i) + 1, scores[i]));
    there.back().latest = true;
    for (const Removal& removal : ChooseRemovals(policy, there, there, 0)) {
      std::erase_if(there, [&](const RetainedCheckpoint& one) { return one.id == removal.id; });
    }
    EXPECT_LE(there.size(), 5u) << "the four best, and the latest";
  }
  Set kept;
  for (const RetainedCheckpoint& one : there) kept.insert(static_cast<int>(one.steps));
  return kept;
}

TEST(RetentionPolicy, OfEightTheFourBestStayInAllOrdersOfArrival) {
  for (const bool maximize : {false, true}) {
    const RetentionPolicy policy{.keep_best = 4, .score = "m/loss", .maximize = maximize};
    std::vector<int> scores = {1, 2, 3, 4, 5, 6, 7, 8};
    int orders = 0;
    do {
      Set wanted;
      for (int i = 0; i < 8; ++i) {
        const bool good = maximize ? scores[i] > 4 : scores[i] <= 4;
        if (good || i == 7) wanted.insert(i + 1);
      }
      ASSERT_EQ(KeptOneByOne(policy, scores), wanted) << ::testing::PrintToString(scores);
      ++orders;
    } while (std::ranges::next_permutation(scores).found);
    EXPECT_EQ(orders, 40320);
  }
}

TEST(RetentionPolicy, NanAndMissingRankBelowEveryNumberInBothOrders) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const bool maximize : {true, false}) {
    EXPECT_EQ(Kept({.keep_best = 1, .score = "m/loss", .maximize = maximize},
                   {Make(1, nan), Make(2, -1e300), Make(3), Make(4, nan)}),
              (Set{2, 4}));
  }
  // Integers beyond 2^53 are compared exactly; of equal ones the later wins.
  EXPECT_EQ(Kept({.keep_best = 1, .score = "m/loss"},
                 {Make(1, std::int64_t{9007199254740993}), Make(2, std::int64_t{9007199254740992}),
                  Make(3, 0)}),
            (Set{1, 3}));
  EXPECT_EQ(Kept({.keep_best = 1, .score = "m/loss"}, {Make(1, 7), Make(2, 7), Make(3, 0)}),
            (Set{2, 3}));
}

TEST(RetentionPolicy, PinnedPendingAndNeededOnesStay) {
  auto pinned = Make(1);
  pinned.pinned = true;
  auto pending = Make(2);
  pending.awaits_score = true;
  auto scored = Make(3, 0.5);
  scored.awaits_score = true;
  auto needed = Make(4);
  needed.needed = true;
  EXPECT_EQ(Kept({.keep_best = 1, .score = "m/loss"},
                 {pinned, pending, scored, needed, Make(5, 0.9), Make(6)}),
            (Set{1, 2, 4, 5, 6}));
}

TEST(RetentionPolicy, BestOfTheExperimentCountsAllTrials) {
  EXPECT_EQ(Kept({.experiment_best = 2, .score = "m/loss"}, {Make(1, 5), Make(2, 3), Make(3, 1)}, 0,
                 {Make(1, 9, "u"), Make(2, 4, "u")}),
            (Set{1, 3}));
}

TEST(RetentionPolicy, OldOnesGoAndSoDoThoseOverTheBudget) {
  std::vector<RetainedCheckpoint> items;
  for (int i = 1; i <= 6; ++i) items.push_back(Make(i, i == 2 ? 9 : 1));
  EXPECT_EQ(Kept({.max_age = std::chrono::seconds(2)}, items, 7 * kSecond), (Set{5, 6}));
  EXPECT_EQ(Kept({.max_age = std::chrono::milliseconds::max()}, items, 7 * kSecond),
            (Set{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(Kept({.max_bytes = 300}, items), (Set{4, 5, 6}));
  EXPECT_EQ(Kept({.keep_last = 6, .keep_best = 1, .score = "m/loss", .max_bytes = 300}, items),
            (Set{2, 5, 6}));
  EXPECT_EQ(Kept({.max_bytes = 1}, items), (Set{6}));  // the latest stays
}

TEST(RetentionPolicy, ABudgetOfTheExperimentTakesTheOldestOfAllTrials) {
  // Each has 100 bytes and the time of its number; the other trial's latest is its sixth.
  const std::vector<RetainedCheckpoint> own{Make(1, 1), Make(3, 9), Make(5, 1)};
  std::vector<RetainedCheckpoint> others{Make(2, 1, "u"), Make(4, 1, "u"), Make(6, 1, "u")};
  others.back().latest = true;
  EXPECT_EQ(Kept({.experiment_bytes = 600}, own, 0, others), (Set{1, 3, 5}));
  EXPECT_EQ(Kept({.experiment_bytes = 500}, own, 0, others), (Set{3, 5}));
  EXPECT_EQ(Kept({.experiment_bytes = 400}, own, 0, others), (Set{3, 5}));  // the other's second
  EXPECT_EQ(Kept({.experiment_bytes = 300}, own, 0, others), (Set{5}));
  EXPECT_EQ(Kept({.experiment_bytes = 1}, own, 0, others), (Set{5}));  // the latest stays
  EXPECT_EQ(Kept({.keep_last = 3, .keep_best = 1, .score = "m/loss", .experiment_bytes = 300}, own,
                 0, others),
            (Set{3, 5}));
}

TEST(RetentionPolicy, ABudgetOfTheExperimentCountsWhatEachTrialKeeps) {
  // The other one runs, and has not removed yet what is beyond its last two.
  const std::vector<RetainedCheckpoint> own{Make(1), Make(2)};
  std::vector<RetainedCheckpoint> others;
  for (int i = 3; i <= 8; ++i) others.push_back(Make(i, {}, "u"));
  others.back().latest = true;
  EXPECT_EQ(Kept({.keep_last = 2, .experiment_bytes = 400}, own, 0, others), (Set{1, 2}));
  EXPECT_EQ(Kept({.keep_last = 2, .experiment_bytes = 399}, own, 0, others), (Set{2}));
  // Nor what is too old, or over the bytes of its own.
  EXPECT_EQ(Kept({.max_bytes = 200, .experiment_bytes = 400}, own, 0, others), (Set{1, 2}));
}

TEST(RetentionPolicy, TheBestOfEachTrialAreTheLastToGoForTheExperiment) {
  // Looked at from either trial it is the same one that goes: the older of the two best.
  std::vector<RetainedCheckpoint> first{Make(1, 9), Make(3, 1)};
  std::vector<RetainedCheckpoint> second{Make(2, 9, "u"), Make(4, 1, "u")};
  first.back().latest = second.back().latest = true;
  const RetentionPolicy policy{
      .keep_last = 2, .keep_best = 1, .score = "m/loss", .experiment_bytes = 300};
  EXPECT_EQ(Kept(policy, first, 0, second), (Set{3}));
  EXPECT_EQ(Kept(policy, second, 0, first), (Set{2, 4}));
}

TEST(RetentionPolicy, WhyACheckpointGoesIsSaidByItsRules) {
  std::vector<RetainedCheckpoint> items = {Make(1, 5), Make(2, 1), Make(3, 3)};
  items.back().latest = true;
  const auto why = [&](const RetentionPolicy& policy) {
    const std::vector<Removal> removals = ChooseRemovals(policy, items, items, 10 * kSecond);
    return removals.empty() ? "" : removals.front().reason;
  };
  EXPECT_EQ(why({.keep_last = 1}), "beyond keep_last 1");
  EXPECT_EQ(why({.keep_last = 1, .keep_best = 1, .keep_every = 7, .score = "m/loss"}),
            "beyond keep_last 1, keep_best 1 (by m/loss), keep_every 7");
  EXPECT_EQ(why({.experiment_best = 1, .score = "m/loss"}), "beyond experiment_best 1 (by m/loss)");
  EXPECT_EQ(why({.max_age = std::chrono::seconds(2)}), "older than 2 s");
  EXPECT_EQ(why({.max_bytes = 100}), "over 100 bytes in all");
}

TEST(RetentionPolicy, RulesThatMakeNoSenseAreRefused) {
  EXPECT_FALSE(RetentionPolicy{.keep_last = 0}.Validate().ok());
  EXPECT_FALSE(RetentionPolicy{.keep_best = 1}.Validate().ok());
  EXPECT_TRUE((RetentionPolicy{.keep_best = 1, .score = "x"}.Validate().ok()));
}

TEST(RetentionPolicy, ComesBackFromItsValue) {
  const RetentionPolicy policy{.keep_last = 2,
                               .experiment_best = 3,
                               .score = "a/b",
                               .maximize = false,
                               .max_age = std::chrono::milliseconds(1500),
                               .max_bytes = 7,
                               .experiment_bytes = 8};
  EXPECT_EQ(RetentionPolicyFromValue(ToValue(policy)).value(), policy);
  EXPECT_EQ(RetentionPolicyFromValue(Value::Object{}).value(), RetentionPolicy());
}

/// Trials of one experiment, with so many checkpoints each.
TrialRecords Experiment(int trials, int checkpoints) {
  std::vector<TrialRecord> records;
  for (int i = 0; i < trials; ++i) {
    TrialRecord trial{.id = std::to_string(i)};
    trial.config.experiment = "e";
    for (int step = 1; step <= checkpoints; ++step) {
      trial.checkpoints.push_back(
          {.id = trial.id + "-" + std::to_string(step),
           .state = CheckpointState::kCompleted,
           .steps = step,
           .metrics = Value::Object{{"loss", i * checkpoints + step}, {"config", "as it was"}},
           .bytes = 100,
           .generation = 1,
           .sequence = static_cast<std::uint64_t>(step)});
    }
    records.push_back(std::move(trial));
  }
  return TrialRecords::Of(1, std::move(records)).value();
}

/// What goes of all trials, and the processor's seconds that it took to find out.
std::pair<std::set<std::string>, double> AllRemovals(const TrialRecords& records,
                                                     const RetentionPolicy& policy) {
  const auto spent = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
  };
  const double before = spent();
  std::set<std::string> gone;
  for (const auto& [id, trial] : records.trials()) {
    for (const Removal& removal : records.Removals(id, policy, 0)) gone.insert(removal.id);
  }
  return {gone, spent() - before};
}

TEST(TrialRecords, RulesOfAnExperimentOfThousandsTakeMoments) {
  const RetentionPolicy best{.experiment_best = 2, .score = "loss"};
  const auto [few, first] = AllRemovals(Experiment(4, 2), best);
  EXPECT_EQ(few, (std::set<std::string>{"0-1", "1-1", "2-1"})) << "3-1 is the second best of all";
  const auto [over, second] = AllRemovals(Experiment(4, 2), {.experiment_bytes = 699});
  EXPECT_EQ(over.size(), 2u);
  // As it is after each end of a trial. All of them looking at all takes minutes.
  const auto [none, each_its_latest] = AllRemovals(Experiment(5000, 1), best);
  EXPECT_TRUE(none.empty());
  EXPECT_LT(each_its_latest, 2.0);
  const auto [all_fit, within] = AllRemovals(Experiment(1000, 5), {.experiment_bytes = 500'000});
  EXPECT_TRUE(all_fit.empty());
  EXPECT_LT(within, 2.0);
}

}  // namespace
}  // namespace cairn
