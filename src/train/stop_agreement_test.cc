#include "train/stop_agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/names.h"
#include "storage/sim/name_cache_store.h"
#include "train/test_training.h"

namespace cairn {
namespace {

using testing::HasSubstr;

class StopAgreementTest : public testing::Test {
 protected:
  StopAgreementTest() {
    env_.store = MemoryStore::Open({.object_store = false}).value();
    env_.clock = &clock_;
  }
  StopAgreement Make(bool chooses) {
    return StopAgreement(env_, /*generation=*/3, chooses, std::chrono::seconds(30));
  }

  ManualClock clock_;
  Environment env_;
};

TEST_F(StopAgreementTest, AllEndAfterTheStepThatTrainer0ChoseASecondAhead) {
  StopAgreement chooser = Make(true);
  StopAgreement follower = Make(false);
  EXPECT_FALSE(follower.LastStep(99, 0.25).value()) << "nothing was chosen yet";
  EXPECT_FALSE(chooser.LastStep(100, 0.25).value());
  for (std::int64_t step = 101; step < 104; ++step) {
    EXPECT_FALSE(chooser.LastStep(step, 0.25).value());
    EXPECT_FALSE(follower.LastStep(step, 0.25).value());
  }
  EXPECT_TRUE(chooser.LastStep(104, 0.25).value());
  EXPECT_TRUE(follower.LastStep(104, 0.25).value());
}

TEST_F(StopAgreementTest, ATrainerOnAnotherMachineFollowsThoughItLookedTooEarly) {
  StopAgreement chooser = Make(true);
  const std::shared_ptr<Store> server = env_.store;
  env_.store = std::make_shared<NameCacheStore>(server.get());
  StopAgreement follower = Make(false);
  // Both names on the way to the record were missing once: the directory, then the record in it.
  EXPECT_FALSE(follower.LastStep(98, 60).value());
  ASSERT_TRUE(server->Put(names::Attempt(3, 1), "{}").ok());
  EXPECT_FALSE(follower.LastStep(99, 60).value());
  EXPECT_FALSE(chooser.LastStep(100, 60).value());
  EXPECT_FALSE(follower.LastStep(100, 60).value());
  EXPECT_TRUE(follower.LastStep(101, 60).value());
}

TEST_F(StopAgreementTest, SlowStepsAreOneAheadAndAMissingTimeToo) {
  StopAgreement chooser = Make(true);
  EXPECT_FALSE(chooser.LastStep(7, 60).value());
  EXPECT_TRUE(chooser.LastStep(8, 60).value());
}

TEST_F(StopAgreementTest, WithoutTrainer0ItIsAnErrorAfterAWhile) {
  StopAgreement follower = Make(false);
  EXPECT_FALSE(follower.LastStep(1, 1).value());
  clock_.Advance(std::chrono::seconds(29));
  EXPECT_FALSE(follower.LastStep(2, 1).value());
  clock_.Advance(std::chrono::seconds(1));
  const Status late = follower.LastStep(3, 1).status();
  EXPECT_EQ(late.code(), Code::kDeadlineExceeded);
  EXPECT_THAT(late.ToString(), HasSubstr("trainer_0"));
}

TEST_F(StopAgreementTest, ATrainerThatIsPastTheStepSaysSo) {
  StopAgreement chooser = Make(true);
  ASSERT_FALSE(chooser.LastStep(7, 60).value());
  const Status past = Make(false).LastStep(9, 60).status();
  EXPECT_EQ(past.code(), Code::kFailedPrecondition);
  EXPECT_THAT(past.ToString(), HasSubstr("trainer_0 ends after step 8"));
}

TEST_F(StopAgreementTest, ADamagedRecordIsNoStep) {
  ASSERT_TRUE(env_.store->Put(names::LastStep(3), "{\"step\": 5}").ok());
  EXPECT_EQ(Make(false).LastStep(1, 1).status().code(), Code::kCorruption);
}

}  // namespace
}  // namespace cairn
