#include "checkpoint/transfer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "checkpoint/catalog.h"
#include "checkpoint/manager.h"
#include "checkpoint/names.h"
#include "checkpoint/restore.h"
#include "checkpoint/test_checkpoint.h"
#include "format/safetensors.h"
#include "storage/local/local_store.h"
#include "storage/local/temp_directory.h"
#include "storage/memory/memory_store.h"
#include "storage/sim/sim_fs.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

std::vector<float> Numbers(std::size_t count, double first) {
  std::vector<float> numbers(count);
  std::iota(numbers.begin(), numbers.end(), static_cast<float>(first));
  return numbers;
}

Tensor View(const std::string& name, const std::vector<float>& numbers) {
  return {.name = name, .shape = {numbers.size()}, .data = numbers.data()};
}

/// What one save puts in: weights that change, frozen ones that do not, a state and a file.
struct State {
  std::vector<float> weights;
  std::vector<float> frozen = Numbers(3000, 7);
  std::vector<float> state;

  explicit State(std::int64_t step)
      : weights(Numbers(5000, static_cast<double>(step))),
        state(Numbers(10, static_cast<double>(-step))) {}

  SaveRequest Request(std::int64_t step) const {
    Tensor own = View("rng", state);
    own.group = TensorGroup::kState;
    return {.step = step,
            .tensors = {View("weights", weights), View("frozen", frozen), own},
            .counters = Value::Object{{"epoch", step / 10}},
            .metrics = Value::Object{{"loss", 1.0 / static_cast<double>(step + 1)}},
            .metadata = Value::Object{{"name", "ümläut"}},
            .files = {{.name = "config.json", .bytes = "{\"step\": " + std::to_string(step) + "}"}},
            .state_files = {{"state.json", "{}"}},
            .blocking = true};
  }
};

std::vector<float> Floats(const OwnedTensor& tensor) {
  std::vector<float> numbers(tensor.bytes / sizeof(float));
  std::memcpy(numbers.data(), tensor.data.get(), tensor.bytes);
  return numbers;
}

std::map<std::string, std::vector<float>> RestoreAll(CheckpointManager* manager,
                                                     const std::string& id = "") {
  auto restored = manager->Restore({.allocate = true, .id = id});
  EXPECT_TRUE(restored.ok()) << restored.status().ToString();
  std::map<std::string, std::vector<float>> tensors;
  if (!restored.ok() || !restored->has_value()) return tensors;
  for (const OwnedTensor& tensor : (*restored)->tensors) tensors[tensor.name] = Floats(tensor);
  return tensors;
}

/// Copies between stores in memory: with links and as object stores, in all four pairs.
class CopyTest : public testing::TestWithParam<std::tuple<bool, bool>> {
 protected:
  CopyTest()
      : source_(NewStore(std::get<0>(GetParam()))), target_(NewStore(std::get<1>(GetParam()))) {}

  static std::shared_ptr<MemoryStore> NewStore(bool object_store) {
    return MemoryStore::Open({.object_store = object_store}).value();
  }
  static Environment Env(std::shared_ptr<Store> store) {
    Environment env;
    env.store = std::move(store);
    env.host = "here";
    env.pid = 42;
    return env;
  }
  static std::unique_ptr<CheckpointManager> Open(std::shared_ptr<Store> store,
                                                 ManagerOptions options = {}) {
    options.retention.keep_last.reset();
    auto manager = OpenManager(std::move(options), Env(std::move(store)));
    EXPECT_TRUE(manager.ok()) << manager.status().ToString();
    return manager.ok() ? *std::move(manager) : nullptr;
  }
  std::vector<CheckpointInfo> SaveSteps(const std::vector<std::int64_t>& steps) {
    auto manager = Open(source_);
    for (const std::int64_t step : steps) {
      auto saved = manager->Save(State(step).Request(step));
      EXPECT_TRUE(saved.ok()) << saved.status().ToString();
    }
    return manager->List().value();
  }
  Result<CopyReport> Copy(const CopyRequest& request, const TransferControl& control = {}) {
    const Environment source = Env(source_);
    RepositoryReader reader(source_.get());
    auto view = reader.Read();
    if (!view.ok()) return view.status();
    auto chosen = ChooseForCopy(*view, "source", request);
    if (!chosen.ok()) return chosen.status();
    return CopyInto(source, *view, *chosen, Env(target_), request, control);
  }
  RepositoryView TargetView() { return RepositoryReader(target_.get()).Read().value(); }

  std::shared_ptr<MemoryStore> source_;
  std::shared_ptr<MemoryStore> target_;
};

TEST_P(CopyTest, KeepsIdStepMetricsMetadataAndEveryByte) {
  const std::vector<CheckpointInfo> saved = SaveSteps({10, 20});
  {
    auto manager = Open(source_);
    ASSERT_TRUE(manager->AddMetrics(saved[1].id, Value::Object{{"accuracy", 0.5}}).ok());
  }
  auto report = Copy({});
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  ASSERT_EQ(report->copied.size(), 1u);

  auto manager = Open(target_, {.read_only = true});
  const CheckpointInfo copy = manager->Latest().value().value();
  EXPECT_EQ(copy.id, saved[1].id);
  EXPECT_EQ(copy.step, 20);
  EXPECT_EQ(copy.bytes, saved[1].bytes);
  EXPECT_EQ(copy.time, saved[1].time);
  EXPECT_EQ(copy.metadata, saved[1].metadata);
  EXPECT_EQ(copy.counters, saved[1].counters);
  EXPECT_EQ(*copy.metrics.Find("accuracy"), Value(0.5));
  EXPECT_EQ(*copy.metrics.Find("loss"), *saved[1].metrics.Find("loss"));
  EXPECT_EQ(RepositoryReader(source_.get()).ReadRecord()->job, manager->job());

  const RepositoryView from = RepositoryReader(source_.get()).Read().value();
  const RepositoryView to = TargetView();
  const Checkpoint* a = from.Find(copy.id);
  const Checkpoint* b = to.Find(copy.id);
  EXPECT_EQ(b->manifest->lineage.Find("copied_from/job")->if_string()[0], a->manifest->job);
  ASSERT_EQ(a->manifest->files.size(), b->manifest->files.size());
  for (const ManifestFile& file : a->manifest->files) {
    const std::string at = file.ref.empty() ? names::Path(a->directory, file.path) : file.ref;
    EXPECT_EQ(source_->Get(at, ~0u).value(),
              target_->Get(names::Path(b->directory, file.path), ~0u).value())
        << file.path;
  }
  const auto tensors = RestoreAll(manager.get());
  EXPECT_EQ(tensors.at("weights"), State(20).weights);
  EXPECT_EQ(tensors.at("frozen"), State(20).frozen);
}

