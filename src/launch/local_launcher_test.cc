#include "launch/local_launcher.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <random>
#include <set>
#include <string>
#include <thread>

#include "base/ids.h"
#include "launch/conformance.h"
#include "launch/launch_directory.h"
#include "tests/kill/harness.h"

namespace cairn {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;  // NOLINT

LocalLauncherOptions OptionsAt(const std::filesystem::path& directory, int slots = 2) {
  LocalLauncherOptions options;
  options.directory = directory.string();
  options.slots = slots;
  return options;
}

LauncherUnderTest MakeLocal() {
  auto temp = std::make_shared<kill::TempDir>();
  LauncherUnderTest under_test;
  under_test.ground = temp;
  under_test.open = [temp](LaunchListener listener) {
    LocalLauncherOptions options = OptionsAt(temp->path() / "launches");
    options.listener = std::move(listener);
    return OpenLocalLauncher(std::move(options));
  };
  return under_test;
}

INSTANTIATE_TEST_SUITE_P(Local, LauncherConformance,
                         ::testing::Values(LauncherFactory{"Local", MakeLocal}),
                         LauncherConformance::Name);

class LocalLauncherTest : public ::testing::Test {
 protected:
  void TearDown() override {
    launcher_.reset();
    EXPECT_TRUE(KillByEnvironment("CAIRN_TEST_MARK", mark_).ok());
  }

