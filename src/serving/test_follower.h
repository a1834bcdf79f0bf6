#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <vector>

#include "checkpoint/restore.h"
#include "serving/follower.h"
#include "serving/test_versions.h"
#include "serving/test_writer.h"
#include "storage/local/temp_directory.h"

/// What tests of followers share: a job of one table, and a follower of its repository.
namespace cairn::serving {

using Kind = UpdateReport::Kind;

inline constexpr std::uint32_t kDim = 4;

/// Keeps the dense number of a version, and refuses what a test says.
class NumberLoader final : public DenseLoader {
 public:
  struct Number final : Dense {
    float value = 0;
  };
  Result<std::shared_ptr<const Dense>> Load(Store* store, OpenCheckpoint* checkpoint,
                                            const std::shared_ptr<const Dense>&) override {
    ++loads;
    used += cost;
    if (throws) throw std::bad_alloc();
    if (!trouble.ok()) return trouble;
    auto number = std::make_shared<Number>();
    RestoreRequest request;
    request.into = {{.name = "w", .dtype = DType::kF32, .shape = {1}, .data = &number->value}};
    const auto restored = RestoreCheckpoint(store, checkpoint, request, "rank_0", {});
    if (!restored.ok()) return restored.status();
    return std::shared_ptr<const Dense>(number);
  }
  Status Check(const Versions::Snapshot& snapshot) override {
    if (!blind.ok()) return blind;
    if (Of(snapshot) != refused) return Status::Ok();
    return FailedPreconditionError("the probe is out of its range");
  }
  static float Of(const Versions::Snapshot& snapshot) {
    return static_cast<const Number*>(snapshot.dense())->value;
  }
  std::chrono::nanoseconds elsewhere() const override { return used; }
  float refused = -1;
  Status trouble;       // what reading gives
  Status blind;         // why guards cannot look
  bool throws = false;  // reading has no memory
  int loads = 0;
  std::chrono::nanoseconds cost{0};  // of a load, on other threads
  std::chrono::nanoseconds used{0};
};

class FollowerTest : public ::testing::Test {
 protected:
  void Follow(FollowerOptions options = {}) {
    if (options.repository.empty()) options.repository = path_;
    follower_ = Follower::Open(options, &versions_, &dense_, [this](const UpdateReport& report) {
                  const std::lock_guard lock(mutex_);
                  reports_.push_back(report);
                  if (on_report_) on_report_(report);
                  changed_.notify_all();
                }).value();
  }
  /// What is served, with its step as -2; empty: nothing is.
  RowMap Served() {
    const Versions::Snapshot snapshot = versions_.Acquire();
    if (!snapshot) return {};
    RowMap rows = ReadAll(snapshot, 0, 50, kDim);
    rows[-2] = static_cast<float>(snapshot.facts().step);
    EXPECT_EQ(NumberLoader::Of(snapshot), rows[-2]) << "dense and rows are of one checkpoint";
    return rows;
  }
  RowMap Look() {
    const Status looked = follower_->Look();
    EXPECT_TRUE(looked.ok()) << looked.ToString();
    return Served();
  }
  /// As the follower's own thread looks.
  RowMap LookInTurn() {
    follower_->LookInTurn().IgnoreError("what is served tells");
    return Served();
  }
  int Count(Kind kind) {
    const std::lock_guard lock(mutex_);
    int count = 0;
    for (const UpdateReport& report : reports_) count += report.kind == kind;
    return count;
  }
  UpdateReport Last() {
    const std::lock_guard lock(mutex_);
    return reports_.back();
  }
  bool WaitForStep(std::int64_t step) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), [&] {
      return !reports_.empty() && reports_.back().kind == Kind::kApplied &&
             reports_.back().step == step;
    });
  }
  static void Flip(const std::string& file) {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(-1, std::ios::end);
    const char byte = static_cast<char>(stream.get() ^ 1);
    stream.seekp(-1, std::ios::end);
    stream.put(byte);
  }
  static std::string RowsOf(const CheckpointInfo& info) {
    return info.path + "/__lookup_table__/rank_0.safetensors";
  }

  TempDirectory directory_;
  const std::string path_ = directory_ / "run";
  Versions versions_{{{.name = "t", .dim = kDim, .dtype = DType::kF32, .default_value = -1}},
                     {.keep = 3}};
  NumberLoader dense_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<UpdateReport> reports_;
  std::function<void(const UpdateReport&)> on_report_;
  std::unique_ptr<Follower> follower_;
};

}  // namespace cairn::serving