TEST_P(CopyTest, AllKeepsTheOrderAndSharesWhatDidNotChange) {
  SaveSteps({10, 20, 30});
  auto report = Copy({.all = true});
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->copied.size(), 3u);
  EXPECT_GT(report->bytes_shared, 0u);
  auto manager = Open(target_);
  EXPECT_EQ(manager->Latest().value()->step, 30);
  std::vector<std::int64_t> steps;
  for (const CheckpointInfo& info : manager->List().value()) {
    steps.push_back(info.step);
    EXPECT_EQ(RestoreAll(manager.get(), info.id).at("weights"), State(info.step).weights);
  }
  EXPECT_THAT(steps, ElementsAre(10, 20, 30));
  // Removing the first must not take shared bytes from the others.
  ASSERT_TRUE(manager->Delete(manager->List().value()[0].id).ok());
  EXPECT_EQ(RestoreAll(manager.get()).at("frozen"), State(30).frozen);
}

TEST_P(CopyTest, AgainIsANoOpThatTakesNoOwnership) {
  SaveSteps({10, 20});
  ASSERT_TRUE(Copy({.all = true}).ok());
  const std::uint64_t fence = TargetView().newest_fence;
  auto again = Copy({.all = true});
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  EXPECT_THAT(again->copied, IsEmpty());
  EXPECT_EQ(again->already_there.size(), 2u);
  EXPECT_EQ(TargetView().newest_fence, fence);
}

TEST_P(CopyTest, ADamagedSourceIsNotCopied) {
  SaveSteps({10});
  const RepositoryView view = RepositoryReader(source_.get()).Read().value();
  FlipBit(source_.get(), view.checkpoints[0].directory + "/__model__/rank_0-00001.safetensors",
          9000);
  auto report = Copy({});
  EXPECT_EQ(report.status().code(), Code::kCorruption) << report.status().ToString();
  const std::string said(report.status().message());
  EXPECT_THAT(said, HasSubstr("copy step 10: " + view.checkpoints[0].directory +
                              "/__model__/rank_0-00001.safetensors: chunk 1 of "));
  EXPECT_THAT(said, HasSubstr("cairn checkpoint verify"));
  EXPECT_EQ(said.find("rank_0-00001"), said.rfind("rank_0-00001")) << "named once: " << said;
  EXPECT_THAT(TargetView().checkpoints, IsEmpty());
  EXPECT_THAT(TargetView().unfinished, IsEmpty());
}

TEST_P(CopyTest, ACancelledCopyGoesOnLater) {
  SaveSteps({10, 20});
  int asked = 0;
  auto cut = Copy({.all = true}, {.cancelled = [&] { return ++asked > 8; }});
  ASSERT_EQ(cut.status().code(), Code::kCancelled) << cut.status().ToString();
  EXPECT_LT(TargetView().checkpoints.size(), 2u);
  auto rest = Copy({.all = true});
  ASSERT_TRUE(rest.ok()) << rest.status().ToString();
  EXPECT_EQ(rest->copied.size() + rest->already_there.size(), 2u);
  EXPECT_THAT(TargetView().unfinished, IsEmpty());
}

TEST_P(CopyTest, AnotherJobsRepositoryIsRefusedUnlessAdopted) {
  SaveSteps({10});
  {
    auto theirs = Open(target_, {.job = "theirs"});
  }
  auto refused = Copy({});
  EXPECT_EQ(refused.status().code(), Code::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("theirs"));
  auto adopted = Copy({.adopt = true});
  ASSERT_TRUE(adopted.ok()) << adopted.status().ToString();
  EXPECT_EQ(Open(target_)->Latest().value()->step, 10);
}

TEST_P(CopyTest, ADamagedCopyInTheTargetIsSaid) {
  SaveSteps({10});
  ASSERT_TRUE(Copy({}).ok());
  const RepositoryView view = TargetView();
  const Checkpoint& copy = view.checkpoints[0];
  ASSERT_TRUE(target_->Delete(copy.directory + "/__model__/rank_0-00001.safetensors").ok());
  auto again = Copy({});
  EXPECT_EQ(again.status().code(), Code::kFailedPrecondition) << again.status().ToString();
}

TEST_P(CopyTest, ChoosesByStepAndById) {
  const std::vector<CheckpointInfo> saved = SaveSteps({10, 20, 30});
  auto report = Copy({.choices = {{.step = 20}, {.id = saved[0].id}}});
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->copied.size(), 2u);
  EXPECT_EQ(Open(target_)->Latest().value()->step, 20);
  auto missing = Copy({.choices = {{.step = 25}}});
  EXPECT_EQ(missing.status().code(), Code::kNotFound);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("30, 20, 10"));
}

TEST_P(CopyTest, AWriterInTheTargetIsNamed) {
  if (std::get<1>(GetParam())) GTEST_SKIP() << "object stores have no locks";
  SaveSteps({10});
  auto job = RepositoryReader(source_.get()).ReadRecord()->job;
  auto writer = Open(target_, {.job = job});
  auto refused = Copy({});
  EXPECT_EQ(refused.status().code(), Code::kUnavailable);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("process 42 on here"));
}

/// Copies of one checkpoint of many files whose target ends at any instant.
class CutCopyTest : public testing::Test {
 protected:
  static constexpr int kTensors = 6;

