#include "launch/local_launcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "base/ids.h"
#include "launch/conformance.h"
#include "launch/launch_directory.h"
#include "launch/launcher_fixture.h"
#include "launch/several_launchers.h"
#include "launch/spawn_shim.h"

namespace cairn {
namespace {

using ::testing::HasSubstr;

LocalLauncherOptions OptionsAt(const std::filesystem::path& directory, int slots = 2) {
  LocalLauncherOptions options;
  options.directory = directory.string();
  options.slots = slots;
  return options;
}

LauncherUnderTest MakeLocal() {
  auto temp = std::make_shared<TempDir>();
  LauncherUnderTest under_test;
  under_test.ground = temp;
  under_test.open = [temp](LaunchListener listener) {
    LocalLauncherOptions options = OptionsAt(temp->path() / "launches");
    options.listener = std::move(listener);
    return OpenLocalLauncher(std::move(options));
  };
  return under_test;
}

/// Two launchers put together, of which the suite's launches use the first: the rules are the same.
LauncherUnderTest MakeSeveral() {
  auto temp = std::make_shared<TempDir>();
  LauncherUnderTest under_test;
  under_test.ground = temp;
  under_test.open = [temp](LaunchListener listener) {
    const auto open = [temp, listener](const char* name) {
      return [temp, listener, name] {
        LocalLauncherOptions options = OptionsAt(temp->path() / name);
        options.listener = listener;
        return OpenLocalLauncher(std::move(options));
      };
    };
    return OpenSeveralLaunchers({{.name = "one", .open = open("one")},
                                 {.name = "two", .open = open("two"), .at_once = false}});
  };
  return under_test;
}

const auto kLaunchers =
    ::testing::Values(LauncherFactory{"Local", MakeLocal}, LauncherFactory{"Several", MakeSeveral});
INSTANTIATE_TEST_SUITE_P(Local, LauncherConformance, kLaunchers, LauncherConformance::Name);
INSTANTIATE_TEST_SUITE_P(Local, LauncherRanksConformance, kLaunchers,
                         LauncherRanksConformance::Name);
INSTANTIATE_TEST_SUITE_P(Local, LauncherOwnerConformance, kLaunchers,
                         LauncherOwnerConformance::Name);

class LocalLauncherTest : public LauncherFixture {
 protected:
  void Open(int slots = 2) { Use(OpenLocalLauncher(OptionsAt(temp_.path(), slots))); }

