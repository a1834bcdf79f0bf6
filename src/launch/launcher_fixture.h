#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include "base/ids.h"
#include "launch/launcher.h"
#include "launch/process_identity.h"

namespace cairn {

using namespace std::chrono_literals;  // NOLINT

class TempDir {
 public:
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "cairn-launch-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// What tests of one kind of launcher do alike.
class LauncherFixture : public ::testing::Test {
 protected:
  void TearDown() override {
    launcher_.reset();
    EXPECT_TRUE(KillByEnvironment("CAIRN_TEST_MARK", mark_).ok());
  }

  void Use(Result<std::unique_ptr<Launcher>> opened) {
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    launcher_ = std::move(*opened);
  }

  LaunchSpec Script(const std::string& id, const std::string& text) const {
    LaunchSpec spec;
    spec.id = id;
    spec.argv = {"/bin/sh", "-c", text};
    spec.env = {{"CAIRN_TEST_MARK", mark_}};
    return spec;
  }

  void Submit(const LaunchSpec& spec) {
    const Status submitted = launcher_->Submit(spec);
    ASSERT_TRUE(submitted.ok()) << submitted.ToString();
  }

  LaunchInfo End(const std::string& id, std::chrono::nanoseconds patience = 90s) {
    auto info = launcher_->Wait(id, patience);
    EXPECT_TRUE(info.ok()) << info.status().ToString();
    return info.ok() ? *info : LaunchInfo{.exit = LaunchExit{}};
  }

  template <typename Predicate>
  void Until(const std::string& what, Predicate predicate) {
    const auto deadline = std::chrono::steady_clock::now() + 60s;
    while (!predicate()) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "in vain: " << what;
      std::this_thread::sleep_for(2ms);
    }
  }

  void UntilSaid(const std::string& id) {
    Until(id + " says something", [&] { return !launcher_->ReadLog(id, 0)->lines.empty(); });
  }

  /// What its ranks said so far.
  std::vector<std::string> Texts(const std::string& id) {
    std::vector<std::string> texts;
    const auto page = launcher_->ReadLog(id, 0);
    for (const LaunchLogLine& line : page->lines) {
      if (line.rank >= 0) texts.push_back(line.text);
    }
    return texts;
  }

  TempDir temp_;
  std::string mark_ = IdSource::System()->NewUuid();
  std::unique_ptr<Launcher> launcher_;
};

}  // namespace cairn