  CutCopyTest() : source_(MemoryStore::Open({}).value()) {
    SetLogSink([](LogLevel, std::string_view) {});
    LayoutLimits limits;
    limits.own_file_bytes = 4096;
    auto manager = OpenManager({}, Env(source_), limits).value();
    std::vector<std::vector<float>> numbers;
    SaveRequest request{.step = 10, .blocking = true};
    for (int i = 0; i < kTensors; ++i) numbers.push_back(Numbers(3000, i));
    for (int i = 0; i < kTensors; ++i) {
      request.tensors.push_back(View("w" + std::to_string(i), numbers[static_cast<size_t>(i)]));
    }
    EXPECT_TRUE(manager->Save(std::move(request)).ok());
    EXPECT_TRUE(manager->Close().ok());
    view_ = RepositoryReader(source_.get()).Read().value();
  }
  ~CutCopyTest() override { SetLogSink(nullptr); }

  static Environment Env(std::shared_ptr<Store> store) {
    Environment env;
    env.store = std::move(store);
    return env;
  }
  Result<CopyReport> Copy(std::shared_ptr<Store> target) {
    const auto chosen = ChooseForCopy(view_, "source", {});
    if (!chosen.ok()) return chosen.status();
    return CopyInto(Env(source_), view_, *chosen, Env(std::move(target)), {}, {});
  }
  std::uint64_t Bytes() const { return view_.checkpoints[0].manifest->Bytes(); }

  /// What a target may have after a crash, and after the copy was started again; the bytes that
  /// did not have to be written.
  std::uint64_t GoOn(std::shared_ptr<Store> target, const std::string& what) {
    const auto before = RepositoryReader(target.get()).Read();
    if (before.ok()) {
      for (const Checkpoint& checkpoint : before->checkpoints) {
        if (checkpoint.counts) ExpectWhole(target.get(), checkpoint, what + ", at once");
      }
    }
    auto report = Copy(target);
    EXPECT_TRUE(report.ok()) << what << ": " << report.status().ToString();
    if (!report.ok()) return 0;
    const RepositoryView after = RepositoryReader(target.get()).Read().value();
    EXPECT_THAT(after.unfinished, IsEmpty()) << what;
    EXPECT_EQ(after.checkpoints.size(), 1u) << what;
    for (const Checkpoint& checkpoint : after.checkpoints) {
      EXPECT_TRUE(checkpoint.counts) << what;
      ExpectWhole(target.get(), checkpoint, what);
    }
    if (report->copied.empty()) return 0;
    EXPECT_EQ(report->bytes + report->bytes_resumed, Bytes()) << what;
    return report->bytes_resumed;
  }
  static void ExpectWhole(Store* store, const Checkpoint& checkpoint, const std::string& what) {
    auto open = OpenCheckpoint::Open(store, checkpoint.directory, checkpoint.manifest);
    ASSERT_TRUE(open.ok()) << what << ": " << open.status().ToString();
    std::vector<VerifyProblem> problems;
    ASSERT_TRUE(VerifyFiles(store, **open, {}, &problems).ok()) << what;
    EXPECT_THAT(problems, IsEmpty()) << what;
  }

  std::shared_ptr<MemoryStore> source_;
  RepositoryView view_;
};

TEST_F(CutCopyTest, OnAnObjectStoreOrAMemoryDiskItGoesOnWithTheFilesThatArrived) {
  for (const bool object_store : {true, false}) {
    std::shared_ptr<MemoryStore> target =
        MemoryStore::Open({.object_store = object_store, .part_bytes = 4096}).value();
    std::vector<std::pair<std::string, std::shared_ptr<const MemoryImage>>> cuts;
    target->SetHook([&](const StoreOp& op) {
      if (IsMutation(op.kind)) cuts.emplace_back(DescribeStoreOp(op), target->Snapshot());
    });
    ASSERT_TRUE(Copy(target).ok());
    target->SetHook(nullptr);
    std::uint64_t most = 0;
    for (const auto& [operation, image] : cuts) {
      most = std::max(most, GoOn(MemoryStore::FromSnapshot(*image), "before " + operation));
    }
    EXPECT_EQ(most, Bytes()) << "of all files in place only the manifest is missing";
  }
}

TEST_F(CutCopyTest, ACopyThatIsCutShortAgainAndAgainGetsToItsEnd) {
  std::shared_ptr<MemoryStore> target = MemoryStore::Open({}).value();
  // Each run ends when two more files have appeared.
  for (int run = 0; run < kTensors; ++run) {
    std::shared_ptr<const MemoryImage> image;
    int appeared = 0;
    target->SetHook([&](const StoreOp& op) {
      if (op.kind == StoreOp::Kind::kPublish && ++appeared == 3) image = target->Snapshot();
    });
    const auto report = Copy(target);
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    target->SetHook(nullptr);
    if (image == nullptr) {
      EXPECT_GT(run, 1);
      EXPECT_EQ(report->bytes + report->bytes_resumed, Bytes());
      EXPECT_LT(report->bytes, Bytes() / 2);
      return;
    }
    target = MemoryStore::FromSnapshot(*image);
  }
  FAIL() << "it never came to its end";
}

TEST_F(CutCopyTest, WhatALivingCopierDeletesByNameIsNotMissed) {
  std::shared_ptr<MemoryStore> target = MemoryStore::Open({.object_store = true}).value();
  std::shared_ptr<const MemoryImage> image;
  target->SetHook([&](const StoreOp& op) {
    if (op.kind == StoreOp::Kind::kCreate && op.name.ends_with("manifest.json")) {
      image = target->Snapshot();
    }
  });
  ASSERT_TRUE(Copy(target).ok());
  ASSERT_NE(image, nullptr);
  std::shared_ptr<MemoryStore> again = MemoryStore::FromSnapshot(*image);
  // The first copier wakes up after the second has taken its files over, and cleans up.
  again->SetHook([&](const StoreOp& op) {
    if (op.kind != StoreOp::Kind::kCreate || !op.name.ends_with("manifest.json")) return;
    for (const ManifestFile& file : view_.checkpoints[0].manifest->files) {
      again->OpenAgain()
          ->Delete(names::Path(view_.checkpoints[0].directory, file.path))
          .IgnoreError("it was taken over");
    }
  });
  const auto report = Copy(again);
  again->SetHook(nullptr);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->bytes_resumed, Bytes());
  GoOn(again, "after the first copier's end");
}

