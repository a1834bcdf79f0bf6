// Kills owners of launches and shims with SIGKILL at random moments, and checks from outside that
// each launch ran at most once, that its end is known, and that nothing of it is left.
// CAIRN_TORTURE_SECONDS makes it run that long instead.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <random>
#include <set>
#include <string>
#include <thread>

#include "base/ids.h"
#include "launch/launch_directory.h"
#include "launch/local_launcher.h"
#include "tests/kill/harness.h"

namespace cairn::kill {
namespace {

using namespace std::chrono_literals;  // NOLINT

Result<std::unique_ptr<Launcher>> OpenAt(const std::filesystem::path& directory) {
  LocalLauncherOptions options;
  options.directory = directory.string();
  options.slots = 3;
  return OpenLocalLauncher(std::move(options));
}

/// The owner of the torture below: submits launch after launch and writes each id down first.
[[noreturn]] void OwnLaunches(const std::filesystem::path& ground, const std::string& mark) {
  const auto require = [](const Status& status) {
    if (status.ok()) return;
    std::cerr << "the owner: " << status.ToString() << std::endl;
    _exit(1);
  };
  auto launcher = OpenAt(ground / "launches");
  require(launcher.status());
  for (int i = 0;; ++i) {
    LaunchSpec spec;
    spec.id = "l" + std::to_string(getpid()) + "-" + std::to_string(i);
    spec.argv = {"/bin/sh", "-c", "echo begun; sleep 0.02 & wait; echo ended; exit 7"};
    spec.env = {{"CAIRN_TEST_MARK", mark}};
    spec.slots = 1;
    const int fd = open((ground / "ids").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    const std::string line = spec.id + "\n";
    if (write(fd, line.data(), line.size()) < 0) _exit(1);
    close(fd);
    require((*launcher)->Submit(spec));
    if (i % 3 == 2) require((*launcher)->Wait(spec.id, 30s).status());
  }
}

/// Kills any living shim, as soon as there is one: their owner starts one after the other.
void KillAShim(const std::filesystem::path& launches) {
  const auto patience = std::chrono::steady_clock::now() + 60s;
  while (std::chrono::steady_clock::now() < patience) {
    std::error_code none;  // the owner may not have come that far
    for (const auto& entry : std::filesystem::directory_iterator(launches, none)) {
      const auto keeper = LaunchDirectory(entry.path().string()).ReadKeeper();
      if (!keeper.ok()) continue;
      const auto process = OpenProcess(*keeper);
      if (!process.ok()) continue;
      ASSERT_TRUE(SignalProcess(*process, SIGKILL).ok());
      return;
    }
    std::this_thread::sleep_for(1ms);
  }
  FAIL() << "the owner starts nothing";
}

TEST(LaunchKillTest, WhateverIsKilledEachLaunchRanAtMostOnceAndItsEndIsKnown) {
  Record record = Record::Load();
  std::mt19937_64 random(record.seed);
  const std::string mark = IdSource::System()->NewUuid();
  const auto deadline = std::chrono::steady_clock::now() + TortureTime();
  int rounds = 0;
  int exited = 0;
  int lost = 0;
  int never = 0;
  for (; rounds < 12 || std::chrono::steady_clock::now() < deadline; ++rounds) {
    TempDir temp;
    for (int generation = 0; generation < 3; ++generation) {
      const pid_t owner = fork();
      if (owner == 0) OwnLaunches(temp.path(), mark);
      std::this_thread::sleep_for(std::chrono::microseconds(1000 + random() % 80'000));
      if (random() % 2 == 0) KillAShim(temp.path() / "launches");  // first
      ::kill(owner, SIGKILL);
      int status = 0;
      ASSERT_EQ(waitpid(owner, &status, 0), owner);
      ASSERT_TRUE(WIFSIGNALED(status)) << "the owner failed by itself";
    }
    auto launcher = OpenAt(temp.path() / "launches");
    ASSERT_TRUE(launcher.ok()) << launcher.status().ToString();
    std::set<std::string> submitted;
    std::ifstream ids(temp.path() / "ids");
    for (std::string id; std::getline(ids, id);) submitted.insert(id);
    const auto infos = (*launcher)->List();
    ASSERT_TRUE(infos.ok());
    for (const LaunchInfo& found : *infos) {
      ASSERT_EQ(submitted.erase(found.id), 1u) << "a launch nobody wrote down: " << found.id;
      const auto info = (*launcher)->Wait(found.id, 30s);
      ASSERT_TRUE(info.ok()) << found.id << ": " << info.status().ToString();
      const auto log = (*launcher)->ReadLog(found.id, 0);
      ASSERT_TRUE(log.ok());
      std::string said;
      for (const LaunchLogLine& line : log->lines) said += line.text + " ";
      if (info->exit->kind == ExitKind::kLost) {
        ++lost;
        EXPECT_THAT(said, ::testing::AnyOf("", "begun ", "begun ended "));
      } else {
        ++exited;
        EXPECT_EQ(info->exit->kind, ExitKind::kExited) << info->exit->message;
        EXPECT_EQ(info->exit->code, 7);
        EXPECT_EQ(said, "begun ended ");
      }
    }
    never += static_cast<int>(submitted.size());
    // A shim that came too late for its launch has to see that first; it starts nothing.
    const auto patience = std::chrono::steady_clock::now() + 10s;
    while (!ProcessesWith("CAIRN_TEST_MARK", mark).empty()) {
      ASSERT_LT(std::chrono::steady_clock::now(), patience) << "processes are left";
      std::this_thread::sleep_for(2ms);
    }
  }
  record.cycles += rounds;
  record.Save();
  std::cout << rounds << " rounds (" << record.cycles << " in all): " << exited << " ended, "
            << lost << " lost, " << never << " never begun\n";
  EXPECT_GT(exited, 0);
  EXPECT_GT(lost, 0) << "no kill hit a shim";
}

}  // namespace
}  // namespace cairn::kill
