#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/thread_annotations.h"
#include "storage/memory/memory_store.h"
#include "train/trainer.h"

namespace cairn {

/// A clock that tests move. Sleeping moves it too.
class ManualClock final : public Clock {
 public:
  Duration Now() override {
    MutexLock lock(&mu_);
    return now_;
  }
  std::int64_t WallNanos() override { return Now().count(); }
  void Sleep(Duration duration) override { Advance(duration); }
  void Advance(Duration duration) {
    MutexLock lock(&mu_);
    now_ += duration;
  }

 private:
  Mutex mu_;
  Duration now_ GUARDED_BY(mu_) = Duration(1);
};

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

}  // namespace cairn