TEST_F(CutCopyTest, OnADiskNoPowerLossMakesAHalfCopyCount) {
  SimFs disk;
  SeededIds ids(1);
  const auto store = [&ids](SimFs* fs) -> std::shared_ptr<Store> {
    LocalStoreOptions options;
    options.root = "/run";
    options.fs = fs;
    options.ids = &ids;
    options.part_bytes = 8192;
    options.direct_from_bytes = 8192;
    return LocalStore::Open(std::move(options)).value();
  };
  std::vector<std::pair<std::string, std::shared_ptr<const SimImage>>> cuts;
  const auto target = store(&disk);
  disk.SetHook([&](const SimOp& op) { cuts.emplace_back(DescribeSimOp(op), disk.Snapshot()); });
  ASSERT_TRUE(Copy(target).ok());
  disk.SetHook(nullptr);
  std::uint64_t most = 0;
  for (const auto& [operation, image] : cuts) {
    const auto killed = SimFs::FromKill(*image);
    most = std::max(most, GoOn(store(killed.get()), "killed before " + operation));
    for (const CrashMode mode : {CrashMode::kForget, CrashMode::kTorn}) {
      const auto after = SimFs::FromCrash(*image, mode, 7);
      GoOn(store(after.get()), "power loss before " + operation);
      // What was taken over and acknowledged is durable.
      const auto then = SimFs::FromCrash(*after->Snapshot(), CrashMode::kForget, 1);
      const RepositoryView view = RepositoryReader(store(then.get()).get()).Read().value();
      ASSERT_EQ(view.checkpoints.size(), 1u) << operation;
      ExpectWhole(store(then.get()).get(), view.checkpoints[0], "twice, before " + operation);
    }
    if (HasFailure()) return;
  }
  EXPECT_EQ(most, Bytes());
}

/// A checkpoint with one file of three chunks, copied to a disk that ends at any instant.
TEST_F(CutCopyTest, OnADiskItGoesOnInsideAFile) {
  constexpr std::size_t kNumbers = (2 * kChunkBytes + 5000) / sizeof(float);
  {
    auto manager = OpenManager({}, Env(source_)).value();
    const std::vector<float> numbers = Numbers(kNumbers, 3);
    SaveRequest request{.step = 20, .tensors = {View("large", numbers)}, .blocking = true};
    ASSERT_TRUE(manager->Save(std::move(request)).ok());
    ASSERT_TRUE(manager->Close().ok());
  }
  view_ = RepositoryReader(source_.get()).Read().value();
  view_.checkpoints.erase(view_.checkpoints.begin());
  SeededIds ids(1);
  const auto store = [&ids](SimFs* fs, bool direct) -> std::shared_ptr<Store> {
    LocalStoreOptions options;
    options.root = "/run";
    options.fs = fs;
    options.ids = &ids;
    options.part_bytes = kChunkBytes;
    options.write_mode = direct ? WriteMode::kDirect : WriteMode::kBuffered;
    return LocalStore::Open(std::move(options)).value();
  };
  for (const bool direct : {true, false}) {
    SimFs disk;
    std::vector<std::pair<std::string, std::shared_ptr<const SimImage>>> cuts;
    const auto target = store(&disk, direct);
    disk.SetHook([&](const SimOp& op) { cuts.emplace_back(DescribeSimOp(op), disk.Snapshot()); });
    ASSERT_TRUE(Copy(target).ok());
    disk.SetHook(nullptr);
    std::set<std::uint64_t> resumed;
    for (const auto& [operation, image] : cuts) {
      const auto killed = SimFs::FromKill(*image);
      resumed.insert(GoOn(store(killed.get(), direct), "killed before " + operation) / kChunkBytes);
      const auto after = SimFs::FromCrash(*image, CrashMode::kTorn, 7);
      GoOn(store(after.get(), direct), "power loss before " + operation);
      const auto then = SimFs::FromCrash(*after->Snapshot(), CrashMode::kForget, 1);
      const RepositoryView view = RepositoryReader(store(then.get(), direct).get()).Read().value();
      ASSERT_EQ(view.checkpoints.size(), 1u) << operation;
      ExpectWhole(store(then.get(), direct).get(), view.checkpoints[0], "twice, " + operation);
      if (HasFailure()) return;
    }
    EXPECT_THAT(resumed, ElementsAre(0, 1, 2)) << "of two chunks none, one, or both";
  }
}

INSTANTIATE_TEST_SUITE_P(Stores, CopyTest, testing::Combine(testing::Bool(), testing::Bool()),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param) ? "FromObjects"
                                                                      : "FromDisk") +
                                  (std::get<1>(info.param) ? "ToObjects" : "ToDisk");
                         });

TEST(StoredArraySourceTest, PutsPiecesTogetherInBlocksOfAnySize) {
  auto store = NewTestStore();
  // 40 x 60 in four rectangles.
  std::vector<std::uint16_t> whole(40 * 60);
  std::iota(whole.begin(), whole.end(), std::uint16_t{0});
  TestCheckpoint checkpoint;
  int number = 0;
  for (const std::uint64_t row : {0u, 24u}) {
    for (const std::uint64_t column : {0u, 13u}) {
      const std::uint64_t rows = row == 0 ? 24 : 16;
      const std::uint64_t columns = column == 0 ? 13 : 47;
      std::vector<std::uint16_t> piece;
      for (std::uint64_t r = row; r < row + rows; ++r) {
        for (std::uint64_t c = column; c < column + columns; ++c)
          piece.push_back(whole[r * 60 + c]);
      }
      checkpoint.Tensor("__model__/rank_" + std::to_string(number++) + "-00001.safetensors", "w",
                        DType::kU16, {rows, columns}, BytesOf(piece),
                        ShardSpec{{40, 60}, {row, column}});
    }
  }
  checkpoint.Write(store.get());
  auto open = checkpoint.Open(store.get());
  ASSERT_TRUE(open.ok()) << open.status().ToString();
  auto catalog = (*open)->ReadCatalog(TensorGroup::kModel, "");
  ASSERT_TRUE(catalog.ok()) << catalog.status().ToString();
  StoredBytes bytes(store.get(), open->get());
  for (const std::uint64_t block : {2u, 50u, 120u, 1000u, 100000u}) {
    StoredArraySource source(&bytes, catalog->at("w"), block);
    std::vector<std::uint16_t> out(whole.size());
    const std::span<std::byte> memory = std::as_writable_bytes(std::span(out));
    for (std::size_t at = 0; at < memory.size(); at += 700) {
      const Status filled =
          source.Fill(at, memory.subspan(at, std::min<std::size_t>(700, memory.size() - at)));
      ASSERT_TRUE(filled.ok()) << filled.ToString();
    }
    EXPECT_EQ(out, whole) << block;
  }
}

