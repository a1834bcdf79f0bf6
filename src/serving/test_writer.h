#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <cairn/checkpoint_manager.h>
#include <cairn/table_checkpoint.h>

#include "base/clock.h"
#include "checkpoint/manager.h"
#include "storage/local/local_store.h"

namespace cairn::serving {

/// A machine whose time of day is what a test says.
class JumpingClock final : public Clock {
 public:
  Duration Now() override { return System()->Now(); }
  std::int64_t WallNanos() override { return wall; }
  void Sleep(Duration duration) override { System()->Sleep(duration); }
  std::int64_t wall = System()->WallNanos();
};

/// A training job: one table whose rows are set by hand, one dense number.
class TestWriter {
 public:
  struct Options {
    SaveKind chain = SaveKind::kCumulative;
    TableCheckpoints::Options rows;
    bool takeover = false;
    std::string table = "t";
    std::uint32_t dim = 4;
    std::optional<std::uint64_t> keep_last;
    Fs* fs = nullptr;  // the disk that it writes to; borrowed. Null: the machine's
    Clock* clock = Clock::System();
    std::shared_ptr<Store> store;  // what it writes to; null: what `directory` names
  };
  explicit TestWriter(const std::string& directory) : TestWriter(directory, Options{}) {}
  TestWriter(const std::string& directory, Options options) : options_(options) {
    TableOptions table;
    table.name = options.table;
    table.dim = options.dim;
    table.optimizer = MakeAdagrad({.learning_rate = 0.1F}).value();
    table.initializer = MakeConstant(0).value();
    table.gate = std::make_shared<CutGate>();
    table_ = Table::Make(table).value();
    ManagerOptions manager;
    manager.directory = directory;
    manager.takeover = options.takeover;
    manager.retention.keep_last = options.keep_last;
    Environment env;
    if (options.store == nullptr) {
      env = EnvironmentAt(directory, {.create = true}).value();
    } else {
      env.store = options.store;
      env.host = "test";
      env.pid = 1;
    }
    if (options.fs != nullptr) {
      env.store = LocalStore::Open({.root = directory, .fs = options.fs}).value();
    }
    env.clock = options.clock;
    manager_ = OpenManager(manager, std::move(env)).value();
    checkpoints_ =
        std::make_unique<TableCheckpoints>(manager_.get(), std::vector{table_.get()}, options.rows);
    restored_ = Restore("");
  }
  ~TestWriter() {
    checkpoints_ = nullptr;
    manager_->Close().IgnoreError("tests fence it");
  }

  /// Sets the weights of rows.
  TestWriter& Set(const std::vector<std::int64_t>& keys, float value) {
    const std::vector<float> values(keys.size() * options_.dim, value);
    EXPECT_TRUE(table_->Assign(keys, values).ok());
    return *this;
  }
  TestWriter& Erase(const std::vector<std::int64_t>& keys) {
    EXPECT_TRUE(table_->Erase(keys).ok());
    return *this;
  }
  /// What the dense number of the next save is, instead of its step.
  TestWriter& Weight(float weight) {
    weight_ = weight;
    return *this;
  }
  /// What the dense number is called from now on.
  TestWriter& Name(std::string name) {
    name_ = std::move(name);
    return *this;
  }
  Result<CheckpointInfo> Save(std::int64_t step, SaveKind kind) {
    dense_ = std::exchange(weight_, std::nullopt).value_or(static_cast<float>(step));
    table_->set_step(step);
    SaveRequest request;
    request.step = step;
    request.kind = kind;
    request.tensors = {{.name = name_, .dtype = DType::kF32, .shape = {1}, .data = &dense_}};
    auto handle = checkpoints_->Save(std::move(request));
    if (!handle.ok()) return handle.status();
    return handle->Wait();
  }
  CheckpointInfo Full(std::int64_t step) { return Save(step, SaveKind::kFull).value(); }
  CheckpointInfo Increment(std::int64_t step) { return Save(step, options_.chain).value(); }

  /// Goes on from an older checkpoint: what comes is another branch.
  TestWriter& GoBack(const std::string& id) {
    EXPECT_TRUE(Restore(id));
    return *this;
  }

  bool restored() const { return restored_; }
  CheckpointManager* manager() { return manager_.get(); }
  Table* table() { return table_.get(); }

 private:
  bool Restore(const std::string& id) {
    RestoreRequest request;
    request.id = id;
    request.into = {{.name = "w", .dtype = DType::kF32, .shape = {1}, .data = &dense_}};
    return checkpoints_->Restore(std::move(request)).value().has_value();
  }

  const Options options_;
  std::unique_ptr<Table> table_;
  std::unique_ptr<CheckpointManager> manager_;
  std::unique_ptr<TableCheckpoints> checkpoints_;
  float dense_ = 0;
  std::optional<float> weight_;
  std::string name_ = "w";
  bool restored_ = false;
};

}  // namespace cairn::serving
