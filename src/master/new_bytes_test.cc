#include "master/new_bytes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <cairn/checkpoint_manager.h>

#include "base/clock.h"
#include "base/thread_annotations.h"
#include "checkpoint/environment.h"
#include "checkpoint/manager.h"
#include "storage/local/temp_directory.h"
#include "storage/memory/memory_store.h"

namespace cairn::master {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using ::testing::ElementsAre;
using Found = std::map<std::string, std::uint64_t>;

/// Tells when a thread that asked to be told of looks at it for the first time.
class TellingClock final : public Clock {
 public:
  Duration Now() override {
    if (watched) std::exchange(watched, nullptr)->set_value();
    return Clock::System()->Now();
  }
  std::int64_t WallNanos() override { return Clock::System()->WallNanos(); }
  void Sleep(Duration duration) override { Clock::System()->Sleep(duration); }

  static thread_local std::promise<void>* watched;
};
thread_local std::promise<void>* TellingClock::watched = nullptr;

/// Storage that answers when the test lets it.
class NewBytesTest : public ::testing::Test {
 protected:
  /// The first word to `listener` is told; a trial that had to wait on a slow machine gets one too.
  void Start(std::chrono::nanoseconds moment, std::chrono::nanoseconds pause,
             const std::string& listener = "") {
    new_bytes_ = std::make_unique<NewBytes>(
        NewBytesOptions{.clock = &clock_,
                        .read = [this](const std::string& repository) -> Result<Found> {
                          const int reads = Read(repository);
                          if (repository == "growing" && reads > 1)
                            return Found{{"a", 10}, {"new", 1}};
                          if (repository == "late" && reads > 1) return Found{{"new", 1}};
                          if (repository == "slow" || repository == "late")
                            return slow_.get_future().get();
                          return Found{{"a", 10}, {"b", 3}};
                        },
                        .on_found =
                            [this, listener](const std::string& trial, const std::string& id) {
                              if (trial == listener) told_.set_value(trial + " " + id);
                            },
                        .moment = moment,
                        .pause = pause});
    new_bytes_->Start();
  }
  void Want(const std::string& trial, const std::string& repository, const std::string& id) {
    const NewBytes::Wanted wanted{trial, repository, id};
    new_bytes_->Want(std::span(&wanted, 1));
  }

  /// How often that was read, this time included.
  int Read(const std::string& repository) {
    MutexLock hold(&mu_);
    return ++reads_[repository];
  }
  int Reads(const std::string& repository) {
    MutexLock hold(&mu_);
    return reads_[repository];
  }

  Mutex mu_;
  std::map<std::string, int> reads_ GUARDED_BY(mu_);
  TellingClock clock_;
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
  EXPECT_EQ(Reads("quick"), 1);
}

TEST_F(NewBytesTest, OfStorageThatDoesNotAnswerHoldNobodyUpAndAreToldOf) {
  Start(milliseconds(20), milliseconds(1), "7");
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

TEST_F(NewBytesTest, OfACheckpointThatCameDuringALookAreLookedForOnceMore) {
  Start(hours(1), milliseconds(1), "1");
  auto first = std::async(std::launch::async, [&] { Want("1", "late", "a"); });
  while (Reads("late") == 0) std::this_thread::yield();
  std::promise<void> asking;
  auto second = std::async(std::launch::async, [&] {
    TellingClock::watched = &asking;
    Want("1", "late", "new");
  });
  // It has the lock since then, and leaves it when it waits: the first look ends after that.
  asking.get_future().get();
  auto told = told_.get_future();
  slow_.set_value(Found{{"a", 10}});
  first.get();
  second.get();
  while (Reads("late") < 2) std::this_thread::yield();
  if (!new_bytes_->Of("new")) {
    EXPECT_EQ(told.get(), "1 new");
  }
  EXPECT_EQ(new_bytes_->Of("new"), 1u);
}

TEST_F(NewBytesTest, OfACheckpointThatIsGoneAreNotKnownAndAskedForNoMoreThanNowAndThen) {
  Start(hours(1), hours(2));
  Want("1", "quick", "gone");
  EXPECT_EQ(new_bytes_->Of("gone"), std::nullopt);
  for (int i = 0; i < 10; ++i) Want("1", "quick", "gone");
  EXPECT_EQ(Reads("quick"), 1);
}

/// Contents that go away and come again: a save shares with the one before it only.
class WrittenBytes : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kBytes = 100'000;

  /// What was written for each save whose contents are a letter, oldest first.
  static std::vector<std::uint64_t> Written(CheckpointManager* manager, const std::string& letters,
                                            const std::function<Result<Found>()>& read) {
    std::vector<std::string> ids;
    for (const char letter : letters) {
      auto saved = manager->Save({.step = static_cast<std::int64_t>(ids.size()) + 1,
                                  .state_files = {{"blob", std::string(kBytes, letter)}},
                                  .blocking = true});
      EXPECT_TRUE(saved.ok()) << saved.status().ToString();
      ids.push_back(saved->Wait().value().id);
    }
    const auto found = read();
    EXPECT_TRUE(found.ok()) << found.status().ToString();
    std::vector<std::uint64_t> written;
    for (const std::string& id : ids) written.push_back(found->at(id) / kBytes);
    return written;
  }
  static ManagerOptions KeepAll(const std::string& directory) {
    return {.directory = directory, .retention = {.keep_last = std::nullopt}};
  }
};

TEST_F(WrittenBytes, AreThoseOfFilesThatAreNoLinksToEarlierOnes) {
  TempDirectory directory;
  auto manager = CheckpointManager::Open(KeepAll(directory / "run")).value();
  EXPECT_THAT(Written(manager.get(), "AABA", [&] { return ReadNewBytes(directory / "run"); }),
              ElementsAre(1, 0, 1, 1))
      << "the last A was written: the one before it was a B";
}

TEST_F(WrittenBytes, AreThereAgainWhenAFileHasTooManyLinks) {
  TempDirectory directory;
  auto manager = CheckpointManager::Open(KeepAll(directory / "run")).value();
  EXPECT_THAT(
      Written(manager.get(), std::string(10, 'A'), [&] { return ReadNewBytes(directory / "run"); }),
      ElementsAre(1, 0, 0, 0, 0, 0, 0, 0, 1, 0));
}

TEST_F(WrittenBytes, OfAnObjectStoreAreThoseWithoutAReference) {
  const std::shared_ptr<Store> store = MemoryStore::Open({.object_store = true}).value();
  Environment env;
  env.store = store;
  auto manager = OpenManager(KeepAll(""), env).value();
  const auto read = [&] {
    return CountNewBytes(store.get(), [](const std::string& name) -> Result<std::uint64_t> {
      return InternalError("nobody asks for " + name);
    });
  };
  EXPECT_THAT(Written(manager.get(), "AABA", read), ElementsAre(1, 0, 1, 1));
}

}  // namespace
}  // namespace cairn::master