TEST(StoredBytesTest, ReadsFilesOfManyChunksAndFindsTheDamagedOne) {
  auto store = NewTestStore();
  const std::string text = RandomBytes(30u << 20, 1);
  TestCheckpoint checkpoint;
  checkpoint.File("files/large", text).File("files/small", "abc");
  checkpoint.Write(store.get());
  auto open = checkpoint.Open(store.get());
  ASSERT_TRUE(open.ok()) << open.status().ToString();
  const auto large = static_cast<std::size_t>((*open)->FindFile("files/large"));
  const auto small = static_cast<std::size_t>((*open)->FindFile("files/small"));
  StoredBytes bytes(store.get(), open->get());
  std::string out(text.size(), '\0');
  ASSERT_TRUE(bytes.Read(large, 0, std::as_writable_bytes(std::span(out))).ok());
  EXPECT_EQ(out, text);
  // Here and there, so that slots are taken away and filled again.
  std::mt19937_64 random(7);
  for (int i = 0; i < 200; ++i) {
    const std::uint64_t at = random() % (text.size() - 10);
    std::string piece(10, '\0');
    ASSERT_TRUE(bytes.Read(large, at, std::as_writable_bytes(std::span(piece))).ok());
    EXPECT_EQ(piece, text.substr(at, 10));
  }
  std::string three(3, '\0');
  ASSERT_TRUE(bytes.Read(small, 0, std::as_writable_bytes(std::span(three))).ok());
  EXPECT_EQ(three, "abc");
  std::string four(4, '\0');
  EXPECT_EQ(bytes.Read(small, 0, std::as_writable_bytes(std::span(four))).code(),
            Code::kCorruption);

  FlipBit(store.get(), names::Path(checkpoint.directory(), "files/large"), 9u << 20);
  auto again = checkpoint.Open(store.get());
  ASSERT_TRUE(again.ok());
  StoredBytes damaged(store.get(), again->get());
  ASSERT_TRUE(damaged.Read(large, 0, std::as_writable_bytes(std::span(out).first(8u << 20))).ok());
  const Status status = damaged.Read(large, 8u << 20, std::as_writable_bytes(std::span(four)));
  EXPECT_EQ(status.code(), Code::kCorruption);
  EXPECT_THAT(std::string(status.message()), HasSubstr("files/large: chunk 3 of 8"));
  ASSERT_TRUE(damaged.Read(large, 12u << 20, std::as_writable_bytes(std::span(four))).ok());
}

/// The public functions, on the disk.
class TransferTest : public testing::Test {
 protected:
  std::string Path(const std::string& name) const { return directory_ / name; }

  CheckpointInfo Save(const std::string& name, const SaveRequest& request,
                      ManagerOptions options = {}) {
    options.directory = Path(name);
    options.retention.keep_last.reset();
    options.pool_bytes = 0;
    auto manager = CheckpointManager::Open(std::move(options));
    EXPECT_TRUE(manager.ok()) << manager.status().ToString();
    SaveRequest blocking = request;
    blocking.blocking = true;
    auto saved = (*manager)->Save(std::move(blocking));
    EXPECT_TRUE(saved.ok()) << saved.status().ToString();
    EXPECT_TRUE((*manager)->Close().ok());
    return saved.ok() ? saved->Wait().value() : CheckpointInfo();
  }
  CheckpointInfo Save(const std::string& name, std::int64_t step) {
    const State state(step);
    return Save(name, state.Request(step));
  }
  std::unique_ptr<CheckpointManager> Reader(const std::string& name) {
    auto manager = CheckpointManager::Open({.directory = Path(name), .read_only = true});
    EXPECT_TRUE(manager.ok()) << manager.status().ToString();
    return *std::move(manager);
  }
  static std::string Read(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    EXPECT_TRUE(in) << path;
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static void Write(const std::string& path, const std::string& bytes) {
    fs::create_directories(fs::path(path).parent_path());
    std::ofstream(path, std::ios::binary) << bytes;
  }
  /// A plain safetensors file of float tensors.
  static void WriteSafetensors(const std::string& path,
                               const std::map<std::string, std::vector<float>>& tensors) {
    std::vector<TensorEntry> entries;
    std::string data;
    for (const auto& [name, numbers] : tensors) {
      const std::string bytes = BytesOf(numbers);
      entries.push_back({.name = name,
                         .dtype = DType::kF32,
                         .shape = {numbers.size()},
                         .begin = data.size(),
                         .end = data.size() + bytes.size()});
      data += bytes;
    }
    Write(path, EncodeSafetensorsHeader(entries, {}).value() + data);
  }
  static std::map<std::string, std::vector<float>> ReadSafetensors(const std::string& path) {
    const std::string bytes = Read(path);
    const std::uint64_t length = SafetensorsHeaderBytes(bytes.substr(0, 8), bytes.size()).value();
    const auto header = DecodeSafetensorsHeader(bytes.substr(0, length), bytes.size()).value();
    EXPECT_EQ(header.metadata.at("format"), "pt");
    std::map<std::string, std::vector<float>> tensors;
    for (const TensorEntry& entry : header.tensors) {
      std::vector<float> numbers((entry.end - entry.begin) / sizeof(float));
      std::memcpy(numbers.data(), bytes.data() + header.data_offset + entry.begin,
                  entry.end - entry.begin);
      tensors[entry.name] = numbers;
    }
    return tensors;
  }
  std::vector<std::string> Names(const std::string& path) {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(path)) names.push_back(entry.path().filename());
    return names;
  }

  TempDirectory directory_;
};

