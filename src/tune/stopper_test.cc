#include "tune/stopper.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/manual_clock.h"
#include "format/json.h"

namespace cairn::tune {
namespace {

Value Json(std::string_view text) { return DecodeJson(text).value(); }
Value Loss(double value) { return Value::Object{{"loss", value}}; }

std::unique_ptr<Stopper> Make(std::string_view text, Clock* clock = Clock::System()) {
  return MakeStopper(Json(text), clock).value();
}

TEST(StopperTest, BoundsStopAtOrAbove) {
  auto stopper = Make(R"({"name": "bounds", "bounds": {"training_iteration": 3, "val/acc": 0.9}})");
  auto stop = [&](std::string_view text) { return stopper->ShouldStop("t", Json(text)); };
  EXPECT_FALSE(*stop(R"({"training_iteration": 2, "val": {"acc": 0.5}})"));
  EXPECT_TRUE(*stop(R"({"training_iteration": 3, "val": {"acc": 0.5}})"));
  EXPECT_TRUE(*stop(R"({"training_iteration": 1, "val": {"acc": 0.9}})"));
  EXPECT_FALSE(*stop(R"({"training_iteration": 1, "val": {"acc": "NaN"}})"));
  const Status missing = stop(R"({"training_iteration": 1})").status();
  EXPECT_TRUE(missing.Is(Code::kInvalidArgument));
  EXPECT_NE(missing.message().find("val/acc"), std::string_view::npos);
  EXPECT_FALSE(stopper->StopAll());
}

TEST(StopperTest, BoundsAreExactAboveTheDoubles) {
  auto stopper = Make(R"({"name": "bounds", "bounds": {"n": 9007199254740993}})");
  EXPECT_FALSE(*stopper->ShouldStop("t", Json(R"({"n": 9007199254740992})")));
  EXPECT_TRUE(*stopper->ShouldStop("t", Json(R"({"n": 9007199254740993})")));
}

TEST(StopperTest, IterationsAreCountedPerTrial) {
  auto stopper = Make(R"({"name": "iterations", "max_iter": 2})");
  EXPECT_FALSE(*stopper->ShouldStop("a", {}));
  EXPECT_FALSE(*stopper->ShouldStop("b", {}));
  auto again = Make(R"({"name": "iterations", "max_iter": 2})");
  ASSERT_TRUE(again->Load(Json(EncodeJson(stopper->Save()))).ok());
  EXPECT_TRUE(*again->ShouldStop("a", {}));
}

TEST(StopperTest, ARefusedResultIsCountedByNoneOfSeveral) {
  auto stopper = Make(
      R"({"name": "combined", "stoppers": [{"name": "iterations", "max_iter": 2}, {"name": "bounds", "bounds": {"acc": 1}}]})");
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(stopper->ShouldStop("t", Loss(1)).status().Is(Code::kInvalidArgument));
  }
  EXPECT_FALSE(*stopper->ShouldStop("t", Json(R"({"acc": 0})")));
  EXPECT_TRUE(*stopper->ShouldStop("t", Json(R"({"acc": 0})")));
}

TEST(StopperTest, ATrialThatBeginsAnewIsCountedAnew) {
  auto stopper = Make(
      R"({"name": "combined", "stoppers": [{"name": "iterations", "max_iter": 3}, {"name": "trial_plateau", "metric": "loss", "num_results": 2, "grace_period": 2}]})");
  EXPECT_FALSE(*stopper->ShouldStop("t", Loss(1)));
  EXPECT_FALSE(*stopper->ShouldStop("other", Loss(1)));
  stopper->OnRestart("t");
  EXPECT_FALSE(*stopper->ShouldStop("t", Loss(1)));  // the first of its life: no plateau
  EXPECT_TRUE(*stopper->ShouldStop("other", Loss(1)));
  EXPECT_FALSE(*stopper->ShouldStop("t", Loss(5)));
  EXPECT_TRUE(*stopper->ShouldStop("t", Loss(9)));
}

TEST(StopperTest, APlateauIsWhenTheLastResultsBarelyDiffer) {
  const std::string_view text =
      R"({"name": "trial_plateau", "metric": "loss", "std": 0.01, "num_results": 3, "grace_period": 4, "metric_threshold": 1, "mode": "min"})";
  auto stopper = Make(text);
  EXPECT_FALSE(*stopper->ShouldStop("t", Loss(5)));
  EXPECT_FALSE(*stopper->ShouldStop("t", Loss(2)));
  EXPECT_FALSE(*stopper->ShouldStop("t", Loss(2)));
  EXPECT_FALSE(*stopper->ShouldStop("t", Loss(2)));  // flat, but above the threshold
  EXPECT_FALSE(*stopper->ShouldStop("t", Loss(0.5)));
  auto again = Make(text);
  ASSERT_TRUE(again->Load(Json(EncodeJson(stopper->Save()))).ok());
  EXPECT_FALSE(*again->ShouldStop("t", Loss(0.51)));
  EXPECT_TRUE(*again->ShouldStop("t", Loss(0.505)));
  EXPECT_FALSE(*again->ShouldStop("t", Loss(std::numeric_limits<double>::quiet_NaN())));
  EXPECT_TRUE(again->ShouldStop("t", Value::Object{}).status().Is(Code::kInvalidArgument));
}

TEST(StopperTest, AnExperimentIsFlatWhenItsBestAre) {
  auto stopper = Make(
      R"({"name": "experiment_plateau", "metric": "loss", "std": 0.01, "top": 3, "mode": "min", "patience": 1})");
  for (const double loss : {1.0, 9.0, 1.0}) EXPECT_FALSE(*stopper->ShouldStop("t", Loss(loss)));
  EXPECT_FALSE(*stopper->ShouldStop("t", Loss(1.0)));  // flat for the first time
  EXPECT_FALSE(stopper->StopAll());
  EXPECT_TRUE(*stopper->ShouldStop("u", Loss(7)));  // still
  EXPECT_TRUE(stopper->StopAll());
}

TEST(StopperTest, TimeCountsWhileAProcessLives) {
  ManualClock clock;
  auto stopper = Make(R"({"name": "timeout", "timeout": 10})", &clock);
  clock.Advance(std::chrono::seconds(6));
  EXPECT_FALSE(stopper->StopAll());
  const Value state = Json(EncodeJson(stopper->Save()));
  clock.Advance(std::chrono::hours(5));
  auto again = Make(R"({"name": "timeout", "timeout": 10})", &clock);
  ASSERT_TRUE(again->Load(state).ok());
  clock.Advance(std::chrono::seconds(3));
  EXPECT_FALSE(again->StopAll());
  clock.Advance(std::chrono::seconds(1));
  EXPECT_TRUE(again->StopAll());
  EXPECT_TRUE(*again->ShouldStop("t", {}));
}

TEST(StopperTest, CombinedAsksAll) {
  const std::string_view text =
      R"({"name": "combined", "stoppers": [{"name": "iterations", "max_iter": 3}, {"name": "bounds", "bounds": {"loss": 5}}]})";
  auto stopper = Make(text);
  EXPECT_TRUE(*stopper->ShouldStop("a", Loss(6)));
  EXPECT_FALSE(*stopper->ShouldStop("a", Loss(1)));
  auto again = Make(text);
  ASSERT_TRUE(again->Load(stopper->Save()).ok());
  EXPECT_TRUE(
      *again->ShouldStop("a", Loss(1)));  // the third: the first stopper counted all the time
  EXPECT_FALSE(again->StopAll());
}

TEST(StopperTest, MistakesAreRefused) {
  for (const std::string_view text :
       {R"({"name": "nothing"})", R"({"name": "bounds", "bounds": {"a": "b"}})",
        R"({"name": "bounds", "bounds": 3})", R"({"name": "iterations"})",
        R"({"name": "trial_plateau"})",
        R"({"name": "trial_plateau", "metric": "m", "num_results": 0})",
        R"({"name": "experiment_plateau", "metric": "m", "top": 1})",
        R"({"name": "timeout", "timeout": -1})", R"({"name": "timeout", "timeout": 3, "extra": 1})",
        R"({"name": "combined", "stoppers": [{}]})"}) {
    EXPECT_TRUE(MakeStopper(Json(text), Clock::System()).status().Is(Code::kInvalidArgument))
        << text;
  }
  for (const std::string_view text :
       {R"({"name": "iterations", "max_iter": 3})", R"({"name": "trial_plateau", "metric": "m"})",
        R"({"name": "experiment_plateau", "metric": "m"})", R"({"name": "timeout", "timeout": 1})",
        R"({"name": "combined"})"}) {
    EXPECT_TRUE(Make(text)->Load("damage").Is(Code::kCorruption)) << text;
  }
}

}  // namespace
}  // namespace cairn::tune
