// A training that can be killed at any moment:
//
//   trainer --dir runs/trainer --epochs 5            (kill -9 it, start the same command again)
//   trainer --dir runs/trainer --epochs 5            goes on with the next step
//   trainer --dir runs/trainer --epochs 5            "nothing to do"
//   trainer --dir runs/trainer --epochs 8            trains three more
//
// It learns a curve with a small network: mini-batches in shuffled order, momentum, a learning rate
// that decays, dropout from a random generator. What has to be saved for an exact resume is said in
// three places, marked (1) to (3) below; the Trainer does the rest. The last line is a fingerprint
// of the weights: it is the same however often the training was killed.
//
// With SIGTERM (a preempted machine, Ctrl-C's polite sister) it finishes the step, saves and ends.

#include <cairn/trainer.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr std::uint64_t kSamples = 400;
constexpr std::size_t kHidden = 48;

/// y = sum of hidden units: out[h] * tanh(in[h] * x + bias[h]).
struct Network {
  std::vector<float> weights = std::vector<float>(3 * kHidden);  // in, bias, out
  std::vector<float> momentum = std::vector<float>(3 * kHidden);
  double learning_rate = 0.05;
  std::mt19937_64 dropout{42};

  Network() {
    std::mt19937_64 random(1);
    for (float& weight : weights) {
      weight = static_cast<float>(random() >> 40) / static_cast<float>(1 << 23) - 1.0f;
    }
  }

  /// One step of gradient descent on the samples of a batch; returns their mean squared error.
  double Step(const std::vector<std::uint64_t>& batch) {
    std::vector<float> gradient(weights.size());
    double loss = 0;
    for (const std::uint64_t sample : batch) {
      const float x = 4 * static_cast<float>(sample) / kSamples - 2;
      float unit[kHidden];
      float y = 0;
      for (std::size_t h = 0; h < kHidden; ++h) {
        const bool dropped = (dropout() & 31) == 0;
        unit[h] = dropped ? 0 : std::tanh(weights[h] * x + weights[kHidden + h]);
        y += weights[2 * kHidden + h] * unit[h];
      }
      const float error = y - std::sin(3 * x);
      loss += error * error;
      for (std::size_t h = 0; h < kHidden; ++h) {
        const float back = error * weights[2 * kHidden + h] * (1 - unit[h] * unit[h]);
        if (unit[h] == 0) continue;
        gradient[h] += back * x;
        gradient[kHidden + h] += back;
        gradient[2 * kHidden + h] += error * unit[h];
      }
    }
    const auto count = static_cast<float>(batch.size());
    for (std::size_t i = 0; i < weights.size(); ++i) {
      momentum[i] = 0.9f * momentum[i] + gradient[i] / count;
      weights[i] -= static_cast<float>(learning_rate) * momentum[i];
    }
    return loss / count;
  }

  // (1) The variables: everything in memory that a step reads and writes.
  std::vector<cairn::MutableTensor> Variables() {
    using cairn::DType;
    return {
        {.name = "weights", .dtype = DType::kF32, .shape = {3, kHidden}, .data = weights.data()},
        {.name = "momentum", .dtype = DType::kF32, .shape = {3, kHidden}, .data = momentum.data()},
        {.name = "learning_rate", .dtype = DType::kF64, .shape = {}, .data = &learning_rate}};
  }

  std::uint64_t Fingerprint() const {
    std::uint64_t hash = 1469598103934665603u;  // FNV-1a
    const auto* bytes = reinterpret_cast<const unsigned char*>(weights.data());
    for (std::size_t i = 0; i < weights.size() * sizeof(float); ++i) {
      hash = (hash ^ bytes[i]) * 1099511628211u;
    }
    return hash;
  }
};

int Fail(const cairn::Status& status) {
  std::fprintf(stderr, "trainer: %s\n", status.ToString().c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  std::string directory = "runs/trainer";
  std::int64_t epochs = 5;
  int step_ms = 20;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const char* value = i + 1 < argc ? argv[++i] : nullptr;
    if (flag == "--dir" && value != nullptr) {
      directory = value;
    } else if (flag == "--epochs" && value != nullptr) {
      epochs = std::atoll(value);
    } else if (flag == "--step-ms" && value != nullptr) {
      step_ms = std::atoi(value);
    } else {
      std::fprintf(stderr, "usage: trainer [--dir DIR] [--epochs N] [--step-ms M]\n");
      return 2;
    }
  }

  Network network;
  auto trainer = cairn::Trainer::Open(
      {.model = network.Variables(),
       .checkpoint_config = cairn::CheckpointConfig{.checkpoint_dir = directory}});
  if (!trainer.ok()) return Fail(trainer.status());
  if ((*trainer)->resumed()) {
    std::printf("resumed after %lld steps\n", static_cast<long long>((*trainer)->global_step()));
  }

  // (2) State that is no variable.
  const cairn::Status registered = (*trainer)->AddRandomEngine("dropout", &network.dropout);
  if (!registered.ok()) return Fail(registered);

  // (3) The data: a reader that can seek. The order depends on seed and epoch alone.
  cairn::ShuffledIndices reader({.size = kSamples, .batch_size = 16, .seed = 7});

  auto result = (*trainer)->Train(
      epochs, reader,
      [&](const std::vector<std::uint64_t>& batch) {
        std::this_thread::sleep_for(std::chrono::milliseconds(step_ms));  // stands for real work
        return cairn::Value::Object{{"loss", network.Step(batch)}};
      },
      [&](const cairn::TrainerEvent& event) {
        if (const auto* step = std::get_if<cairn::EndStepEvent>(&event)) {
          std::printf("epoch %lld step %2lld loss %.5f\n", static_cast<long long>(step->epoch),
                      static_cast<long long>(step->step), step->metrics.Find("loss")->AsDouble());
          std::fflush(stdout);
        } else if (std::holds_alternative<cairn::EndEpochEvent>(event)) {
          network.learning_rate *= 0.8;
        }
      });
  if (!result.ok()) return Fail(result.status());
  std::printf("%s after %lld steps, %lld of them now; weights %016llx\n",
              std::string(cairn::TrainOutcomeName(result->outcome)).c_str(),
              static_cast<long long>(result->global_step),
              static_cast<long long>(result->steps_run),
              static_cast<unsigned long long>(network.Fingerprint()));
  return 0;
}