TEST_F(TransferTest, ExportGivesAPlainDirectory) {
  const CheckpointInfo info = Save("a", 40);
  auto report = ExportCheckpoint(info.path, Path("out"));
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_THAT(Names(Path("out")), UnorderedElementsAre("model.safetensors", "config.json",
                                                       "model.safetensors.index.json"));
  EXPECT_THAT(report->left_out,
              UnorderedElementsAre("rank_0/state.json", "rank_0/state.safetensors"));
  EXPECT_EQ(report->tensors, 2u);
  const auto tensors = ReadSafetensors(Path("out/model.safetensors"));
  EXPECT_EQ(tensors.at("weights"), State(40).weights);
  EXPECT_EQ(tensors.at("frozen"), State(40).frozen);
  EXPECT_EQ(Read(Path("out/config.json")), "{\"step\": 40}");
  const auto index = DecodeSafetensorsIndex(Read(Path("out/model.safetensors.index.json"))).value();
  EXPECT_EQ(index.files.at("weights"), "model.safetensors");
  EXPECT_THAT(Names(directory_.path()), UnorderedElementsAre("a", "out"));
}

TEST_F(TransferTest, ExportRefusesWhatIsThereAndTakesAnEmptyDirectory) {
  const CheckpointInfo info = Save("a", 40);
  Write(Path("full/file"), "mine");
  auto refused = ExportCheckpoint(info.path, Path("full"));
  EXPECT_EQ(refused.status().code(), Code::kAlreadyExists);
  EXPECT_EQ(Read(Path("full/file")), "mine");
  Write(Path("file"), "mine");
  EXPECT_EQ(ExportCheckpoint(info.path, Path("file")).status().code(), Code::kAlreadyExists);
  EXPECT_EQ(ExportCheckpoint(info.path, Path("no/parent")).status().code(), Code::kNotFound);
  fs::create_directory(Path("empty"));
  EXPECT_TRUE(ExportCheckpoint(info.path, Path("empty/")).ok());
  EXPECT_THAT(Names(directory_.path()), UnorderedElementsAre("a", "empty", "file", "full"));
}

TEST_F(TransferTest, AFailedExportLeavesNothing) {
  const CheckpointInfo info = Save("a", 40);
  auto cancelled = ExportCheckpoint(info.path, Path("out"), {.cancelled = [] { return true; }});
  EXPECT_EQ(cancelled.status().code(), Code::kCancelled);
  const std::string data = info.path + "/__model__/rank_0-00001.safetensors";
  std::string bytes = Read(data);
  bytes[9000] ^= 4;
  Write(data, bytes);
  EXPECT_EQ(ExportCheckpoint(info.path, Path("out")).status().code(), Code::kCorruption);
  EXPECT_THAT(Names(directory_.path()), ElementsAre("a"));
}

TEST_F(TransferTest, ImportOfAnExportRestoresTheSame) {
  const CheckpointInfo info = Save("a", 40);
  ASSERT_TRUE(ExportCheckpoint(info.path, Path("out")).ok());
  Write(Path("out/sub/vocab.txt"), "words");
  Write(Path("out/.hidden"), "no");
  std::uint64_t done = 0;
  std::uint64_t total = 1;
  auto report = ImportCheckpoint(
      {.source = Path("out"), .directory = Path("b"), .step = 7},
      {.progress = [&](std::uint64_t now, std::uint64_t all) { done = now, total = all; }});
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(done, total);
  EXPECT_EQ(report->info.step, 7);
  EXPECT_THAT(report->files, ElementsAre("config.json", "sub/vocab.txt"));
  auto manager = Reader("b");
  const auto tensors = RestoreAll(manager.get());
  EXPECT_EQ(tensors.at("weights"), State(40).weights);
  EXPECT_EQ(Read(report->info.path + "/files/sub/vocab.txt"), "words");
}

TEST_F(TransferTest, ImportFollowsTheIndexAndSaysWhatItSkipped) {
  WriteSafetensors(Path("hf/model-00001-of-00002.safetensors"), {{"a", Numbers(10, 1)}});
  WriteSafetensors(Path("hf/model-00002-of-00002.safetensors"), {{"b", Numbers(20, 2)}});
  WriteSafetensors(Path("hf/consolidated.safetensors"),
                   {{"a", Numbers(10, 1)}, {"b", Numbers(20, 2)}});
  SafetensorsIndex index;
  index.files = {{"a", "model-00001-of-00002.safetensors"},
                 {"b", "model-00002-of-00002.safetensors"}};
  Write(Path("hf/model.safetensors.index.json"), EncodeSafetensorsIndex(index));
  Write(Path("hf/config.json"), "{}");
  auto report =
      ImportCheckpoint({.source = Path("hf"), .directory = Path("b"), .step = 0, .files = false});
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->tensors, 2u);
  EXPECT_THAT(report->files, IsEmpty());
  EXPECT_THAT(report->skipped, testing::Contains(testing::Key("consolidated.safetensors")));
  auto manager = Reader("b");
  EXPECT_EQ(RestoreAll(manager.get()).at("b"), Numbers(20, 2));

  fs::remove(Path("hf/model-00002-of-00002.safetensors"));
  auto broken = ImportCheckpoint({.source = Path("hf"), .directory = Path("c"), .step = 0});
  EXPECT_EQ(broken.status().code(), Code::kNotFound);
  EXPECT_FALSE(fs::exists(Path("c")));
  fs::remove(Path("hf/model.safetensors.index.json"));
  auto doubled = ImportCheckpoint({.source = Path("hf"), .directory = Path("c"), .step = 0});
  EXPECT_EQ(doubled.status().code(), Code::kAlreadyExists);
  EXPECT_THAT(std::string(doubled.status().message()), HasSubstr("\"a\""));
  EXPECT_FALSE(fs::exists(Path("c")));
}

