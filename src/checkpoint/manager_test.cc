#include "checkpoint/manager.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <numeric>
#include <set>
#include <thread>

#include <cairn/transfer.h>

#include "base/log.h"
#include "checkpoint/names.h"
#include "checkpoint/publish_manifest.h"
#include "checkpoint/test_job_store.h"
#include "storage/forwarding_store.h"
#include "storage/local/temp_directory.h"
#include "storage/memory/memory_store.h"

namespace cairn {
namespace {

/// A few variables with values that depend on the step.
struct Model {
  std::vector<float> weights = std::vector<float>(3000);
  std::vector<double> slots = std::vector<double>(500);
  std::vector<std::int64_t> frozen = std::vector<std::int64_t>(2000, 7);

  void Train(std::int64_t step) {
    for (std::size_t i = 0; i < weights.size(); ++i) {
      weights[i] = static_cast<float>(step * 1000) + static_cast<float>(i);
    }
    std::iota(slots.begin(), slots.end(), static_cast<double>(step));
  }
  std::vector<Tensor> Views() const {
    return {
        {.name = "weights", .dtype = DType::kF32, .shape = {30, 100}, .data = weights.data()},
        {.name = "slots", .dtype = DType::kF64, .shape = {500}, .data = slots.data()},
        {.name = "frozen", .dtype = DType::kI64, .shape = {2000}, .data = frozen.data()},
    };
  }
  std::vector<MutableTensor> Targets() {
    return {
        {.name = "weights", .dtype = DType::kF32, .shape = {30, 100}, .data = weights.data()},
        {.name = "slots", .dtype = DType::kF64, .shape = {500}, .data = slots.data()},
        {.name = "frozen", .dtype = DType::kI64, .shape = {2000}, .data = frozen.data()},
    };
  }
  friend bool operator==(const Model&, const Model&) = default;
};

class ManagerTest : public OnBothStores {
 protected:
  static CheckpointInfo SaveModel(CheckpointManager* manager, const Model& model, std::int64_t step,
                                  Value metrics = Value::Object{}) {
    auto handle = manager->Save({.step = step,
                                 .tensors = model.Views(),
                                 .counters = Value::Object{{"epoch", 3}},
                                 .metrics = std::move(metrics),
                                 .blocking = true});
    EXPECT_TRUE(handle.ok()) << handle.status().ToString();
    auto info = handle->Wait();
    EXPECT_TRUE(info.ok()) << info.status().ToString();
    return *info;
  }
};

TEST_P(ManagerTest, RestoreOfAFreshDirectoryIsNothing) {
  auto manager = Open();
  auto restored = manager->Restore({});
  ASSERT_TRUE(restored.ok()) << restored.status().ToString();
  EXPECT_FALSE(restored->has_value());
}

TEST_P(ManagerTest, RestoresWhatWasSavedInAnotherOpening) {
  Model model;
  {
    auto manager = Open();
    model.Train(10);
    SaveModel(manager.get(), model, 10);
    model.Train(20);
    SaveModel(manager.get(), model, 20);
  }
  auto manager = Open();
  EXPECT_EQ(manager->generation(), 2u);
  Model other;
  auto restored = manager->Restore({.into = other.Targets()});
  ASSERT_TRUE(restored.ok()) << restored.status().ToString();
  ASSERT_TRUE(restored->has_value());
  EXPECT_EQ((*restored)->step, 20);
  EXPECT_EQ((*restored)->counters.Find("epoch")->AsInt(), 3);
  EXPECT_EQ(other, model);
}

TEST_P(ManagerTest, AValueChangedAfterSaveReturnedIsNotInTheCheckpoint) {
  auto manager = Open();
  Model model;
  model.Train(1);
  const Model saved = model;
  auto handle = manager->Save({.step = 1, .tensors = model.Views()});
  ASSERT_TRUE(handle.ok());
  model.Train(2);
  ASSERT_TRUE(handle->Wait().ok());
  Model other;
  ASSERT_TRUE(manager->Restore({.into = other.Targets()}).ok());
  EXPECT_EQ(other, saved);
}

TEST_P(ManagerTest, KeepsTheLastThreeByDefaultAndPinnedOnes) {
  auto manager = Open();
  Model model;
  std::string pinned;
  for (std::int64_t step = 1; step <= 6; ++step) {
    model.Train(step);
    const CheckpointInfo info = SaveModel(manager.get(), model, step);
    if (step == 2) {
      pinned = info.id;
      ASSERT_TRUE(manager->Pin(pinned).ok());
    }
  }
  ASSERT_TRUE(manager->WaitAll().ok());
  EXPECT_EQ(Steps(manager.get()), (std::vector<std::int64_t>{2, 4, 5, 6}));
  EXPECT_EQ(manager->Delete(pinned).code(), Code::kFailedPrecondition);
  ASSERT_TRUE(manager->Unpin(pinned).ok());
  ASSERT_TRUE(manager->Delete(pinned).ok());
  EXPECT_EQ(Steps(manager.get()), (std::vector<std::int64_t>{4, 5, 6}));
}

TEST_P(ManagerTest, AnUnpinnedCheckpointIsLeftToRetentionAgain) {
  auto manager = Open();
  Model model;
  const std::string first = SaveModel(manager.get(), model, 1).id;
  ASSERT_TRUE(manager->Pin(first).ok());
  for (std::int64_t step = 2; step <= 5; ++step) SaveModel(manager.get(), model, step);
  ASSERT_TRUE(manager->WaitAll().ok());
  EXPECT_EQ(Steps(manager.get()), (std::vector<std::int64_t>{1, 3, 4, 5}));
  ASSERT_TRUE(manager->Unpin(first).ok());
  SaveModel(manager.get(), model, 6);
  ASSERT_TRUE(manager->WaitAll().ok());
  EXPECT_EQ(Steps(manager.get()), (std::vector<std::int64_t>{4, 5, 6}));
}

TEST_P(ManagerTest, GoingBackMakesTheNewBranchWin) {
  Model model;
  {
    auto manager = Open({.retention = {.keep_last = std::nullopt}});
    for (const std::int64_t step : {20, 40}) {
      model.Train(step);
      SaveModel(manager.get(), model, step);
    }
    ASSERT_TRUE(manager->Restore({.into = model.Targets(), .step = 20}).ok());
    model.Train(30);
    SaveModel(manager.get(), model, 30);
  }
  auto manager = Open();
  auto latest = manager->Latest();
  ASSERT_TRUE(latest.ok() && latest->has_value());
  EXPECT_EQ((*latest)->step, 30);
}

TEST_P(ManagerTest, UnchangedTensorsAreSharedOnceTheyStandApart) {
  auto manager = Open();
  Model model;
  std::uint64_t shared = 0;
  for (std::int64_t step = 1; step <= 5; ++step) {
    model.Train(step);
    auto handle = manager->Save({.step = step, .tensors = model.Views(), .blocking = true});
    ASSERT_TRUE(handle.ok());
    shared = handle->BytesShared();
  }
  EXPECT_GE(shared, 16'000u);
  Model other;
  other.frozen.assign(2000, 0);
  auto restored = manager->Restore({.into = other.Targets()});
  ASSERT_TRUE(restored.ok()) << restored.status().ToString();
  EXPECT_EQ(other, model);
}

TEST_P(ManagerTest, ANamedJobThatDiffersIsRefused) {
  {
    auto manager = Open({.job = "mine"});
  }
  auto other = OpenManager({.job = "yours"}, Env());
  EXPECT_EQ(other.status().code(), Code::kFailedPrecondition);
  EXPECT_NE(other.status().message().find("mine"), std::string_view::npos);
  EXPECT_EQ(Open()->job(), "mine");
}

TEST_P(ManagerTest, AnOvertakenWriterIsFencedAndTheNewOneIsUnharmed) {
  auto old = Open();
  Model model;
  model.Train(1);
  SaveModel(old.get(), model, 1);
  auto young = Open({.takeover = true});
  auto handle = old->Save({.step = 2, .tensors = model.Views(), .blocking = true});
  EXPECT_EQ(handle.status().code(), Code::kAborted) << handle.status().ToString();
  SaveModel(young.get(), model, 3);
  EXPECT_EQ(Steps(young.get()), (std::vector<std::int64_t>{1, 3}));
}

TEST_P(ManagerTest, MismatchesAreListedBeforeMemoryIsTouched) {
  auto manager = Open();
  Model model;
  model.Train(1);
  SaveModel(manager.get(), model, 1);
  Model other;
  const Model before = other;
  std::vector<MutableTensor> targets = other.Targets();
  targets[0].shape = {100, 30};
  targets[1].name = "slot";
  MismatchReport mismatch;
  auto restored = manager->Restore({.into = targets, .mismatch = &mismatch});
  EXPECT_EQ(restored.status().code(), Code::kFailedPrecondition);
  EXPECT_EQ(mismatch.missing, std::vector<std::string>{"slot"});
  EXPECT_EQ(mismatch.unexpected, std::vector<std::string>{"slots"});
  ASSERT_EQ(mismatch.mismatched.size(), 1u);
  EXPECT_EQ(other, before);
}

/// Whether that thread of this process waits for something.
bool IsAsleep(pid_t thread) {
  std::ifstream stat("/proc/self/task/" + std::to_string(thread) + "/stat");
  const std::string text((std::istreambuf_iterator<char>(stat)), std::istreambuf_iterator<char>());
  return text.substr(text.rfind(')') + 1).starts_with(" S");
}

TEST_P(ManagerTest, LazySavesCopyBehindTheCallerUntilTheGuard) {
  std::atomic<bool> guarding{false};
  std::atomic<bool> guarded{false};
  std::atomic<bool> guarded_before_the_copy{false};
  const pid_t caller = gettid();
  // The copy is held back until the caller waits in its guard, or is past it.
  Environment env = Env();
  env.on_step = [&](std::string_view step) {
    if (step != "save: snapshot" || gettid() == caller) return;
    while (!guarding || (!guarded && !IsAsleep(caller))) std::this_thread::yield();
    guarded_before_the_copy = guarded.load();
  };
  auto manager = OpenManager({}, env).value();
  Model model;
  model.Train(1);
  const Model saved = model;
  auto handle = manager->Save({.step = 1, .tensors = model.Views(), .lazy = true});
  ASSERT_TRUE(handle.ok());
  EXPECT_FALSE(handle->GuardFor(std::chrono::nanoseconds(0)));
  guarding = true;
  const Status guard = handle->Guard();
  guarded = true;
  ASSERT_TRUE(guard.ok());
  model.Train(2);
  EXPECT_TRUE(handle->GuardFor(std::chrono::nanoseconds(0)));
  ASSERT_TRUE(handle->Wait().ok());
  EXPECT_FALSE(guarded_before_the_copy);
  Model other;
  ASSERT_TRUE(manager->Restore({.into = other.Targets()}).ok());
  EXPECT_EQ(other, saved);
}

/// Remembers how files were asked to be written.
class WriteModes final : public ForwardingStore {
 public:
  explicit WriteModes(std::shared_ptr<Store> inner)
      : ForwardingStore(inner.get()), inner_(std::move(inner)) {}
  Result<std::unique_ptr<WriteSession>> NewWriteSession(WriteMode mode) override {
    modes.insert(mode);
    return ForwardingStore::NewWriteSession(mode);
  }
  std::set<WriteMode> modes;  // while nothing is in flight

 private:
  const std::shared_ptr<Store> inner_;  // shared: as the environment holds it
};

TEST_P(ManagerTest, AnOptionFixesHowFilesAreWritten) {
  const std::pair<DiskWrites, WriteMode> pairs[] = {{DiskWrites::kAuto, WriteMode::kAuto},
                                                    {DiskWrites::kDirect, WriteMode::kDirect},
                                                    {DiskWrites::kBuffered, WriteMode::kBuffered}};
  for (const auto& [option, mode] : pairs) {
    Environment env = Env();
    const auto store = std::make_shared<WriteModes>(env.store);
    env.store = store;
    ManagerOptions options;
    options.disk_writes = option;
    auto manager = OpenManager(options, env).value();
    Model model;
    SaveModel(manager.get(), model, 1);
    ASSERT_TRUE(manager->Close().ok());
    EXPECT_EQ(store->modes, std::set<WriteMode>{mode});
  }
}

TEST_P(ManagerTest, NumbersOfCopyThreadsThatCannotBeAreRefused) {
  for (const int threads : {-1, 1025}) {
    const Status refused = OpenManager({.copy_threads = threads}, Env()).status();
    EXPECT_TRUE(refused.Is(Code::kInvalidArgument)) << refused.ToString();
  }
  EXPECT_TRUE(OpenManager({.copy_threads = 3}, Env()).ok());
}

TEST_P(ManagerTest, LowMemorySavesAreTheSame) {
  auto manager = Open({.low_memory = true});
  Model model;
  model.Train(1);
  SaveModel(manager.get(), model, 1);
  Model other;
  ASSERT_TRUE(manager->Restore({.into = other.Targets()}).ok());
  EXPECT_EQ(other, model);
}

TEST_P(ManagerTest, UserFilesAndStateFilesComeBack) {
  auto manager = Open();
  Model model;
  auto handle = manager->Save({.step = 1,
                               .tensors = model.Views(),
                               .files = {{.name = "notes/a b.txt", .bytes = "hello"}},
                               .state_files = {{"state.json", "{\"x\":1}"}, {"epoch_id", "3"}},
                               .blocking = true});
  ASSERT_TRUE(handle.ok()) << handle.status().ToString();
  auto restored = manager->Restore({});
  ASSERT_TRUE(restored.ok() && restored->has_value());
  EXPECT_EQ((*restored)->state_files.at("epoch_id"), "3");
  const std::string directory = "checkpoint_000001";
  EXPECT_EQ(store_->Get(directory + "/files/notes/a b.txt", 100).value(), "hello");
  EXPECT_FALSE(manager->Save({.step = 2, .files = {{.name = "../x", .bytes = "y"}}}).ok());
}

TEST_P(ManagerTest, ReadOnlyManagersListAndRestoreButNeverSave) {
  Model model;
  model.Train(5);
  auto writer = Open();
  SaveModel(writer.get(), model, 5);
  auto reader = Open({.read_only = true});
  Model other;
  ASSERT_TRUE(reader->Restore({.into = other.Targets()}).ok());
  EXPECT_EQ(other, model);
  EXPECT_EQ(reader->Save({.step = 6}).status().code(), Code::kFailedPrecondition);
}

TEST_P(ManagerTest, SerialNamesGoOnAfterAReopening) {
  Model model;
  for (int round = 0; round < 2; ++round) {
    auto manager = Open({.naming = Naming::kSerial});
    SaveModel(manager.get(), model, 100 + round);
  }
  auto listing = store_->List("");
  ASSERT_TRUE(listing.ok());
  EXPECT_NE(std::find(listing->prefixes.begin(), listing->prefixes.end(), "checkpoint_1"),
            listing->prefixes.end());
}

TEST_P(ManagerTest, BestScoresStayAndNanRanksLast) {
  auto manager = Open({.retention = {.keep_last = 1, .keep_best = 2, .score = "eval/acc"}});
  Model model;
  const std::vector<double> scores = {0.5, std::nan(""), 0.9, 0.1, 0.7, 0.2};
  for (std::size_t i = 0; i < scores.size(); ++i) {
    SaveModel(manager.get(), model, static_cast<std::int64_t>(i),
              Value::Object{{"eval", Value::Object{{"acc", scores[i]}}}});
  }
  ASSERT_TRUE(manager->WaitAll().ok());
  EXPECT_EQ(Steps(manager.get()), (std::vector<std::int64_t>{2, 4, 5}));
}

TEST_P(ManagerTest, AnotherProcessScoresWhatTheWriterHas) {
  auto writer = Open({.retention = {.keep_last = 1, .keep_best = 1, .score = "acc"}});
  auto judge = Open({.read_only = true});
  Model model;
  const auto score = [&](const CheckpointInfo& info, double acc) {
    return judge->AddMetrics(info.id, Value::Object{{"acc", acc}});
  };
  const CheckpointInfo first = SaveModel(writer.get(), model, 1);
  ASSERT_TRUE(score(first, 0.5).ok());
  const CheckpointInfo second = SaveModel(writer.get(), model, 2);
  ASSERT_TRUE(writer->WaitAll().ok());
  EXPECT_EQ(Steps(judge.get()), (std::vector<std::int64_t>{1, 2}));
  ASSERT_TRUE(score(second, 0.9).ok());
  SaveModel(writer.get(), model, 3);
  ASSERT_TRUE(writer->WaitAll().ok());
  EXPECT_EQ(Steps(judge.get()), (std::vector<std::int64_t>{2, 3}));
  EXPECT_FALSE(score(first, 1.0).ok()) << "it is gone";
  // One that fell behind is removed when it was judged anew.
  ASSERT_TRUE(score(second, 0.1).ok());
  const CheckpointInfo third = judge->Latest().value().value();
  ASSERT_TRUE(score(third, 0.2).ok());
  SaveModel(writer.get(), model, 4);
  SaveModel(writer.get(), model, 5);
  ASSERT_TRUE(writer->WaitAll().ok());
  EXPECT_EQ(Steps(judge.get()), (std::vector<std::int64_t>{3, 5}));
}

TEST_P(ManagerTest, AStreamedSaveReturnsAtOnceAndIsOverForTheCallerAtGuard) {
  auto manager = Open();
  Model model;
  model.Train(1);
  const Model saved = model;
  auto handle = manager->Save({.step = 1, .tensors = model.Views(), .stream = true});
  ASSERT_TRUE(handle.ok()) << handle.status().ToString();
  ASSERT_TRUE(handle->Guard().ok());
  EXPECT_TRUE(handle->GuardFor(std::chrono::nanoseconds(0)));
  model.Train(2);
  ASSERT_TRUE(handle->Wait().ok());
  EXPECT_TRUE(handle->WaitFor(std::chrono::nanoseconds(0)));
  Model other;
  ASSERT_TRUE(manager->Restore({.into = other.Targets()}).ok());
  EXPECT_EQ(other, saved);
}

TEST_P(ManagerTest, ARestoreMayAskForTensorsWhenItSeesTheStateFiles) {
  auto manager = Open();
  Model model;
  model.Train(1);
  ASSERT_TRUE(manager
                  ->Save({.step = 1,
                          .tensors = model.Views(),
                          .state_files = {{"state.json", "{}"}},
                          .blocking = true})
                  .ok());
  for (const bool ahead : {false, true}) {
    Model other;
    RestoreRequest request;
    request.list_ahead = ahead;
    request.prepare = [&](const Restored& head, RestoreRequest* asked) {
      EXPECT_EQ(head.step, 1);
      EXPECT_EQ(head.state_files.at("state.json"), "{}");
      asked->into = {other.Targets()[0]};
      asked->strict = false;
      asked->allocate = true;
      asked->allocate_names = {"slots"};
      return Status::Ok();
    };
    auto restored = manager->Restore(std::move(request));
    ASSERT_TRUE(restored.ok()) << restored.status().ToString();
    EXPECT_EQ(other.weights, model.weights);
    ASSERT_EQ((*restored)->tensors.size(), 1u);
    EXPECT_EQ((*restored)->tensors[0].name, "slots");
  }
}

TEST_P(ManagerTest, WhatPrepareRefusesEndsTheRestoreWithNothingChanged) {
  auto manager = Open();
  Model model;
  model.Train(1);
  SaveModel(manager.get(), model, 1);
  Model other;
  const Model before = other;
  for (const bool ahead : {false, true}) {
    RestoreRequest request;
    request.into = other.Targets();
    request.list_ahead = ahead;
    request.prepare = [](const Restored&, RestoreRequest*) {
      return MismatchError("other shapes");
    };
    auto restored = manager->Restore(std::move(request));
    EXPECT_EQ(restored.status().reason(), Reason::kMismatch);
    EXPECT_EQ(other, before);
  }
}

TEST_P(ManagerTest, ACancelledRestoreSaysSo) {
  auto manager = Open();
  Model model;
  SaveModel(manager.get(), model, 1);
  RestoreRequest request;
  request.into = model.Targets();
  request.cancelled = [] { return true; };
  EXPECT_TRUE(manager->Restore(std::move(request)).status().Is(Code::kCancelled));
}

/// Has room for another checkpoint only while there is at most one.
class SmallStore final : public ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  Result<std::optional<std::uint64_t>> FreeBytes() override {
    const bool many = lags || Checkpoints() > 1;
    return std::optional<std::uint64_t>(many ? free_beside_many : 1 << 30);
  }
  int Checkpoints() {
    const Listing root = List("").value();
    return static_cast<int>(
        std::count_if(root.prefixes.begin(), root.prefixes.end(),
                      [&](const std::string& name) { return Stat(name + "/manifest.json").ok(); }));
  }
  std::uint64_t free_beside_many = 0;
  bool lags = false;  // what is deleted counts as free much later
};

TEST_P(ManagerTest, WhoKeepsFewerGetsTheirRoomBeforeTheNextSave) {
  Model model;
  {
    auto manager = Open({.retention = {.keep_last = std::nullopt}});
    for (int step = 1; step <= 3; ++step) SaveModel(manager.get(), model, step);
  }
  Environment env = Env();
  env.store = std::make_shared<SmallStore>(store_.get());
  {
    auto manager = OpenManager({.retention = {.keep_last = std::nullopt}}, env).value();
    const auto refused = manager->Save({.step = 4, .tensors = model.Views(), .blocking = true});
    EXPECT_TRUE(refused.status().Is(Code::kResourceExhausted)) << refused.status().ToString();
    EXPECT_EQ(Steps(manager.get()), (std::vector<std::int64_t>{1, 2, 3}));
  }
  auto manager = OpenManager({.retention = {.keep_last = 1}}, env).value();
  SaveModel(manager.get(), model, 4);
  ASSERT_TRUE(manager->WaitAll().ok());  // what need not stay is removed behind the save
  EXPECT_EQ(Steps(manager.get()), (std::vector<std::int64_t>{4}));
}

TEST_P(ManagerTest, RoomForTheBytesAloneIsMadeLargerBeforeTheNextSave) {
  Model model;
  {
    auto manager = Open({.retention = {.keep_last = std::nullopt}});
    for (int step = 1; step <= 3; ++step) SaveModel(manager.get(), model, step);
  }
  const auto store = std::make_shared<SmallStore>(store_.get());
  store->free_beside_many = 100 << 10;  // a checkpoint has less
  Environment env = Env();
  env.store = store;
  int beside = -1;
  env.on_step = [&](std::string_view step) {
    if (step == "save: write") beside = store->Checkpoints();
  };
  auto manager = OpenManager({.retention = {.keep_last = 1}}, env).value();
  SaveModel(manager.get(), model, 4);
  EXPECT_EQ(beside, 1) << "names and records take room too";
}

TEST_P(ManagerTest, RoomThatIsSaidToBeFreeOnlyLaterIsTriedAtOnce) {
  Model model;
  {
    auto manager = Open({.retention = {.keep_last = std::nullopt}});
    for (int step = 1; step <= 3; ++step) SaveModel(manager.get(), model, step);
  }
  const auto store = std::make_shared<SmallStore>(store_.get());
  store->lags = true;
  Environment env = Env();
  env.store = store;
  auto manager = OpenManager({.retention = {.keep_last = 1}}, env).value();
  SaveModel(manager.get(), model, 4);
  EXPECT_EQ(Steps(manager.get()).back(), 4);
  const auto refused = manager->Save({.step = 5, .tensors = model.Views(), .blocking = true});
  EXPECT_TRUE(refused.status().Is(Code::kResourceExhausted)) << "nothing was removed for it";
}

/// Copies everything below a directory of the store, as `cp -r` would.
void CopyDirectory(Store* store, const std::string& from, const std::string& to) {
  const Listing listing = store->List(from).value();
  for (const ObjectInfo& object : listing.objects) {
    const std::string name = to + object.name.substr(from.size());
    ASSERT_TRUE(store->Put(name, store->Get(object.name, 1 << 30).value()).ok());
  }
  for (const std::string& sub : listing.prefixes) {
    CopyDirectory(store, sub, to + sub.substr(from.size()));
  }
}

TEST_P(ManagerTest, ACopyUnderANameOfTheUsersOwnIsNotRetentions) {
  Model model;
  {
    auto manager = Open({.retention = {.keep_last = 2}});
    for (std::int64_t step = 1; step <= 2; ++step) {
      model.Train(step);
      SaveModel(manager.get(), model, step);
    }
  }
  CopyDirectory(store_.get(), "checkpoint_000002", "best");
  CopyDirectory(store_.get(), "checkpoint_000002", "checkpoint_000002.bak");
  // Two openings: in the second one the original is long gone, and the copies are all there is of
  // it.
  for (std::int64_t step : {3, 5}) {
    auto manager = Open({.retention = {.keep_last = 2}});
    for (std::int64_t next : {step, step + 1}) {
      model.Train(next);
      SaveModel(manager.get(), model, next);
    }
    ASSERT_TRUE(manager->WaitAll().ok());
  }
  auto manager = Open({.retention = {.keep_last = 2}});
  EXPECT_EQ(Steps(manager.get()), (std::vector<std::int64_t>{2, 2, 5, 6}));  // they use up no place
  Model restored;
  model.Train(2);
  ASSERT_TRUE(manager->Restore({.into = restored.Targets(), .step = 2}).ok());
  EXPECT_EQ(restored, model);
}

TEST_P(ManagerTest, OfTwoWithOneIdTheOneUnderItsOwnNameIsDeleted) {
  Model model;
  auto manager = Open();
  const std::string id = SaveModel(manager.get(), model, 1).id;
  SaveModel(manager.get(), model, 2);
  ASSERT_TRUE(manager->Close().ok());
  CopyDirectory(store_.get(), "checkpoint_000001", "a_copy");
  CopyDirectory(store_.get(), "checkpoint_000001", "z_copy");
  manager = Open();
  ASSERT_TRUE(manager->Delete(id).ok());
  EXPECT_FALSE(store_->Stat("checkpoint_000001/manifest.json").ok());
  EXPECT_TRUE(store_->Stat("a_copy/manifest.json").ok());
  EXPECT_TRUE(store_->Stat("z_copy/manifest.json").ok());
}

TEST_P(ManagerTest, AHalfMadeCopyUnderANameOfTheUsersOwnIsNotSwept) {
  Model model;
  SaveModel(Open().get(), model, 1);
  CopyDirectory(store_.get(), "checkpoint_000001", "checkpoint_000001.bak");
  ASSERT_TRUE(store_->Delete("checkpoint_000001.bak/manifest.json").ok());  // not copied yet
  const std::string data = "checkpoint_000001.bak/__model__/model.safetensors.index.json";
  Open();
  EXPECT_TRUE(store_->Stat(data).ok());
}

TEST_P(ManagerTest, AFileThatLiesWhereACheckpointWouldGoIsLeftAlone) {
  for (const Naming naming : {Naming::kStep, Naming::kSerial}) {
    const std::string name = naming == Naming::kStep ? "checkpoint_000009" : "checkpoint_10";
    ASSERT_TRUE(store_->Put(name, "mine").ok());
    Model model;
    auto manager = Open({.naming = naming});
    const CheckpointInfo info = SaveModel(manager.get(), model, 9);
    EXPECT_FALSE(info.path.ends_with(name)) << info.path;
    EXPECT_EQ(store_->Get(name, 100).value(), "mine");
  }
}

TEST_P(ManagerTest, AMissingFileIsDamageAndNotAMissingCheckpoint) {
  Model model;
  auto manager = Open();
  const std::string id = SaveModel(manager.get(), model, 1).id;
  ASSERT_TRUE(store_->Delete("checkpoint_000001/__model__/rank_0-00001.safetensors").ok());
  for (const RestoreRequest& request : {RestoreRequest{.into = model.Targets(), .step = 1},
                                        RestoreRequest{.into = model.Targets(), .id = id}}) {
    const auto restored = manager->Restore(request);
    EXPECT_TRUE(restored.status().Is(Code::kCorruption)) << restored.status().ToString();
  }
  EXPECT_TRUE(manager->Restore({.into = model.Targets(), .step = 2}).status().Is(Code::kNotFound));
}

TEST_P(ManagerTest, ADamagedManifestIsWarnedOfOnce) {
  Model model;
  {
    auto manager = Open();
    for (const std::int64_t step : {1, 2}) SaveModel(manager.get(), model, step);
    ASSERT_TRUE(manager->Close().ok());
  }
  ASSERT_TRUE(store_->Put("checkpoint_000001/manifest.json", "{}").ok());
  std::vector<std::string> warnings;
  SetLogSink([&](LogLevel, std::string_view line) {
    if (line.find("checkpoint_000001") != line.npos) warnings.emplace_back(line);
  });
  auto manager = Open();
  const auto restored = manager->Restore({.into = model.Targets()});
  const auto again = manager->Restore({.into = model.Targets()});
  SetLogSink({});
  EXPECT_EQ(warnings.size(), 1u) << testing::PrintToString(warnings);
  ASSERT_TRUE(restored.ok() && again.ok());
  EXPECT_EQ((*restored)->step, 2);
  EXPECT_EQ((*restored)->fallbacks.size(), 1u) << "who asks is told each time";
  EXPECT_EQ((*again)->fallbacks.size(), 1u);
}

/// Not at the opening, which lists what is there, but while it trains. On a real disk: there
/// nothing can be below a file.
TEST(ManagerOnDisk, AFileThatAppearsWhereTheNextCheckpointWouldGoIsLeftAlone) {
  for (const Naming naming : {Naming::kStep, Naming::kSerial}) {
    TempDirectory directory;
    auto manager = CheckpointManager::Open({.directory = directory / "run", .naming = naming});
    ASSERT_TRUE(manager.ok()) << manager.status().ToString();
    Model model;
    const auto save = [&](std::int64_t step) {
      model.Train(step);
      auto handle =
          (*manager)->Save({.step = step, .tensors = model.Views(), .blocking = true}).value();
      auto info = handle.Wait();
      EXPECT_TRUE(info.ok()) << info.status().ToString();
      return info.ok() ? std::filesystem::path(info->path).filename().string() : "";
    };
    const bool by_step = naming == Naming::kStep;
    EXPECT_EQ(save(1), by_step ? "checkpoint_000001" : "checkpoint_0");
    const std::string file =
        directory / ("run/" + std::string(by_step ? "checkpoint_000002" : "checkpoint_1"));
    std::ofstream(file) << "mine";
    EXPECT_EQ(save(2), by_step ? "checkpoint_000002-2" : "checkpoint_2");
    EXPECT_EQ(save(3), by_step ? "checkpoint_000003" : "checkpoint_3");
    ASSERT_TRUE((*manager)->Close().ok());
    std::string content;
    std::ifstream(file) >> content;
    EXPECT_EQ(content, "mine");
    Model back;
    auto reader = CheckpointManager::Open({.directory = directory / "run", .read_only = true});
    EXPECT_EQ((*reader)->Restore({.into = back.Targets(), .step = 2}).value()->step, 2);
    model.Train(2);
    EXPECT_EQ(back, model);
  }
}

TEST(ManagerOnDisk, NothingIsAcknowledgedInADirectoryThatWasTakenAway) {
  namespace fs = std::filesystem;
  TempDirectory directory;
  const std::string run = directory / "run";
  auto manager = CheckpointManager::Open({.directory = run}).value();
  Model model;
  const auto save = [&](std::int64_t step) {
    model.Train(step);
    auto handle = manager->Save({.step = step, .tensors = model.Views(), .blocking = true});
    return handle.ok() ? handle->Wait().status() : handle.status();
  };
  ASSERT_TRUE(save(1).ok());
  fs::rename(run, run + ".away");
  fs::create_directory(run);  // where the disk was mounted
  const Status gone = save(2);
  EXPECT_EQ(gone.code(), Code::kUnavailable) << gone.ToString();
  EXPECT_NE(gone.ToString().find("mounted"), std::string::npos) << gone.ToString();
  fs::remove_all(run);  // what lies where a disk is mounted is not seen any more
  fs::rename(run + ".away", run);
  EXPECT_TRUE(save(3).ok()) << "it is back";
  ASSERT_TRUE(manager->Close().ok());
  auto reader = CheckpointManager::Open({.directory = run, .read_only = true}).value();
  Model back;
  EXPECT_EQ(reader->Restore({.into = back.Targets()}).value()->step, 3);
  EXPECT_EQ(back, model);
}

TEST(ManagerOnDisk, ACheckpointIsNotTakenForARepositoryInWhichNothingWasSavedYet) {
  TempDirectory directory;
  const std::string run = directory / "run";
  auto manager = CheckpointManager::Open({.directory = run}).value();
  Model model;
  auto handle = manager->Save({.step = 7, .tensors = model.Views(), .blocking = true});
  const std::string path = handle->Wait().value().path;
  ASSERT_TRUE(manager->Close().ok());
  for (const bool read_only : {false, true}) {
    const auto opened = CheckpointManager::Open({.directory = path, .read_only = read_only});
    EXPECT_EQ(opened.status().code(), read_only ? Code::kNotFound : Code::kInvalidArgument)
        << opened.status().ToString();
    EXPECT_NE(opened.status().ToString().find("of step 7"), std::string::npos);
  }
  EXPECT_FALSE(CopyCheckpoints({.source = run, .target = path}).ok());
  EXPECT_FALSE(std::filesystem::exists(path + "/cairn.json"));
  EXPECT_FALSE(std::filesystem::exists(path + "/generations"));
  EXPECT_TRUE(CheckpointManager::Open({.directory = run}).ok());
}

TEST(ManagerOnDisk, ACopyThatTheTrainingMakesOfItsDirectoryLetsNobodyIn) {
  TempDirectory directory;
  const std::string run = directory / "run";
  auto manager = CheckpointManager::Open({.directory = run}).value();
  std::filesystem::copy(run, directory / "backup", std::filesystem::copy_options::recursive);
  Model model;
  ASSERT_TRUE(manager->Save({.step = 1, .tensors = model.Views(), .blocking = true}).ok());
  const pid_t child = fork();
  if (child == 0) {
    const int lock = open((run + "/generations/lock").c_str(), O_RDWR | O_CLOEXEC);
    struct flock whole = {};
    whole.l_type = F_WRLCK;
    _exit(lock >= 0 && fcntl(lock, F_SETLK, &whole) == 0 ? 1 : 0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << "another process got the lock";
}

/// 3: what some file systems allow is less than that.
TEST(ManagerLinks, AFileGetsEightNamesAtMostAndIsThenWrittenAnew) {
  for (const std::uint64_t allowed : {std::uint64_t{100}, std::uint64_t{3}}) {
    const std::shared_ptr<Store> store =
        MemoryStore::Open({.object_store = false, .max_links = allowed}).value();
    Environment env;
    env.store = store;
    ManagerOptions options;
    options.retention.keep_last.reset();
    auto manager = OpenManager(options, env).value();
    constexpr std::int64_t kSaves = 20;
    Model model;
    for (std::int64_t step = 1; step <= kSaves; ++step) {
      model.Train(step);
      auto handle = manager->Save({.step = step, .tensors = model.Views(), .blocking = true});
      ASSERT_TRUE(handle.ok()) << step << ": " << handle.status().ToString();
    }
    std::uint64_t most = 0;
    for (const CheckpointInfo& info : manager->List().value()) {
      const std::string directory = names::CheckpointDirectory(false, false, info.step, 1);
      const std::string files = names::Path(directory, names::kModel);
      for (const ObjectInfo& file : store->List(files).value().objects) {
        most = std::max(most, store->LinkCount(file.name).value());
      }
    }
    EXPECT_EQ(most, std::min<std::uint64_t>(8, allowed));
    for (std::int64_t step = 1; step <= kSaves; ++step) {
      Model back;
      back.frozen.assign(back.frozen.size(), 0);
      ASSERT_TRUE(manager->Restore({.into = back.Targets(), .step = step}).ok());
      model.Train(step);
      EXPECT_EQ(back, model) << step;
    }
  }
}

/// The same for saves of several ranks, and for what tools bring in.
TEST(ManagerOnDisk, AClaimTakesTheNextNameWhereAFileLies) {
  TempDirectory directory;
  const Environment env = EnvironmentAt(directory / "run", {.create = true}).value();
  std::ofstream(directory / "run/checkpoint_000001") << "mine";
  int copy = 0;
  const auto claimed = ClaimDirectory(env, {.generation = 1, .attempt = "a", .copies = ""}, [&] {
    return names::CheckpointDirectory(false, false, 1, ++copy);
  });
  ASSERT_TRUE(claimed.ok()) << claimed.status().ToString();
  EXPECT_EQ(*claimed, "checkpoint_000001-2");
}

INSTANTIATE_TEST_SUITE_P(Stores, ManagerTest, testing::Values(false, true),
                         [](const auto& param) { return param.param ? "Objects" : "Links"; });

}  // namespace
}  // namespace cairn