  LaunchDirectory At(const std::string& id) const {
    return LaunchDirectory((temp_.path() / id).string());
  }
};

TEST_F(LocalLauncherTest, OneOfSeveralIsChosenByItsName) {
  const auto open = [&](const char* name) {
    return [this, name] { return OpenLocalLauncher(OptionsAt(temp_.path() / name)); };
  };
  auto opened = OpenSeveralLaunchers({{.name = "one", .open = open("one")},
                                      {.name = "two", .open = open("two"), .at_once = false}});
  ASSERT_TRUE(opened.ok()) << opened.status().ToString();
  launcher_ = std::move(*opened);
  EXPECT_FALSE(std::filesystem::exists(temp_.path() / "two")) << "not before it is wanted";
  LaunchSpec spec = Script("a", "echo two");
  spec.launcher = "two";
  ASSERT_TRUE(launcher_->Submit(spec).ok());
  ASSERT_TRUE(launcher_->Wait("a", 30s).ok());
  EXPECT_TRUE(std::filesystem::exists(temp_.path() / "two" / "a"));
  EXPECT_EQ(launcher_->Get("a")->launcher, "two");
  EXPECT_EQ(launcher_->Submit(Script("a", "true")).code(), Code::kAlreadyExists);
  spec.launcher = "three";
  spec.id = "b";
  EXPECT_THAT(std::string(launcher_->Submit(spec).message()), HasSubstr("one, two"));
}

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
  LaunchSpec again = Script("again", "");
  again.argv = {*FindShim(""), At("a").path(), "-1"};
  ASSERT_TRUE(launcher_->Submit(again).ok());
  EXPECT_EQ(launcher_->Wait("again", 30s)->exit->code, 3);
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

TEST_F(LocalLauncherTest, ADamagedRecordOfALaunchThatLivesIsNotTakenForItsEnd) {
  for (const char* damaged : {"launch.json", "keeper.json"}) {
    Open();
    ASSERT_TRUE(launcher_->Submit(Script(damaged, "echo ready; sleep 1000")).ok());
    UntilSaid(damaged);
    launcher_.reset();
    std::ofstream(At(damaged).path() + "/" + damaged, std::ios::trunc) << "{}";
    Open();
    ASSERT_EQ(launcher_->Get(damaged)->state, LaunchState::kRunning) << damaged;
    EXPECT_FALSE(ProcessesWith("CAIRN_TEST_MARK", mark_).empty());
    EXPECT_EQ(launcher_->Submit(Script(damaged, "true")).code(), Code::kAlreadyExists);
    EXPECT_EQ(launcher_->Forget(damaged).code(), Code::kFailedPrecondition);
    // It can still be told to stop, and says how it ended.
    ASSERT_TRUE(launcher_->Stop(damaged, 30s).ok());
    const auto info = launcher_->Wait(damaged, 30s);
    ASSERT_TRUE(info.ok()) << info.status().ToString();
    EXPECT_EQ(info->exit->kind, ExitKind::kSignaled) << damaged;
    EXPECT_TRUE(ProcessesWith("CAIRN_TEST_MARK", mark_).empty());
    launcher_.reset();
  }
}

TEST_F(LocalLauncherTest, ADamagedRecordOfALaunchWhoseKeeperDiedIsLostWithAllItsProcesses) {
  Open();
  ASSERT_TRUE(launcher_->Submit(Script("a", "setsid sleep 1000 & echo ready; sleep 1000")).ok());
  UntilSaid("a");
  const auto keeper = At("a").ReadKeeper();
  launcher_.reset();
  std::ofstream(At("a").path() + "/launch.json", std::ios::trunc) << "{}";
  Open();
  ASSERT_EQ(launcher_->Get("a")->state, LaunchState::kRunning);
  ASSERT_EQ(::kill(static_cast<pid_t>(keeper->pid), SIGKILL), 0);
  EXPECT_EQ(launcher_->Wait("a", 30s)->exit->kind, ExitKind::kLost);
  EXPECT_TRUE(ProcessesWith("CAIRN_TEST_MARK", mark_).empty()) << "also the one with a session";
  waitpid(static_cast<pid_t>(keeper->pid), nullptr, 0);
}

TEST_F(LocalLauncherTest, AnEndThatCannotBeWrittenIsWrittenLater) {
  Open();
  ASSERT_TRUE(launcher_->Submit(Script("a", "echo ready; sleep 1000")).ok());
  UntilSaid("a");
  // As a full disk does, this keeps the record from being written under its temporary name.
  const auto keeper = At("a").ReadKeeper();
  const std::string obstacle = At("a").path() + "/exit.json." + std::to_string(keeper->pid);
  std::filesystem::create_directory(obstacle);
  ASSERT_TRUE(launcher_->Stop("a", 30s).ok());
  // Only the keeper is left of it, and it has not ended.
  while (ProcessesWith("CAIRN_TEST_MARK", mark_).size() > 1) std::this_thread::sleep_for(2ms);
  std::this_thread::sleep_for(200ms);
  EXPECT_EQ(launcher_->Get("a")->state, LaunchState::kRunning);
  EXPECT_EQ(launcher_->Wait("a", 100ms).status().code(), Code::kDeadlineExceeded);
  std::filesystem::remove(obstacle);
  const auto info = launcher_->Wait("a", 30s);
  ASSERT_TRUE(info.ok()) << info.status().ToString();
  EXPECT_EQ(info->exit->kind, ExitKind::kSignaled);
  EXPECT_TRUE(info->exit->stopped);
}

TEST_F(LocalLauncherTest, AStopThatCouldNotBeToldIsAnErrorAndWorksWhenItIsAskedForAgain) {
  Open();
  // Ignored, not caught: a shell may die of thousands of handlers.
  ASSERT_TRUE(launcher_->Submit(Script("a", "trap '' USR1; echo ready; sleep 1000")).ok());
  UntilSaid("a");
  const auto keeper = At("a").ReadKeeper();
  ASSERT_EQ(::kill(static_cast<pid_t>(keeper->pid), SIGSTOP), 0);
  Status told;
  while (told.ok()) told = launcher_->Signal("a", SIGUSR1);  // until its pipe is full
  EXPECT_EQ(told.code(), Code::kUnavailable) << told.ToString();
  EXPECT_EQ(launcher_->Kill("a").code(), Code::kUnavailable);
  ASSERT_EQ(::kill(static_cast<pid_t>(keeper->pid), SIGCONT), 0)
      << launcher_->Wait("a", 1s)->exit->message;
  while (!(told = launcher_->Kill("a")).ok()) {
    ASSERT_EQ(told.code(), Code::kUnavailable);
    std::this_thread::sleep_for(2ms);
  }
  EXPECT_TRUE(launcher_->Wait("a", 30s)->exit->stopped);
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

}  // namespace
}  // namespace cairn