TEST_F(TransferTest, ImportRefusesWhatIsNotSafetensorsAndMakesNothing) {
  Write(Path("short.safetensors"), "abc");
  Write(Path("text.safetensors"), "this is no safetensors file at all, is it?");
  const auto refuse = [&](const std::string& source) {
    auto report = ImportCheckpoint({.source = source, .directory = Path("new"), .step = 0});
    EXPECT_FALSE(fs::exists(Path("new"))) << source;
    return report.status();
  };
  EXPECT_EQ(refuse(Path("short.safetensors")).code(), Code::kCorruption);
  EXPECT_EQ(refuse(Path("text.safetensors")).code(), Code::kCorruption);
  EXPECT_EQ(refuse(Path("missing")).code(), Code::kNotFound);
  fs::create_directory(Path("empty"));
  EXPECT_EQ(refuse(Path("empty")).code(), Code::kNotFound);
  EXPECT_EQ(refuse("").code(), Code::kInvalidArgument);
  const CheckpointInfo info = Save("a", 40);
  EXPECT_THAT(std::string(refuse(Path("a")).message()), HasSubstr("copy"));
  EXPECT_THAT(std::string(refuse(info.path).message()), HasSubstr("copy"));
  WriteSafetensors(Path("good.safetensors"), {{"a", Numbers(1, 1)}});
  EXPECT_EQ(
      ImportCheckpoint({.source = Path("good.safetensors"), .directory = Path("new"), .step = -1})
          .status()
          .code(),
      Code::kInvalidArgument);
}

TEST_F(TransferTest, ToolsThatWriteRefuseWhileAWriterLives) {
  Save("a", 10);
  WriteSafetensors(Path("m.safetensors"), {{"a", Numbers(1, 1)}});
  auto writer = CheckpointManager::Open({.directory = Path("b")});
  ASSERT_TRUE(writer.ok());
  const Status imported =
      ImportCheckpoint({.source = Path("m.safetensors"), .directory = Path("b"), .step = 0})
          .status();
  EXPECT_EQ(imported.code(), Code::kUnavailable);
  EXPECT_THAT(std::string(imported.message()), HasSubstr(std::to_string(getpid())));
  EXPECT_EQ(
      CopyCheckpoints({.source = Path("a"), .target = Path("b"), .adopt = true}).status().code(),
      Code::kUnavailable);
  EXPECT_EQ(CollectGarbage(Path("b")).status().code(), Code::kUnavailable);
  // The tools took nothing from the writer.
  EXPECT_TRUE((*writer)->Save({.step = 1, .blocking = true}).ok());
}

TEST_F(TransferTest, CopyRefusesItselfAndMakesNothingWithoutASource) {
  Save("a", 10);
  EXPECT_EQ(CopyCheckpoints({.source = Path("a"), .target = Path("./a")}).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(CopyCheckpoints({.source = Path("x"), .target = Path("b")}).status().code(),
            Code::kNotFound);
  EXPECT_EQ(CopyCheckpoints({.source = Path("a"), .target = Path("b"), .choices = {{.step = 5}}})
                .status()
                .code(),
            Code::kNotFound);
  EXPECT_FALSE(fs::exists(Path("b")));
}

TEST_F(TransferTest, GcSweepsLeftoversAndSaysWhatWent) {
  Save("a", 10);
  auto nothing = CollectGarbage(Path("a"));
  ASSERT_TRUE(nothing.ok()) << nothing.status().ToString();
  EXPECT_THAT(nothing->removed, IsEmpty());
  // What a killed save leaves: a marker of an older generation, and some data.
  Write(Path("a/checkpoint_000020/.cairn-attempt"),
        Encode(MarkerRecord{.generation = 1, .attempt = "b7bbd0a3-4b1c-4d5e-8a9b-0123456789ab"}));
  Write(Path("a/checkpoint_000020/__model__/rank_0-00001.safetensors"), std::string(1000, 'x'));
  Write(Path("a/checkpoint_notes/mine.txt"), "not the engine's");
  auto swept = CollectGarbage(Path("a"));
  ASSERT_TRUE(swept.ok()) << swept.status().ToString();
  ASSERT_EQ(swept->removed.size(), 1u);
  EXPECT_EQ(swept->removed[0].name, "checkpoint_000020");
  EXPECT_EQ(swept->removed[0].what, "unfinished save");
  EXPECT_GE(swept->bytes, 1000u);
  EXPECT_FALSE(fs::exists(Path("a/checkpoint_000020")));
  EXPECT_TRUE(fs::exists(Path("a/checkpoint_notes/mine.txt")));
  EXPECT_EQ(Reader("a")->Latest().value()->step, 10);
  EXPECT_EQ(CollectGarbage(Path("none")).status().code(), Code::kNotFound);
  EXPECT_EQ(CollectGarbage(directory_.path()).status().code(), Code::kNotFound);
  EXPECT_FALSE(fs::exists(Path("cairn.json")));
}

/// Three ranks that shared no directory.
class MergeTest : public TransferTest {
 protected:
  static constexpr int kRanks = 3;

  void SaveRank(int rank, std::int64_t step, const std::string& file = "", double replicated = 5) {
    const std::vector<float> shard = Numbers(100, 100.0 * rank + static_cast<double>(step));
    const std::vector<float> shared = Numbers(3000, replicated);
    const std::vector<float> own = Numbers(4, rank);
    Tensor rng = View("rng", own);
    rng.group = TensorGroup::kState;
    Tensor piece = View("table", shard);
    piece.shard = ShardSpec{{100 * kRanks}, {100ull * static_cast<unsigned>(rank)}};
    Tensor same = View("dense", shared);
    same.replicated = true;
    SaveRequest request{.step = step, .tensors = {piece, same, rng}};
    request.metrics = Value::Object{{"rank", rank}};
    if (!file.empty()) request.files = {{.name = "log.txt", .bytes = file}};
    request.files.push_back({.name = "config.json", .bytes = "{}"});
    Save(Rank(rank), request, {.rank = rank, .world_size = kRanks, .private_parts = true});
  }
  static std::string Rank(int rank) { return "rank" + std::to_string(rank); }
  MergeRequest Request() const {
    return {.parts = {Path("rank1"), Path("rank0"), Path("rank2")}, .target = Path("all")};
  }
};

TEST_F(MergeTest, APrivateRankSavesReplicatedTensorsToo) {
  SaveRank(1, 10);
  auto manager = CheckpointManager::Open({.directory = Path("rank1"),
                                          .rank = 1,
                                          .world_size = kRanks,
                                          .read_only = true,
                                          .private_parts = true});
  ASSERT_TRUE(manager.ok());
  std::vector<float> dense(3000);
  auto restored = (*manager)->Restore(
      {.into = {{.name = "dense", .shape = {3000}, .data = dense.data()}}, .strict = false});
  ASSERT_TRUE(restored.ok()) << restored.status().ToString();
  EXPECT_EQ(dense, Numbers(3000, 5));
}

TEST_F(MergeTest, MakesOneCheckpointOfTheNewestStepThatAllHave) {
  for (int rank = 0; rank < kRanks; ++rank) {
    SaveRank(rank, 10);
    SaveRank(rank, 20);
  }
  SaveRank(0, 30);
  SaveRank(2, 30);
  auto report = MergeCheckpoints(Request());
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->info.step, 20);
  EXPECT_GT(report->deduplicated, 0u);
  EXPECT_EQ(*report->info.metrics.Find("rank"), Value(0));

  auto manager = Reader("all");
  auto restored = manager->Restore({.allocate = true});
  ASSERT_TRUE(restored.ok()) << restored.status().ToString();
  std::map<std::string, std::vector<float>> tensors;
  for (const OwnedTensor& tensor : (*restored)->tensors) tensors[tensor.name] = Floats(tensor);
  std::vector<float> table;
  for (int rank = 0; rank < kRanks; ++rank) {
    const std::vector<float> part = Numbers(100, 100.0 * rank + 20);
    table.insert(table.end(), part.begin(), part.end());
  }
  EXPECT_EQ(tensors.at("table"), table);
  EXPECT_EQ(tensors.at("dense"), Numbers(3000, 5));
  EXPECT_EQ(tensors.at("rng"), Numbers(4, 0));
  // The other ranks find their own state.
  auto second = CheckpointManager::Open(
      {.directory = Path("all"), .rank = 2, .world_size = kRanks, .read_only = true});
  ASSERT_TRUE(second.ok());
  std::vector<float> rng(4);
  ASSERT_TRUE((*second)
                  ->Restore({.into = {{.name = "rng",
                                       .shape = {4},
                                       .data = rng.data(),
                                       .group = TensorGroup::kState}},
                             .strict = false})
                  .ok());
  EXPECT_EQ(rng, Numbers(4, 2));
  EXPECT_THAT(Verify(Path("all"), true)->problems, IsEmpty());

  auto again = MergeCheckpoints(Request());
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  EXPECT_TRUE(again->already_there);
  EXPECT_EQ(again->info.id, report->info.id);
  // A later step goes into the same repository.
  SaveRank(1, 30);
  auto later = MergeCheckpoints(Request());
  ASSERT_TRUE(later.ok()) << later.status().ToString();
  EXPECT_EQ(later->info.step, 30);
  EXPECT_EQ(later->info.parent, report->info.id);
}

