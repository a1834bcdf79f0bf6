// Saves and removals that fail, and who is told of it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <semaphore>
#include <string>
#include <thread>
#include <vector>

#include "base/log.h"
#include "checkpoint/manager.h"
#include "checkpoint/test_job_store.h"
#include "storage/forwarding_store.h"
#include "storage/local/temp_directory.h"

namespace cairn {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// Fails what a test says.
class FailingStore final : public ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  Result<std::unique_ptr<WriteSession>> NewWriteSession(WriteMode mode) override {
    if (before_writing) before_writing();
    if (fail_writes) return ResourceExhaustedError("the disk is full");
    return inner()->NewWriteSession(mode);
  }
  Status Delete(const std::string& name) override {
    if (!immutable.empty() && name == immutable) {
      ++refused;
      return PermissionDeniedError("unlink \"" + name + "\": Operation not permitted");
    }
    return inner()->Delete(name);
  }

  std::atomic<bool> fail_writes = false;
  std::function<void()> before_writing;
  std::string immutable;
  int refused = 0;
};

class ManagerFailures : public OnBothStores {
 protected:
  ManagerFailures() : failing_(std::make_shared<FailingStore>(store_.get())) {
    SetLogSink([this](LogLevel, std::string_view line) { log_.emplace_back(line); });
  }
  ~ManagerFailures() override { SetLogSink(nullptr); }

  std::unique_ptr<CheckpointManager> OpenFailing(ManagerOptions options = {}) {
    Environment env = Env();
    env.store = failing_;
    options.copy_threads = 1;
    return OpenManager(std::move(options), std::move(env)).value();
  }
  SaveRequest Request(std::int64_t step) {
    values_.assign(1000, static_cast<double>(step));
    SaveRequest request;
    request.step = step;
    request.tensors = {
        {.name = "w", .dtype = DType::kF64, .shape = {1000}, .data = values_.data()}};
    return request;
  }
  Status Save(CheckpointManager* manager, std::int64_t step, SaveKind kind = SaveKind::kFull) {
    SaveRequest request = Request(step);
    request.kind = kind;
    request.blocking = true;
    return manager->Save(std::move(request)).status();
  }
  std::vector<std::string> Manifests() {
    std::vector<std::string> found;
    for (const std::string& name : store_->List("").value().prefixes) {
      if (store_->Stat(name + "/manifest.json").ok()) found.push_back(name);
    }
    return found;
  }
  int Logged(std::string_view text) {
    return static_cast<int>(std::count_if(log_.begin(), log_.end(), [&](const std::string& line) {
      return line.find(text) != line.npos;
    }));
  }

  std::shared_ptr<FailingStore> failing_;  // shared with the environments
  std::vector<double> values_;
  std::vector<std::string> log_;
};

TEST_P(ManagerFailures, WhatGuardHasToldIsNotToldByTheNextSave) {
  auto manager = OpenFailing();
  failing_->fail_writes = true;
  SaveRequest streamed = Request(1);
  streamed.stream = true;
  const SaveHandle handle = manager->Save(std::move(streamed)).value();
  EXPECT_EQ(handle.Guard().code(), Code::kResourceExhausted);
  failing_->fail_writes = false;
  EXPECT_TRUE(Save(manager.get(), 2).ok());
  EXPECT_THAT(Steps(manager.get()), ElementsAre(2));
  EXPECT_EQ(handle.Guard().code(), Code::kResourceExhausted) << "the save failed all the same";
  EXPECT_TRUE(manager->Close().ok());
}

TEST_P(ManagerFailures, WhatNobodyWasToldIsToldByTheNextSave) {
  auto manager = OpenFailing();
  failing_->fail_writes = true;
  const SaveHandle handle = manager->Save(Request(1)).value();
  EXPECT_TRUE(handle.Guard().ok()) << "the copy was made";
  EXPECT_TRUE(handle.WaitFor(std::chrono::minutes(1)));
  failing_->fail_writes = false;
  EXPECT_EQ(Save(manager.get(), 2).code(), Code::kResourceExhausted);
  EXPECT_TRUE(Save(manager.get(), 2).ok());
}

