#include "launch/launch_records.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

#include "format/sealed_json.h"
#include "launch/launch_directory.h"

namespace cairn {
namespace {

using ::testing::HasSubstr;

std::string Golden(const std::string& name) {
  std::ifstream file("tests/compat/launch_v1/" + name, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

LaunchRecord SomeLaunch() {
  LaunchRecord record;
  record.id = "trial-7.run-2";
  record.key = "0f8fad5b-d9cb-469f-a165-70867728950e";
  record.argv = {"python3", "train.py", "--lr=0.1"};
  record.cwd = "/home/me/code";
  record.processes = 2;
  record.slots = "0,3";
  record.priority = -1;
  record.limits.open_files = 4096;
  record.limits.wall_time = std::chrono::seconds(60);
  record.grace = 5'000'000'000;
  record.outlive_owner = true;
  record.submitted = 1'794'733'451'000'000'000;
  return record;
}

LaunchExit SomeExit() {
  LaunchExit exit;
  exit.kind = ExitKind::kSignaled;
  exit.signal = 9;
  exit.rank = 1;
  exit.stopped = true;
  exit.message = "rank 1 died of signal 9 (Killed)";
  exit.time = 1'794'733'461'000'000'000;
  return exit;
}

TEST(LaunchRecordsTest, GoldenFilesStayReadable) {
  EXPECT_EQ(Golden("launch.json"), Encode(SomeLaunch()));
  EXPECT_EQ(Golden("keeper.json"),
            Encode(KeeperRecord{.pid = 4711, .start_ticks = 88123, .boot = "a-boot"}));
  EXPECT_EQ(Golden("running.json"),
            Encode(RunningRecord{.pids = {4712, 4713}, .time = 1'794'733'452'000'000'000}));
  EXPECT_EQ(Golden("exit.json"), Encode(SomeExit()));
  LaunchRecord of_slurm = SomeLaunch();
  of_slurm.job = "trial-7.run-2.0f8fad5b-d9cb";
  of_slurm.job_index = 3;
  EXPECT_EQ(Golden("launch_slurm.json"), Encode(of_slurm));
  EXPECT_EQ(Encode(*DecodeLaunch(Golden("launch_slurm.json"))), Encode(of_slurm));
  const auto launch = DecodeLaunch(Golden("launch.json"));
  ASSERT_TRUE(launch.ok()) << launch.status().ToString();
  EXPECT_EQ(Encode(*launch), Encode(SomeLaunch()));
  EXPECT_EQ(DecodeKeeper(Golden("keeper.json"))->pid, 4711);
  EXPECT_EQ(DecodeRunning(Golden("running.json"))->pids.size(), 2u);
  EXPECT_EQ(Encode(*DecodeExit(Golden("exit.json"))), Encode(SomeExit()));
}

TEST(LaunchRecordsTest, OneKindIsNotReadAsAnother) {
  const std::string keeper = Encode(KeeperRecord{.pid = 7, .start_ticks = 1, .boot = "b"});
  EXPECT_EQ(DecodeExit(keeper).status().code(), Code::kCorruption);
  EXPECT_EQ(DecodeLaunch(keeper).status().code(), Code::kCorruption);
  EXPECT_EQ(DecodeRunning(keeper).status().code(), Code::kCorruption);
}

TEST(LaunchRecordsTest, EveryChangedByteIsNoticed) {
  const std::string whole = Encode(SomeExit());
  for (std::size_t i = 0; i < whole.size(); ++i) {
    std::string damaged = whole;
    damaged[i] ^= 1;
    EXPECT_FALSE(DecodeExit(damaged).ok()) << i;
    EXPECT_FALSE(DecodeExit(whole.substr(0, i)).ok()) << i;
  }
}

TEST(LaunchRecordsTest, APidThatMeansManyIsRefused) {
  for (const std::int64_t pid : {0, 1, -1, -4711}) {
    SealedJsonWriter out;
    out.Text("record", "keeper");
    out.Int("pid", pid);
    out.Uint("start_ticks", 1);
    out.Text("boot", "b");
    const auto keeper = DecodeKeeper(out.Seal());
    ASSERT_FALSE(keeper.ok());
    EXPECT_THAT(std::string(keeper.status().message()), HasSubstr("no process"));
  }
}

TEST(ControlCommandTest, WhatIsNotUnderstoodIsLeftOut) {
  const auto stop = ParseCommand(
      EncodeCommand({.kind = ControlCommand::Kind::kStop, .signal = 0, .grace = 5}).substr(0, 6));
  ASSERT_TRUE(stop.has_value());
  EXPECT_EQ(stop->grace, 5);
  EXPECT_EQ(ParseCommand("signal 15")->signal, 15);
  for (const char* line : {"", "stop", "stop -1", "stop x", "signal 0", "signal 999", "dance 3"}) {
    EXPECT_FALSE(ParseCommand(line).has_value()) << line;
  }
}

}  // namespace
}  // namespace cairn
