#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/manual_clock.h"
#include "base/thread_annotations.h"
#include "checkpoint/test_job_store.h"
#include "train/trainer.h"

namespace cairn {

/// Collects the log of its lifetime.
class LogCapture {
 public:
  LogCapture() {
    SetLogSink([this](LogLevel level, std::string_view line) {
      MutexLock lock(&mu_);
      if (level >= LogLevel::kWarning) lines_.emplace_back(line);
    });
  }
  ~LogCapture() { SetLogSink(nullptr); }
  /// Warnings and errors with `text` in them.
  int Count(std::string_view text) {
    MutexLock lock(&mu_);
    int found = 0;
    for (const std::string& line : lines_) found += line.find(text) != line.npos ? 1 : 0;
    return found;
  }
  std::string First() {
    MutexLock lock(&mu_);
    return lines_.empty() ? "" : lines_.front();
  }

 private:
  Mutex mu_;
  std::vector<std::string> lines_ GUARDED_BY(mu_);
};

/// Numbers 100 * epoch + i, a fixed number of them an epoch; seekable or not.
class NumberReader final : public Reader<std::int64_t> {
 public:
  NumberReader(std::int64_t steps, bool seekable) : steps_(steps), seekable_(seekable) {}

  Status Begin(std::int64_t epoch) override {
    epoch_ = epoch;
    at_ = 0;
    ++begun;
    return Status::Ok();
  }
  Result<std::optional<std::int64_t>> Next() override {
    if (at_ == steps_) return std::optional<std::int64_t>();
    ++read;
    return std::optional(100 * epoch_ + at_++);
  }
  bool seekable() const override { return seekable_; }
  Result<Value> SaveState() override {
    return Value(Value::Object{{"epoch", epoch_}, {"at", at_}});
  }
  Status LoadState(const Value& state) override {
    epoch_ = state.Find("epoch")->AsInt();
    at_ = state.Find("at")->AsInt();
    return Status::Ok();
  }

  int begun = 0;
  int read = 0;

 private:
  const std::int64_t steps_;
  const bool seekable_;
  std::int64_t epoch_ = -1;
  std::int64_t at_ = 0;
};

/// A training whose state mixes the batch, the variables and a random generator, so that any step
/// left out, made twice or made with another draw shows in the weights.
struct Training {
  std::vector<double> weights = std::vector<double>(50, 1.0);
  std::vector<double> slots = std::vector<double>(50, 0.0);
  std::mt19937_64 random{7};
  std::vector<std::int64_t> batches;  // in the order trained

  double Step(std::int64_t batch) {
    batches.push_back(batch);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      slots[i] = 0.9 * slots[i] + static_cast<double>(random() >> 40) * 1e-8;
      weights[i] += slots[i] * static_cast<double>(batch + 1) - 0.01 * weights[i];
    }
    return weights[0];
  }
  std::vector<MutableTensor> Variables() {
    return {{.name = "weights", .dtype = DType::kF64, .shape = {50}, .data = weights.data()},
            {.name = "slots", .dtype = DType::kF64, .shape = {50}, .data = slots.data()}};
  }
  bool SameState(const Training& other) const {
    return weights == other.weights && slots == other.slots && random == other.random;
  }
};

inline constexpr std::int64_t kSteps = 25;  // of an epoch

/// Trainings in a store in memory, which stays from one trainer to the next.
class TrainerTest : public testing::Test, protected TestJobStore {
 protected:
  TrainerTest() : TestJobStore(/*object_store=*/false) {}

  static TrainerOptions Options(Training* training, CheckpointConfig config = {}) {
    config.checkpoint_dir = "runs/a";
    TrainerOptions options;
    options.model = training->Variables();
    options.checkpoint_config = config;
    return options;
  }
  std::unique_ptr<Trainer> Open(Training* training, CheckpointConfig config = {}) {
    return OpenWith(Options(training, config), training);
  }
  std::unique_ptr<Trainer> OpenWith(TrainerOptions options, Training* training) {
    auto trainer = OpenTrainer(std::move(options), Env());
    EXPECT_TRUE(trainer.ok()) << trainer.status().ToString();
    if (!trainer.ok()) return nullptr;
    EXPECT_TRUE((*trainer)->AddRandomEngine("random", &training->random).ok());
    return *std::move(trainer);
  }
  static Result<TrainResult> Run(Trainer* trainer, Training* training, std::int64_t epochs,
                                 NumberReader* reader, EventHandler handler = {}) {
    return trainer->Train(
        epochs, *reader, [&](std::int64_t batch) { return training->Step(batch); }, handler);
  }
  /// Trains without a disturbance and without checkpoints.
  static Training Undisturbed(std::int64_t epochs) {
    Training training;
    auto trainer = Trainer::Open({.model = training.Variables()});
    NumberReader reader(kSteps, true);
    EXPECT_TRUE(Run(trainer->get(), &training, epochs, &reader).ok());
    return training;
  }
  std::vector<std::pair<std::string, std::int64_t>> Checkpoints() {
    auto manager = OpenManager({.read_only = true}, Env());
    std::vector<std::pair<std::string, std::int64_t>> found;
    for (const CheckpointInfo& info : (*manager)->List().value()) {
      found.emplace_back(info.path.substr(info.path.rfind('/') + 1), info.step);
    }
    return found;
  }
  std::string Text(const std::string& name) { return store_->Get(name, 1 << 20).value(); }
};

}  // namespace cairn