TEST_P(ManagerFailures, ACheckpointThatCannotBeRemovedStopsNoSave) {
  auto manager = OpenFailing({.retention = {.keep_last = 1}});
  ASSERT_TRUE(Save(manager.get(), 1).ok());
  failing_->immutable = "checkpoint_000001/manifest.json";
  for (std::int64_t step = 2; step <= 6; ++step) {
    const Status saved = Save(manager.get(), step);
    EXPECT_TRUE(saved.ok()) << saved.ToString();
  }
  const auto restored = manager->Restore({.allocate = true});
  EXPECT_TRUE(restored.ok()) << restored.status().ToString();
  const Status told = manager->WaitAll();
  EXPECT_EQ(told.code(), Code::kPermissionDenied) << told.ToString();
  EXPECT_THAT(std::string(told.message()), HasSubstr("remove checkpoint_000001"));
  EXPECT_TRUE(manager->WaitAll().ok()) << "it was told";
  EXPECT_THAT(Manifests(), ElementsAre("checkpoint_000001", "checkpoint_000006"))
      << "the others go all the same";
  EXPECT_EQ(Logged("checkpoint_000001"), 1);

  failing_->immutable.clear();
  ASSERT_TRUE(Save(manager.get(), 7).ok());
  EXPECT_TRUE(manager->Close().ok());
  EXPECT_THAT(Manifests(), ElementsAre("checkpoint_000007"));
}

TEST_P(ManagerFailures, WhatCannotBeDeletedStopsNoOpening) {
  std::string data;
  {
    auto manager = OpenFailing({.retention = {.keep_last = 1}});
    ASSERT_TRUE(Save(manager.get(), 1).ok());
    for (const ObjectInfo& object : store_->List("checkpoint_000001/__model__").value().objects) {
      if (object.name.ends_with(".safetensors")) data = object.name;
    }
    failing_->immutable = "checkpoint_000001/manifest.json";
    ASSERT_TRUE(Save(manager.get(), 2).ok());
    EXPECT_EQ(manager->Close().code(), Code::kPermissionDenied);
  }
  // Of a removal that began, then of one that got as far as its manifest.
  for (const std::string& immutable : {std::string("checkpoint_000001/manifest.json"), data}) {
    failing_->immutable = immutable;
    log_.clear();
    auto manager = OpenFailing();
    EXPECT_EQ(Logged("checkpoint_000001 is of no use any more and could not be deleted"), 1);
    const auto restored = manager->Restore({.allocate = true});
    ASSERT_TRUE(restored.ok() && *restored) << restored.status().ToString();
    EXPECT_EQ((*restored)->step, 2);
    EXPECT_TRUE(Save(manager.get(), 1).ok()) << "under another name";
    EXPECT_TRUE(manager->Delete(manager->Latest().value()->id).ok());
    EXPECT_TRUE(manager->Close().ok());
  }
  EXPECT_THAT(Manifests(), ElementsAre("checkpoint_000002"));
  failing_->immutable.clear();
  EXPECT_TRUE(OpenFailing()->Close().ok());
  EXPECT_FALSE(store_->Stat(data).ok());
}

TEST_P(ManagerFailures, CloseTellsWhatCouldNotBeRemoved) {
  auto manager = OpenFailing({.retention = {.keep_last = 1}});
  ASSERT_TRUE(Save(manager.get(), 1).ok());
  failing_->immutable = "checkpoint_000001/manifest.json";
  ASSERT_TRUE(Save(manager.get(), 2).ok());
  EXPECT_EQ(manager->Close().code(), Code::kPermissionDenied);
}