TEST_F(MergeTest, SaysWhichPartIsMissing) {
  SaveRank(0, 10);
  SaveRank(2, 10);
  auto no_rank = MergeCheckpoints({.parts = {Path("rank0"), Path("rank2")}, .target = Path("all")});
  EXPECT_EQ(no_rank.status().code(), Code::kNotFound);
  EXPECT_THAT(std::string(no_rank.status().message()), HasSubstr("the part of rank 1 is missing"));
  SaveRank(1, 20);
  auto no_step = MergeCheckpoints(Request());
  EXPECT_EQ(no_step.status().code(), Code::kNotFound);
  EXPECT_THAT(std::string(no_step.status().message()), HasSubstr("rank 1 has 20"));
  MergeRequest request = Request();
  request.step = 10;
  auto wanted = MergeCheckpoints(request);
  EXPECT_EQ(wanted.status().code(), Code::kNotFound);
  EXPECT_THAT(std::string(wanted.status().message()), HasSubstr("rank 1 for step 10"));
  auto twice = MergeCheckpoints(
      {.parts = {Path("rank0"), Path("rank0"), Path("rank2")}, .target = Path("all")});
  EXPECT_THAT(std::string(twice.status().message()), HasSubstr("both of rank 0"));
  EXPECT_FALSE(fs::exists(Path("all")));
}

TEST_F(MergeTest, RefusesPartsThatContradictOneAnother) {
  SaveRank(0, 10);
  SaveRank(1, 10);
  SaveRank(2, 10, "", /*replicated=*/6);
  auto differs = MergeCheckpoints(Request());
  EXPECT_EQ(differs.status().code(), Code::kFailedPrecondition);
  EXPECT_THAT(std::string(differs.status().message()),
              HasSubstr("rank_0 and rank_2 both saved the tensor \"dense\""));
  Save("plain", 10);
  auto plain = MergeCheckpoints({.parts = {Path("plain")}, .target = Path("all")});
  EXPECT_THAT(std::string(plain.status().message()), HasSubstr("private=True"));
}

TEST_F(MergeTest, FilesThatDifferAreKeptApartWhenAsked) {
  SaveRank(0, 10, "zero");
  SaveRank(1, 10, "one");
  SaveRank(2, 10, "one");
  EXPECT_EQ(MergeCheckpoints(Request()).status().code(), Code::kFailedPrecondition);
  MergeRequest request = Request();
  request.separate_files = true;
  auto report = MergeCheckpoints(request);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(Read(report->info.path + "/files/log.txt"), "zero");
  EXPECT_EQ(Read(report->info.path + "/files/rank_1/log.txt"), "one");
  EXPECT_EQ(Read(report->info.path + "/files/config.json"), "{}");
  EXPECT_THAT(report->renamed_files, ElementsAre("rank_1/log.txt", "rank_2/log.txt"));
}

TEST_F(MergeTest, ExportPutsTheRanksPiecesTogether) {
  for (int rank = 0; rank < kRanks; ++rank) SaveRank(rank, 10);
  auto merged = MergeCheckpoints(Request());
  ASSERT_TRUE(merged.ok()) << merged.status().ToString();
  auto exported = ExportCheckpoint(merged->info.path, Path("out"));
  ASSERT_TRUE(exported.ok()) << exported.status().ToString();
  EXPECT_EQ(ReadSafetensors(Path("out/model.safetensors")).at("table").size(), 300u);
  EXPECT_EQ(ReadSafetensors(Path("out/model.safetensors")).at("table")[250], 200.0f + 10 + 50);
}

}  // namespace
}  // namespace cairn
