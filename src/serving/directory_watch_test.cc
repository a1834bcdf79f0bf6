#include "serving/directory_watch.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "storage/local/temp_directory.h"

namespace cairn::serving {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kLong{20};

class DirectoryWatchTest : public ::testing::Test {
 protected:
  /// Whether Wait returns long before its time is up.
  bool WokenBy(const std::function<void()>& happens) {
    watch_->Arm();
    const auto began = std::chrono::steady_clock::now();
    std::thread other(happens);
    watch_->Wait(kLong);
    other.join();
    return std::chrono::steady_clock::now() - began < kLong / 2;
  }
  void Touch(const std::string& name) { std::ofstream(path_ + "/" + name) << "x"; }

  TempDirectory directory_;
  const std::string path_ = directory_ / "run";
  std::unique_ptr<DirectoryWatch> watch_ = DirectoryWatch::Open(path_).value();
};

TEST_F(DirectoryWatchTest, IsWokenWhenTheRepositoryAppears) {
  EXPECT_TRUE(WokenBy([this] { fs::create_directory(path_); }));
}

TEST_F(DirectoryWatchTest, IsWokenWhenWhatLeadsToTheRepositoryAppears) {
  const std::string deep = directory_ / "team/project/run";
  watch_ = DirectoryWatch::Open(deep).value();
  EXPECT_TRUE(WokenBy([this] { fs::create_directory(directory_ / "team"); }));
  EXPECT_TRUE(WokenBy([this] { fs::create_directory(directory_ / "team/project"); }));
  EXPECT_TRUE(WokenBy([&] { fs::create_directory(deep); }));
  EXPECT_TRUE(WokenBy([&] { std::ofstream(deep + "/cairn.json") << "x"; }));
}

TEST_F(DirectoryWatchTest, ARepositoryThatAppearsWhileTheWatchIsSetIsNotMissed) {
  for (int round = 0; round < 500; ++round) {
    watch_ = DirectoryWatch::Open(path_).value();
    std::thread maker([this] {
      fs::create_directory(path_);
      Touch("cairn.json");
    });
    const auto began = std::chrono::steady_clock::now();
    for (;;) {
      watch_->Arm();
      if (fs::exists(path_ + "/cairn.json")) break;
      watch_->Wait(kLong);
    }
    maker.join();
    ASSERT_LT(std::chrono::steady_clock::now() - began, kLong / 2) << round;
    fs::remove_all(path_);
  }
}

TEST_F(DirectoryWatchTest, IsWokenByManifestsAndSealsAlsoInNewDirectories) {
  fs::create_directories(path_ + "/generations");
  EXPECT_TRUE(WokenBy([this] {
    fs::create_directory(path_ + "/checkpoint_000001");
    Touch("checkpoint_000001/data");
    Touch("checkpoint_000001/manifest.json");
  }));
  EXPECT_TRUE(WokenBy([this] { Touch("generations/000002.seal.json"); }));
  EXPECT_TRUE(WokenBy([this] { fs::remove(path_ + "/checkpoint_000001/manifest.json"); }));
}

TEST_F(DirectoryWatchTest, DataIsNoNews) {
  fs::create_directories(path_ + "/checkpoint_000001");
  watch_->Arm();
  Touch("checkpoint_000001/data");
  Touch("note");
  const auto began = std::chrono::steady_clock::now();
  watch_->Wait(std::chrono::milliseconds(50));
  EXPECT_GE(std::chrono::steady_clock::now() - began, std::chrono::milliseconds(50));
}

TEST_F(DirectoryWatchTest, WaitsHoweverLongItIsTold) {
  for (const std::chrono::nanoseconds timeout :
       {std::chrono::nanoseconds::max(), std::chrono::nanoseconds(std::chrono::hours(24 * 60))}) {
    auto waiting = std::async(std::launch::async, [&] { watch_->Wait(timeout); });
    EXPECT_EQ(waiting.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
    watch_->Wake();
    waiting.get();
  }
}

TEST_F(DirectoryWatchTest, IsWokenByHand) {
  EXPECT_TRUE(WokenBy([this] { watch_->Wake(); }));
  watch_->Wake();
  EXPECT_TRUE(WokenBy([] {})) << "also before it waits";
  const auto remote = DirectoryWatch::Open("").value();
  remote->Arm();
  remote->Wake();
  remote->Wait(kLong);
}

}  // namespace
}  // namespace cairn::serving