  void Open(int slots = 2) {
    auto opened = OpenLocalLauncher(OptionsAt(temp_.path(), slots));
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

  void UntilSaid(const std::string& id) {
    while (launcher_->ReadLog(id, 0)->lines.empty()) std::this_thread::sleep_for(2ms);
  }

  LaunchDirectory At(const std::string& id) {
    return LaunchDirectory((temp_.path() / id).string());
  }

  kill::TempDir temp_;
  std::string mark_ = IdSource::System()->NewUuid();
  std::unique_ptr<Launcher> launcher_;
};

TEST_F(LocalLauncherTest, OneLauncherAtATime) {
  Open();
  const auto second = OpenLocalLauncher(OptionsAt(temp_.path()));
  EXPECT_EQ(second.status().code(), Code::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("another launcher"));
}

TEST_F(LocalLauncherTest, SaysWhereTheShimIsMissing) {
  LocalLauncherOptions options = OptionsAt(temp_.path());
  options.shim = "/no/shim";
  EXPECT_THAT(std::string(OpenLocalLauncher(options).status().message()), HasSubstr("/no/shim"));
}

TEST_F(LocalLauncherTest, NobodyElseMayReadWhatIsKept) {
  Open();
  ASSERT_TRUE(launcher_->Submit(Script("a", "true")).ok());
  ASSERT_TRUE(launcher_->Wait("a", 30s).ok());
  const auto others = std::filesystem::perms::group_all | std::filesystem::perms::others_all;
  for (const char* name : {"", "/a", "/a/log", "/a/exit.json", "/a/launch.json"}) {
    const auto mode = std::filesystem::status(temp_.path().string() + name).permissions();
    EXPECT_EQ(mode & others, std::filesystem::perms::none) << name;
  }
}

TEST_F(LocalLauncherTest, AKilledShimTakesItsRanksAlongAndTheLaunchIsLost) {
  Open();
  ASSERT_TRUE(launcher_->Submit(Script("a", "setsid sleep 1000 & echo ready; sleep 1000")).ok());
  UntilSaid("a");
  const auto keeper = At("a").ReadKeeper();
  ASSERT_TRUE(keeper.ok()) << keeper.status().ToString();
  ASSERT_EQ(::kill(static_cast<pid_t>(keeper->pid), SIGKILL), 0);
  const auto info = launcher_->Wait("a", 30s);
  ASSERT_TRUE(info.ok()) << info.status().ToString();
  EXPECT_EQ(info->exit->kind, ExitKind::kLost);
  EXPECT_TRUE(ProcessesWith("CAIRN_TEST_MARK", mark_).empty()) << "also the one with a session";
  EXPECT_EQ(At("a").ReadExit()->kind, ExitKind::kLost) << "and it stays so";
}

TEST_F(LocalLauncherTest, AShimThatWasKilledWithNobodyLookingIsFoundLost) {
  Open();
  ASSERT_TRUE(launcher_->Submit(Script("a", "setsid sleep 1000 & echo ready; sleep 1000")).ok());
  UntilSaid("a");
  launcher_.reset();
  const auto keeper = At("a").ReadKeeper();
  const auto process = OpenProcess(*keeper);
  ASSERT_TRUE(process.ok());
  ASSERT_TRUE(SignalProcess(*process, SIGKILL).ok());
  waitpid(static_cast<pid_t>(keeper->pid), nullptr, 0);
  Open();
  EXPECT_EQ(launcher_->Get("a")->exit->kind, ExitKind::kLost);
  EXPECT_TRUE(ProcessesWith("CAIRN_TEST_MARK", mark_).empty());
}

TEST_F(LocalLauncherTest, AnotherProcessWithTheSamePidIsLeftAlone) {
  // A launch whose shim is long dead, and whose pid belongs to somebody else by now.
  const pid_t bystander = fork();
  if (bystander == 0) {
    for (;;) pause();
  }
  LaunchRecord record;
  record.id = "a";
  record.key = IdSource::System()->NewUuid();
  record.argv = {"true"};
  KeeperRecord keeper = *IdentityOf(bystander);
  keeper.start_ticks -= 1;
  ASSERT_TRUE(At("a").Create(record).ok());
  ASSERT_TRUE(At("a").Publish(keeper).ok());
  Open();
  EXPECT_EQ(launcher_->Get("a")->exit->kind, ExitKind::kLost);
  EXPECT_TRUE(launcher_->Kill("a").ok());
  EXPECT_EQ(waitpid(bystander, nullptr, WNOHANG), 0) << "it lives";
  ::kill(bystander, SIGKILL);
  waitpid(bystander, nullptr, 0);
}

TEST_F(LocalLauncherTest, ALaunchWhoseOwnerDiedBeforeTheShimBeganWasNeverThere) {
  LaunchRecord record;
  record.id = "a";
  record.key = IdSource::System()->NewUuid();
  record.argv = {"true"};
  ASSERT_TRUE(At("a").Create(record).ok());
  Open();
  EXPECT_EQ(launcher_->Get("a").status().code(), Code::kNotFound);
  EXPECT_TRUE(launcher_->Submit(Script("a", "true")).ok());
  EXPECT_TRUE(launcher_->Wait("a", 30s)->exit->succeeded());
}

TEST_F(LocalLauncherTest, AShimNeverStartsALaunchASecondTime) {
  Open();
  ASSERT_TRUE(launcher_->Submit(Script("a", "echo once")).ok());
  ASSERT_TRUE(launcher_->Wait("a", 30s).ok());
  const pid_t shim = kill::StartProcess("cairn-shim", {At("a").path(), "-1"});
  int status = 0;
  ASSERT_EQ(waitpid(shim, &status, 0), shim);
  EXPECT_EQ(WEXITSTATUS(status), 3);
  EXPECT_EQ(launcher_->ReadLog("a", 0)->lines.size(), 1u);
}

TEST_F(LocalLauncherTest, ADamagedRecordDoesNotKeepTheOthersFromBeingTakenUp) {
  Open();
  ASSERT_TRUE(launcher_->Submit(Script("a", "echo a")).ok());
  ASSERT_TRUE(launcher_->Submit(Script("b", "echo b")).ok());
  ASSERT_TRUE(launcher_->Wait("a", 30s).ok());
  ASSERT_TRUE(launcher_->Wait("b", 30s).ok());
  launcher_.reset();
  std::ofstream(At("a").path() + "/exit.json", std::ios::trunc) << "{}";
  Open();
  EXPECT_EQ(launcher_->Get("a")->exit->kind, ExitKind::kLost);
  EXPECT_THAT(launcher_->Get("a")->exit->message, HasSubstr("Corruption"));
  EXPECT_TRUE(launcher_->Get("b")->exit->succeeded());
}

TEST_F(LocalLauncherTest, FewerSlotsThanTheLaunchesThatWereTakenUpHave) {
  Open(3);
  for (const char* id : {"a", "b", "c"}) {
    ASSERT_TRUE(launcher_->Submit(Script(id, "echo ready; sleep 1000")).ok());
    UntilSaid(id);
  }
  launcher_.reset();
  Open(1);
  ASSERT_TRUE(launcher_->Submit(Script("d", "echo d")).ok());
  EXPECT_EQ(launcher_->Get("d")->state, LaunchState::kQueued);
  ASSERT_TRUE(launcher_->Kill("a").ok());  // had slot 0, the only one there is now
  EXPECT_TRUE(launcher_->Wait("d", 30s)->exit->succeeded());
  EXPECT_TRUE(launcher_->Close(Launcher::CloseMode::kStopAll, 0s).ok());
}

/// The owner of the torture below: submits launch after launch and writes each id down first.
[[noreturn]] void OwnLaunches(const std::filesystem::path& ground, const std::string& mark) {
  auto launcher = OpenLocalLauncher(OptionsAt(ground / "launches", 3));
  if (!launcher.ok()) _exit(1);
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
    if (!(*launcher)->Submit(spec).ok()) _exit(1);
    if (i % 3 == 2) {
      if (!(*launcher)->Wait(spec.id, 30s).ok()) _exit(1);
    }
  }
}

TEST(LaunchKillTest, WhateverIsKilledEachLaunchRanAtMostOnceAndItsEndIsKnown) {
  kill::Record record = kill::Record::Load();
  std::mt19937_64 random(record.seed);
  const std::string mark = IdSource::System()->NewUuid();
  const auto deadline = std::chrono::steady_clock::now() + kill::TortureTime();
  int rounds = 0;
  int exited = 0;
  int lost = 0;
  int never = 0;
  for (; rounds < 12 || std::chrono::steady_clock::now() < deadline; ++rounds) {
    kill::TempDir temp;
    for (int generation = 0; generation < 3; ++generation) {
      const pid_t owner = fork();
      if (owner == 0) OwnLaunches(temp.path(), mark);
      std::this_thread::sleep_for(std::chrono::microseconds(1000 + random() % 80'000));
      if (random() % 2 == 0) {  // a shim first: any one
        std::error_code none;   // the owner may not have come that far
        for (const auto& entry :
             std::filesystem::directory_iterator(temp.path() / "launches", none)) {
          const auto keeper = LaunchDirectory(entry.path().string()).ReadKeeper();
          if (!keeper.ok()) continue;
          const auto process = OpenProcess(*keeper);
          if (!process.ok()) continue;
          ASSERT_TRUE(SignalProcess(*process, SIGKILL).ok());
          break;
        }
      }
      ::kill(owner, SIGKILL);
      int status = 0;
      ASSERT_EQ(waitpid(owner, &status, 0), owner);
      ASSERT_TRUE(WIFSIGNALED(status)) << "the owner failed by itself";
    }
    auto launcher = OpenLocalLauncher(OptionsAt(temp.path() / "launches", 3));
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
}  // namespace cairn
