#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <cairn/checkpoint_manager.h>

#include "storage/local/temp_directory.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

constexpr std::size_t kNumbers = 3000;

/// A repository on the disk with a checkpoint per step.
class InspectTest : public testing::Test {
 protected:
  std::string Repository(const std::string& name, const std::vector<std::int64_t>& steps) {
    const std::string path = directory_ / name;
    auto manager = CheckpointManager::Open(
        {.directory = path, .retention = {.keep_last = std::nullopt}, .pool_bytes = 0});
    EXPECT_TRUE(manager.ok()) << manager.status().ToString();
    for (const std::int64_t step : steps) {
      std::vector<float> weights(kNumbers, static_cast<float>(step));
      std::vector<double> slots(100, 0.5);
      auto saved = (*manager)->Save(
          {.step = step,
           .tensors = {{.name = "weights", .shape = {kNumbers}, .data = weights.data()},
                       {.name = "slots",
                        .dtype = DType::kF64,
                        .shape = {100},
                        .data = slots.data(),
                        .group = TensorGroup::kState}},
           .files = {{.name = "config.json", .bytes = "{}"}},
           .blocking = true});
      EXPECT_TRUE(saved.ok()) << saved.status().ToString();
    }
    EXPECT_TRUE((*manager)->Close().ok());
    return path;
  }

