#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>

#include "base/ids.h"
#include "launch/launch_directory.h"
#include "launch/process_identity.h"
#include "launch/slurm_launcher.h"
#include "launch/test_slurm.h"

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

/// In a hurry: tests wait for each of these.
inline SlurmLauncherOptions SlurmOptionsAt(const std::filesystem::path& directory, int slots = 2) {
  TestSlurm::Get();
  SlurmLauncherOptions options;
  options.directory = directory.string();
  options.slots = slots;
  options.calls_per_second = 20;
  options.poll = 200ms;
  options.look = 20ms;
  return options;
}

/// A launcher on the real Slurm of this process, with many slots.
class SlurmLauncherTest : public ::testing::Test {
 protected:
  void SetUp() override { options_ = SlurmOptionsAt(temp_.path() / "launches", 1000); }

  void TearDown() override {
    if (launcher_ != nullptr) {
      EXPECT_TRUE(launcher_->Close(Launcher::CloseMode::kStopAll, 0s).ok());
    }
    launcher_.reset();
    EXPECT_TRUE(KillByEnvironment("CAIRN_TEST_MARK", mark_).ok());
  }

  void Open() {
    auto opened = OpenSlurmLauncher(options_);
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    launcher_ = std::move(*opened);
  }

  LaunchSpec Script(const std::string& id, const std::string& text) {
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

  void UntilSaid(const std::string& id) {
    while (launcher_->ReadLog(id, 0)->lines.empty()) std::this_thread::sleep_for(2ms);
  }

  template <typename Predicate>
  void Until(const std::string& what, Predicate predicate) {
    const auto deadline = std::chrono::steady_clock::now() + 60s;
    while (!predicate()) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "in vain: " << what;
      std::this_thread::sleep_for(5ms);
    }
  }

  /// Puts programs in front of Slurm's that write down that they were called, then do `before`,
  /// call the real one, and do `after`.
  void Intercept(const std::string& before, const std::string& after) {
    const auto programs = temp_.path() / "programs";
    std::filesystem::create_directory(programs);
    for (const std::string name : {"sbatch", "squeue", "scancel"}) {
      std::ofstream program(programs / name);
      program << "#!/bin/sh\nname=" << name << "\ndate +%s%N >> " << Calls(name) << "\n"
              << before << "\n/usr/bin/" << name << " \"$@\"\ncode=$?\n"
              << after << "\nexit $code\n";
      program.close();
      std::filesystem::permissions(programs / name, std::filesystem::perms::owner_all);
    }
    options_.programs = programs.string();
  }

  std::string Calls(const std::string& name) const {
    return (temp_.path() / (name + ".calls")).string();
  }
  std::ptrdiff_t CountCalls(const std::string& name) const {
    std::ifstream file(Calls(name));
    return std::count(std::istreambuf_iterator<char>(file), {}, '\n');
  }

  TempDir temp_;
  std::string mark_ = IdSource::System()->NewUuid();
  SlurmLauncherOptions options_;
  std::unique_ptr<Launcher> launcher_;
};

}  // namespace cairn