TEST_P(ManagerFailures, MetricsThatCameLaterAreAddedThoughNothingCanBeRemoved) {
  auto manager = OpenFailing({.retention = {.keep_last = 1}});
  ASSERT_TRUE(Save(manager.get(), 1).ok());
  failing_->immutable = "checkpoint_000001/manifest.json";
  ASSERT_TRUE(Save(manager.get(), 2).ok());
  const CheckpointInfo latest = manager->Latest().value().value();
  const Status added = manager->AddMetrics(latest.id, Value::Object{{"loss", 0.5}});
  EXPECT_TRUE(added.ok()) << added.ToString();
  EXPECT_EQ(manager->WaitAll().code(), Code::kPermissionDenied);
}

TEST_P(ManagerFailures, AnIncrementThatCannotBeRemovedKeepsWhatItBuildsOn) {
  auto manager = OpenFailing({.retention = {.keep_last = 1}});
  ASSERT_TRUE(Save(manager.get(), 1).ok());
  ASSERT_TRUE(Save(manager.get(), 2, SaveKind::kCumulative).ok());
  failing_->immutable = "increment_000002/manifest.json";
  for (const std::int64_t step : {3, 4}) ASSERT_TRUE(Save(manager.get(), step).ok());
  EXPECT_FALSE(manager->WaitAll().ok());
  EXPECT_THAT(Manifests(),
              ElementsAre("checkpoint_000001", "checkpoint_000004", "increment_000002"));
}

TEST_P(ManagerFailures, WhatIsStuckForLongIsTriedLessOften) {
  auto manager = OpenFailing({.retention = {.keep_last = 1}});
  ASSERT_TRUE(Save(manager.get(), 1).ok());
  failing_->immutable = "checkpoint_000001/manifest.json";
  constexpr int kSaves = 100;
  for (int step = 2; step < 2 + kSaves; ++step) ASSERT_TRUE(Save(manager.get(), step).ok());
  EXPECT_EQ(manager->WaitAll().code(), Code::kPermissionDenied);
  EXPECT_GE(failing_->refused, 16);
  EXPECT_LT(failing_->refused, 30);
}

/// With a save in flight, and a thread that waits for it.
TEST_P(ManagerFailures, AForkedChildEndsItsCopyAndTheParentGoesOn) {
  std::binary_semaphore writing(0);
  std::binary_semaphore go_on(0);
  std::atomic<bool> first = true;
  failing_->before_writing = [&] {
    if (!first.exchange(false)) return;
    writing.release();
    go_on.acquire();
  };
  Environment env = Env();
  env.store = failing_;
  auto manager = OpenManager({.copy_threads = 3}, std::move(env)).value();
  auto handle = manager->Save(Request(1)).value();
  Status waited = InternalError("nobody waited");
  std::jthread waiter([&waited, handle] { waited = handle.Wait().status(); });
  writing.acquire();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(120);  // ends a child that hangs
    handle = SaveHandle();
    manager.reset();
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "the child ended by signal " << WTERMSIG(status);
  go_on.release();
  waiter.join();
  EXPECT_TRUE(waited.ok()) << waited.ToString();
  EXPECT_TRUE(Save(manager.get(), 2).ok());
  EXPECT_TRUE(manager->Close().ok());
}

TEST_P(ManagerFailures, AFileBelowAnotherIsRefusedBeforeAnythingIsWritten) {
  auto manager = OpenFailing();
  SaveRequest request = Request(1);
  request.files = {{.name = "a/b/c", .path = "", .bytes = "1"},
                   {.name = "a-b", .path = "", .bytes = "2"},
                   {.name = "a/b", .path = "", .bytes = "3"}};
  const Status refused = manager->Save(request).status();
  EXPECT_EQ(refused.code(), Code::kInvalidArgument) << refused.ToString();
  EXPECT_THAT(std::string(refused.message()), HasSubstr("\"a/b\" and \"a/b/c\""));
  request.files.pop_back();
  request.blocking = true;
  EXPECT_TRUE(manager->Save(std::move(request)).ok());
}

INSTANTIATE_TEST_SUITE_P(Stores, ManagerFailures, testing::Values(false, true),
                         [](const auto& param) { return param.param ? "Objects" : "Links"; });

}  // namespace
}  // namespace cairn
