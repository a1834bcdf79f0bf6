#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/ids.h"
#include "launch/conformance.h"
#include "launch/launch_directory.h"
#include "launch/launcher_fixture.h"

namespace cairn {

/// What tests of launchers on clusters do alike. kOpen is the function that opens one.
template <typename Options, Result<std::unique_ptr<Launcher>> (*kOpen)(Options)>
class ClusterFixture : public LauncherFixture {
 protected:
  void TearDown() override {
    if (launcher_ != nullptr) {
      EXPECT_TRUE(launcher_->Close(Launcher::CloseMode::kStopAll, 0s).ok());
    }
    LauncherFixture::TearDown();
  }

  void Open() { Use(kOpen(options_)); }

  /// Of an owner that died between its own record of a launch and the cluster's.
  void ExpectThatAnUnsubmittedLaunchIsForgotten() {
    LaunchRecord record;
    record.id = "a";
    record.key = IdSource::System()->NewUuid();
    record.argv = {"true"};
    record.job = "a." + record.key;
    std::filesystem::create_directories(options_.directory);
    ASSERT_TRUE(LaunchDirectory(options_.directory + "/a").CreateShared(record, {}).ok());
    Open();
    EXPECT_EQ(launcher_->Get("a").status().code(), Code::kNotFound);
    Submit(Script("a", "true"));
    EXPECT_TRUE(End("a").exit->succeeded());
  }

  Options options_;
};

/// For the conformance suite: launchers in a directory of their own, each with `options_at` it.
template <typename Options>
LauncherUnderTest ClusterUnderTest(
    Result<std::unique_ptr<Launcher>> (*open)(Options), std::chrono::nanoseconds patience,
    std::function<Options(const std::filesystem::path& directory)> options_at, int nodes = 1) {
  auto temp = std::make_shared<TempDir>();
  LauncherUnderTest under_test;
  under_test.ground = temp;
  under_test.nodes = nodes;
  under_test.patience = patience;
  under_test.open = [temp, open, options_at = std::move(options_at)](LaunchListener listener) {
    Options options = options_at(temp->path() / "launches");
    options.listener = std::move(listener);
    return open(std::move(options));
  };
  return under_test;
}

}  // namespace cairn
