#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/log.h"
#include "checkpoint/manager.h"
#include "checkpoint/names.h"
#include "checkpoint/test_checkpoint.h"
#include "checkpoint/test_transfer.h"
#include "checkpoint/transfer.h"
#include "storage/forwarding_store.h"
#include "storage/memory/memory_store.h"

namespace cairn {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;
using testing::StartsWith;

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
      auto saved = manager->Save(SavedState(step).Request(step));
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
  EXPECT_EQ(tensors.at("weights"), SavedState(20).weights);
  EXPECT_EQ(tensors.at("frozen"), SavedState(20).frozen);
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
    EXPECT_EQ(RestoreAll(manager.get(), info.id).at("weights"), SavedState(info.step).weights);
  }
  EXPECT_THAT(steps, ElementsAre(10, 20, 30));
  // Removing the first must not take shared bytes from the others.
  ASSERT_TRUE(manager->Delete(manager->List().value()[0].id).ok());
  EXPECT_EQ(RestoreAll(manager.get()).at("frozen"), SavedState(30).frozen);
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

/// Counts the objects that are opened for reading.
class CountingStore final : public ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  Result<std::unique_ptr<ObjectReader>> OpenReader(const std::string& name) override {
    ++opened[name];
    return inner()->OpenReader(name);
  }
  std::map<std::string, int> opened;
};

TEST_P(CopyTest, WhatIsSharedIsLookedAtOnce) {
  if (std::get<1>(GetParam())) return;  // buckets keep checksums of their own
  SaveSteps({10, 20, 30, 40, 50, 60});
  ASSERT_TRUE(Copy({.choices = {{.step = 30}}}).ok());
  const RepositoryView view = RepositoryReader(source_.get()).Read().value();
  const CopyRequest rest{.choices = {{.step = 40}, {.step = 50}, {.step = 60}}};
  const auto counting = std::make_shared<CountingStore>(target_.get());
  const Environment source = Env(source_);
  const auto report =
      CopyInto(source, view, ChooseForCopy(view, "source", rest).value(), Env(counting), rest, {});
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_GT(report->bytes_shared, 0u);
  EXPECT_THAT(counting->opened, Not(IsEmpty()));
  for (const auto& [name, times] : counting->opened) {
    EXPECT_EQ(times, 1) << name;
    EXPECT_THAT(name, StartsWith("checkpoint_000030/")) << "what was written just now is known";
  }
}

TEST_P(CopyTest, AFileThatHasRottedInTheTargetIsWrittenAnew) {
  if (std::get<1>(GetParam())) return;  // buckets keep checksums of their own
  SaveSteps({10, 20, 30, 40, 50});
  ASSERT_TRUE(Copy({.choices = {{.step = 30}}}).ok());
  // A file that the later ones share with it.
  const RepositoryView source = RepositoryReader(source_.get()).Read().value();
  const auto has = [](const Checkpoint& checkpoint, const FileHash& hash) {
    const auto& files = checkpoint.manifest->files;
    return std::any_of(files.begin(), files.end(),
                       [&](const ManifestFile& file) { return file.hash == hash; });
  };
  std::string rotten;
  for (const ManifestFile& file : source.checkpoints[2].manifest->files) {
    if (file.hash.bytes > 5000 && has(source.checkpoints[3], file.hash) &&
        has(source.checkpoints[4], file.hash)) {
      rotten = TargetView().checkpoints[0].directory + "/" + file.path;
    }
  }
  ASSERT_NE(rotten, "");
  FlipBit(target_.get(), rotten, 5000);
  std::vector<std::string> warnings;
  SetLogSink([&](LogLevel, std::string_view line) {
    if (line.find("is damaged") != line.npos) warnings.emplace_back(line);
  });
  const auto report = Copy({.choices = {{.step = 40}, {.step = 50}}});
  SetLogSink({});
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  ASSERT_THAT(warnings, SizeIs(1)) << "found once, and said once";
  EXPECT_THAT(warnings[0], HasSubstr(rotten));
  EXPECT_GT(report->bytes_shared, 0u) << "the third shares what the second wrote";
  auto manager = Open(target_);
  for (const std::int64_t step : {40, 50}) {
    const auto restored = manager->Restore({.allocate = true, .step = step});
    EXPECT_TRUE(restored.ok()) << restored.status().ToString();
  }
  EXPECT_EQ(RestoreAll(manager.get()).at("frozen"), SavedState(50).frozen);
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

INSTANTIATE_TEST_SUITE_P(Stores, CopyTest, testing::Combine(testing::Bool(), testing::Bool()),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param) ? "FromObjects"
                                                                      : "FromDisk") +
                                  (std::get<1>(info.param) ? "ToObjects" : "ToDisk");
                         });

}  // namespace
}  // namespace cairn
