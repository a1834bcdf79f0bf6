#include "master/new_bytes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace cairn::master {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using Found = std::map<std::string, std::uint64_t>;

/// Storage that answers when the test lets it.
class NewBytesTest : public ::testing::Test {
 protected:
  void Start(std::chrono::nanoseconds moment, std::chrono::nanoseconds pause) {
    new_bytes_ = std::make_unique<NewBytes>(NewBytesOptions{
        .read = [this](const std::string& repository) -> Result<Found> {
          const int reads = ++reads_[repository];
          if (repository == "growing" && reads > 1) return Found{{"a", 10}, {"new", 1}};
          if (repository == "slow") return slow_.get_future().get();
          return Found{{"a", 10}, {"b", 3}};
        },
        .on_found = [this](const std::string& trial,
                           const std::string& id) { told_.set_value(trial + " " + id); },
        .moment = moment,
        .pause = pause});
    new_bytes_->Start();
  }
  void Want(const std::string& trial, const std::string& repository, const std::string& id) {
    const NewBytes::Wanted wanted{trial, repository, id};
    new_bytes_->Want(std::span(&wanted, 1));
  }

  std::map<std::string, int> reads_;
  std::promise<Result<Found>> slow_;
  std::promise<std::string> told_;
  std::unique_ptr<NewBytes> new_bytes_;  // its threads end first
};

TEST_F(NewBytesTest, AreThereWithTheFirstAnswerAndReadOnce) {
  Start(hours(1), hours(1));
  EXPECT_EQ(new_bytes_->Of("a"), std::nullopt);
  Want("1", "quick", "a");
  EXPECT_EQ(new_bytes_->Of("a"), 10u);
  EXPECT_EQ(new_bytes_->Of("b"), 3u);
  Want("1", "quick", "b");
  EXPECT_EQ(reads_["quick"], 1);
}

TEST_F(NewBytesTest, OfStorageThatDoesNotAnswerHoldNobodyUpAndAreToldOf) {
  Start(milliseconds(20), milliseconds(1));
  Want("7", "slow", "c");
  EXPECT_EQ(new_bytes_->Of("c"), std::nullopt);
  // Others do not wait for it.
  while (!new_bytes_->Of("a")) Want("1", "quick", "a");
  auto told = told_.get_future();
  slow_.set_value(Found{{"c", 5}});
  EXPECT_EQ(told.get(), "7 c");
  EXPECT_EQ(new_bytes_->Of("c"), 5u);
}

TEST_F(NewBytesTest, OfACheckpointThatCameSinceTheLastLookAreWaitedFor) {
  Start(hours(1), milliseconds(50));
  Want("1", "growing", "a");
  EXPECT_EQ(new_bytes_->Of("a"), 10u);
  Want("1", "growing", "new");
  EXPECT_EQ(new_bytes_->Of("new"), 1u);
}

TEST_F(NewBytesTest, OfACheckpointThatIsGoneAreNotKnownAndAskedForNoMoreThanNowAndThen) {
  Start(hours(1), hours(2));
  Want("1", "quick", "gone");
  EXPECT_EQ(new_bytes_->Of("gone"), std::nullopt);
  for (int i = 0; i < 10; ++i) Want("1", "quick", "gone");
  EXPECT_EQ(reads_["quick"], 1);
}

}  // namespace
}  // namespace cairn::master