  static std::string Read(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static void Write(const std::string& path, const std::string& bytes) {
    fs::remove(path);  // other names of the same file stay as they are
    std::ofstream(path, std::ios::binary) << bytes;
  }
  static void Flip(const std::string& path, std::size_t from_end) {
    std::string bytes = Read(path);
    ASSERT_GT(bytes.size(), from_end);
    bytes[bytes.size() - 1 - from_end] ^= 1;
    Write(path, bytes);
  }
  static VerifyReport Verified(const std::string& path, bool deep) {
    auto report = Verify(path, deep);
    EXPECT_TRUE(report.ok()) << report.status().ToString();
    return report.ok() ? *report : VerifyReport();
  }
  static auto Problem(const std::string& where, const std::string& what) {
    return AllOf(Field(&VerifyProblem::checkpoint, where),
                 Field(&VerifyProblem::what, HasSubstr(what)));
  }

  TempDirectory directory_;
  const std::string data_ = "__model__/rank_0-00001.safetensors";
};

TEST_F(InspectTest, EndsWhenTheProgressSaysSo) {
  const std::string path = Repository("a", {10, 20});
  int calls = 0;
  const Progress stop = [&](std::uint64_t, std::uint64_t) { return ++calls < 2; };
  for (const bool deep : {false, true}) {
    calls = 0;
    EXPECT_EQ(Verify(path, deep, stop).status().code(), Code::kCancelled);
    EXPECT_EQ(calls, 2);
  }
  const auto never = [](std::uint64_t, std::uint64_t) { return false; };
  EXPECT_EQ(Diff(path + "/checkpoint_000010", path + "/checkpoint_000020", never).status().code(),
            Code::kCancelled);
}

TEST_F(InspectTest, AWholeRepositoryHasNoProblems) {
  const std::string path = Repository("a", {10, 20});
  const VerifyReport fast = Verified(path, /*deep=*/false);
  EXPECT_THAT(fast.problems, IsEmpty());
  EXPECT_EQ(fast.checkpoints.size(), 2u);
  EXPECT_EQ(fast.bytes, 0u);
  std::uint64_t last = 0;
  std::uint64_t total = 0;
  auto deep = Verify(path, /*deep=*/true, [&](std::uint64_t done, std::uint64_t all) {
    EXPECT_GE(done, last);
    last = done;
    total = all;
  });
  ASSERT_TRUE(deep.ok()) << deep.status().ToString();
  EXPECT_THAT(deep->problems, IsEmpty());
  EXPECT_EQ(deep->bytes, deep->checkpoints[0].bytes + deep->checkpoints[1].bytes);
  EXPECT_EQ(last, total);
  EXPECT_EQ(total, deep->bytes);
  EXPECT_EQ(deep->files, fast.files);
}

TEST_F(InspectTest, AFlippedByteIsFoundByTheDeepLookOnly) {
  const std::string path = Repository("a", {10, 20});
  Flip(path + "/checkpoint_000020/" + data_, 5);
  EXPECT_THAT(Verified(path, false).problems, IsEmpty());
  EXPECT_THAT(Verified(path, true).problems,
              ElementsAre(Problem("checkpoint_000020", data_ + ": 1 of 1 chunks differ")));
}

TEST_F(InspectTest, EveryMissingAndCutFileIsNamed) {
  const std::string path = Repository("a", {10});
  fs::remove(path + "/checkpoint_000010/files/config.json");
  fs::resize_file(path + "/checkpoint_000010/" + data_, 100);
  Flip(path + "/checkpoint_000010/rank_0/state.safetensors", 3);
  EXPECT_THAT(Verified(path, false).problems,
              UnorderedElementsAre(Problem("checkpoint_000010", "files/config.json: is missing"),
                                   Problem("checkpoint_000010", data_ + ": has 100 bytes")));
  EXPECT_THAT(Verified(path, true).problems,
              UnorderedElementsAre(Problem("checkpoint_000010", "files/config.json: is missing"),
                                   Problem("checkpoint_000010", data_ + ": has 100 bytes"),
                                   Problem("checkpoint_000010", "rank_0/state.safetensors")));
}

TEST_F(InspectTest, DamagedRecordsAreNamed) {
  const std::string path = Repository("a", {10, 20});
  {
    auto manager = CheckpointManager::Open({.directory = path, .read_only = true});
    ASSERT_TRUE(manager.ok());
    ASSERT_TRUE((*manager)->Pin((*manager)->Latest().value()->id).ok());
  }
  Flip(path + "/cairn.json", 40);
  Flip(path + "/generations/000001.json", 40);
  Flip(path + "/generations/000001.seal.json", 40);
  Flip(path + "/checkpoint_000010/manifest.json", 100);
  Flip(path + "/checkpoint_000020/notes/000001.json", 40);
  // A manifest still says whose the directory is.
  EXPECT_THAT(
      Verified(path, false).problems,
      UnorderedElementsAre(Problem("cairn.json", ""), Problem("generations/000001.json", ""),
                           Problem("generations/000001.seal.json", ""),
                           Problem("checkpoint_000010", "manifest.json"),
                           Problem("checkpoint_000020/notes/000001.json", "")));
  Flip(path + "/checkpoint_000020/manifest.json", 100);
  EXPECT_EQ(Verify(path, false).status().code(), Code::kCorruption) << "now nobody does";
}

// Records of the ranks' meetings are not made durable, and nobody reads those of a checkpoint that
// was committed: a machine that went down leaves them without bytes, or with zeros.
TEST_F(InspectTest, WhatWentDownWithTheMachineIsNoProblem) {
  const std::string path = directory_ / "run";
  const auto rank = [&](int number) {
    auto manager = CheckpointManager::Open({.directory = path, .rank = number, .world_size = 2});
    ASSERT_TRUE(manager.ok()) << manager.status().ToString();
    const std::vector<float> weights(kNumbers, 1);
    const auto saved = (*manager)->Save(
        {.step = 1,
         .tensors =
             {{.name = "w", .shape = {kNumbers}, .data = weights.data(), .replicated = true}},
         .blocking = true});
    ASSERT_TRUE(saved.ok()) << saved.status().ToString();
  };
  {
    std::jthread other([&] { rank(1); });
    rank(0);
  }
  const auto records = [&] {
    std::vector<std::string> found;
    for (const auto& entry : fs::recursive_directory_iterator(path)) {
      const std::string name = fs::relative(entry.path(), path).string();
      if (name.starts_with("checkpoint_000001/parts/") || name.ends_with(".start.json") ||
          name.starts_with("generations/000001/attempts/") || name.ends_with(".end.json") ||
          name.starts_with("generations/joins/rank_")) {
        found.push_back(name);
      }
    }
    return found;
  }();
  ASSERT_GE(records.size(), 5u) << testing::PrintToString(records);
  const std::string begun = "{\"rec";
  for (const std::string& left :
       {std::string(), std::string(300, '\0'), begun + std::string(1, '\0'),
        begun + std::string(4096 - begun.size(), 'o'), begun}) {
    for (const std::string& record : records) Write(path + "/" + record, left);
    const VerifyReport report = Verified(path, true);
    EXPECT_EQ(report.problems.size(), left == begun ? records.size() : 0u)
        << testing::PrintToString(records) << (report.ok() ? "" : report.problems[0].what);
  }
}

TEST_F(InspectTest, AnUnfinishedSaveIsNoProblem) {
  const std::string path = Repository("a", {10});
  fs::create_directories(path + "/checkpoint_000020/__model__");
  Write(path + "/checkpoint_000020/" + data_, "half");
  EXPECT_THAT(Verified(path, true).problems, IsEmpty());
}

TEST_F(InspectTest, ASingleCheckpointCanBeVerified) {
  const std::string path = Repository("a", {10, 20});
  Flip(path + "/checkpoint_000010/" + data_, 0);
  EXPECT_THAT(Verified(path + "/checkpoint_000020/", true).problems, IsEmpty());
  EXPECT_EQ(Verified(path + "/checkpoint_000010", true).problems.size(), 1u);
  // Also outside any repository.
  fs::copy(path + "/checkpoint_000020", directory_ / "alone", fs::copy_options::recursive);
  const VerifyReport alone = Verified(directory_ / "alone", true);
  EXPECT_THAT(alone.problems, IsEmpty());
  EXPECT_EQ(alone.checkpoints.size(), 1u);
}

TEST_F(InspectTest, AForeignCheckpointIsVerifiedToo) {
  const std::string path = Repository("a", {10});
  const std::string other = Repository("b", {30});
  fs::copy(other + "/checkpoint_000030", path + "/theirs", fs::copy_options::recursive);
  EXPECT_EQ(Verified(path, true).checkpoints.size(), 2u);
  Flip(path + "/theirs/" + data_, 0);
  EXPECT_THAT(Verified(path, true).problems, ElementsAre(Problem("theirs", data_)));
}

TEST_F(InspectTest, WhatIsNoRepositoryIsRefusedAndNotMade) {
  EXPECT_EQ(Verify(directory_ / "none", true).status().code(), Code::kNotFound);
  EXPECT_FALSE(fs::exists(directory_ / "none"));
  EXPECT_EQ(Verify(directory_.path(), true).status().code(), Code::kNotFound);
  Write(directory_ / "file", "x");
  EXPECT_EQ(Verify(directory_ / "file", true).status().code(), Code::kInvalidArgument);
  const auto too_long = Verify(directory_ / std::string(10000, 'n'), true);
  EXPECT_EQ(too_long.status().code(), Code::kInvalidArgument);
  EXPECT_LT(too_long.status().message().size(), 300u);
  EXPECT_EQ(Verify("", true).status().code(), Code::kInvalidArgument);
}

TEST_F(InspectTest, DiffComparesTwoCheckpointsByTheirDirectories) {
  const std::string a = Repository("a", {10, 20});
  const std::string b = Repository("b", {10});
  auto changed = Diff(a + "/checkpoint_000010", a + "/checkpoint_000020/");
  ASSERT_TRUE(changed.ok()) << changed.status().ToString();
  ASSERT_EQ(changed->size(), 1u);
  EXPECT_EQ(changed->front().name, "weights");
  EXPECT_EQ(changed->front().what, "changed");
  EXPECT_EQ(changed->front().max_abs, 10.0);
  EXPECT_EQ(changed->front().elements, kNumbers);
  auto same = Diff(a + "/checkpoint_000010", b + "/../b/checkpoint_000010");
  ASSERT_TRUE(same.ok()) << same.status().ToString();
  EXPECT_THAT(*same, IsEmpty());
  EXPECT_EQ(Diff(a, b).status().code(), Code::kNotFound);
}

}  // namespace
}  // namespace cairn
