// Trains a small model, saves every few steps, and goes on after a kill as if nothing had happened:
//
//   quickstart --dir runs/quickstart --steps 100
//   (kill -9 it, start the same command again)
//
// All that training needs to go on exactly is saved: weights, momentum, the random state.

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <cairn/checkpoint_manager.h>

namespace {

constexpr std::uint64_t kInputs = 64;
constexpr std::int64_t kSaveEvery = 5;

/// A linear model learning a hidden one from random samples.
struct Training {
  std::vector<float> weights = std::vector<float>(kInputs, 0.0f);
  std::vector<float> momentum = std::vector<float>(kInputs, 0.0f);
  std::uint64_t random = 0x9e3779b97f4a7c15;

  float NextUniform() {
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    return static_cast<float>(random >> 40) / static_cast<float>(1 << 24) - 0.5f;
  }

  double Step() {
    double loss = 0;
    std::vector<float> gradient(kInputs, 0.0f);
    for (int sample = 0; sample < 16; ++sample) {
      std::vector<float> x(kInputs);
      float error = 0;
      for (std::uint64_t i = 0; i < kInputs; ++i) {
        x[i] = NextUniform();
        error += x[i] * (weights[i] - std::sin(static_cast<float>(i)));
      }
      for (std::uint64_t i = 0; i < kInputs; ++i) gradient[i] += error * x[i] / 16;
      loss += error * error / 16;
    }
    for (std::uint64_t i = 0; i < kInputs; ++i) {
      momentum[i] = 0.9f * momentum[i] + gradient[i];
      weights[i] -= 0.5f * momentum[i];
    }
    return loss;
  }

  std::vector<cairn::Tensor> Views() const {
    using cairn::DType;
    return {{.name = "weights", .dtype = DType::kF32, .shape = {kInputs}, .data = weights.data()},
            {.name = "momentum", .dtype = DType::kF32, .shape = {kInputs}, .data = momentum.data()},
            {.name = "random", .dtype = DType::kU64, .shape = {}, .data = &random}};
  }
  std::vector<cairn::MutableTensor> Targets() {
    using cairn::DType;
    return {{.name = "weights", .dtype = DType::kF32, .shape = {kInputs}, .data = weights.data()},
            {.name = "momentum", .dtype = DType::kF32, .shape = {kInputs}, .data = momentum.data()},
            {.name = "random", .dtype = DType::kU64, .shape = {}, .data = &random}};
  }

  std::uint64_t Fingerprint() const {
    std::uint64_t hash = 1469598103934665603u;  // FNV-1a
    for (const float w : weights) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, &w, sizeof bits);
      hash = (hash ^ bits) * 1099511628211u;
    }
    return hash;
  }
};

int Fail(const cairn::Status& status) {
  std::fprintf(stderr, "quickstart: %s\n", status.ToString().c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  std::string directory = "runs/quickstart";
  std::int64_t steps = 100;
  int step_ms = 0;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const char* value = i + 1 < argc ? argv[++i] : nullptr;
    if (flag == "--dir" && value != nullptr) {
      directory = value;
    } else if (flag == "--steps" && value != nullptr) {
      steps = std::atoll(value);
    } else if (flag == "--step-ms" && value != nullptr) {
      step_ms = std::atoi(value);
    } else {
      std::fprintf(stderr, "usage: quickstart [--dir DIR] [--steps N] [--step-ms M]\n");
      return 2;
    }
  }

  auto manager = cairn::CheckpointManager::Open({.directory = directory});
  if (!manager.ok()) return Fail(manager.status());

  Training training;
  std::int64_t next = 0;
  auto restored = (*manager)->Restore({.into = training.Targets()});
  if (!restored.ok()) return Fail(restored.status());
  if (restored->has_value()) {
    next = (*restored)->step + 1;
    std::printf("resumed from step %lld\n", static_cast<long long>((*restored)->step));
  } else {
    std::printf("fresh start\n");
  }

  for (std::int64_t step = next; step < steps; ++step) {
    const double loss = training.Step();
    std::printf("step %lld loss %.6f\n", static_cast<long long>(step), loss);
    std::fflush(stdout);
    if (step % kSaveEvery == kSaveEvery - 1 || step == steps - 1) {
      // Returns as soon as the values are copied; they are written while training goes on.
      auto saved = (*manager)->Save({.step = step,
                                     .tensors = training.Views(),
                                     .metrics = cairn::Value::Object{{"loss", loss}}});
      if (!saved.ok()) return Fail(saved.status());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(step_ms));  // stands for real work
  }
  if (const cairn::Status closed = (*manager)->Close(); !closed.ok()) return Fail(closed);
  std::printf("final %016llx\n", static_cast<unsigned long long>(training.Fingerprint()));
  return 0;
}
