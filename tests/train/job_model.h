#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include <cairn/trainer.h>

namespace cairn::train_job {

/// A small network with all that makes exact resume hard: dropout from a random generator, Adam's
/// slots, a learning rate that changes, gradients that are gathered over two steps before they are
/// applied. Inputs → fixed projection → hidden layer (ReLU, dropout) → one output; targets come
/// from a formula. All arithmetic is in one thread and in a fixed order, so that equal states give
/// equal bits.
class Model {
 public:
  static constexpr std::size_t kInputs = 64;
  static constexpr std::size_t kHidden = 1536;  // large enough for files to be recycled
  static constexpr int kAccumulate = 2;

  /// Adds the other trainers' numbers to `values`, in the order of the trainers.
  using Exchange = std::function<Status(std::vector<float>* values)>;

  explicit Model(std::uint64_t trainer_id) : dropout_(1000 + trainer_id) {
    std::mt19937_64 random(1);  // all trainers begin alike
    for (Layer* layer : {&hidden_, &output_}) {
      for (float& weight : layer->weights) weight = 0.1f * Uniform(&random);
    }
    for (float& weight : projection_) weight = Uniform(&random);
  }

  std::vector<MutableTensor> Variables() {
    std::vector<MutableTensor> variables;
    const auto add = [&](std::string name, std::vector<float>* values,
                         TensorGroup group = TensorGroup::kModel) {
      variables.push_back({.name = std::move(name),
                           .dtype = DType::kF32,
                           .shape = {values->size()},
                           .data = values->data(),
                           .group = group});
    };
    for (auto& [name, layer] : {std::pair("hidden", &hidden_), std::pair("output", &output_)}) {
      const std::string prefix = name;
      add(prefix + ".weights", &layer->weights);
      add(prefix + ".adam_m", &layer->first);
      add(prefix + ".adam_v", &layer->second);
      // Until they are exchanged the gradients of each trainer are its own.
      add(prefix + ".gradient", &layer->gradient, TensorGroup::kState);
    }
    add("projection", &projection_);
    variables.push_back(
        {.name = "learning_rate", .dtype = DType::kF64, .shape = {}, .data = &learning_rate_});
    variables.push_back({.name = "updates", .dtype = DType::kI64, .shape = {}, .data = &updates_});
    return variables;
  }

  Status Register(Trainer* trainer) {
    if (Status status = trainer->AddRandomEngine("dropout", &dropout_); !status.ok()) return status;
    if (Status status = trainer->AddNumber("gathered", &gathered_); !status.ok()) return status;
    return trainer->AddNumber("samples", &samples_);
  }

  Result<Value> Step(const std::vector<std::uint64_t>& batch, const Exchange& exchange) {
    double loss = 0;
    for (const std::uint64_t sample : batch) loss += Learn(sample);
    samples_ += static_cast<std::int64_t>(batch.size());
    if (++gathered_ == kAccumulate) {
      gathered_ = 0;
      for (Layer* layer : {&hidden_, &output_}) {
        if (Status status = exchange(&layer->gradient); !status.ok()) return status;
      }
      Apply();
    }
    return Value(Value::Object{{"loss", loss / static_cast<double>(batch.size())}});
  }

  /// All the bytes of the state, to be compared.
  std::string Bytes() {
    std::string bytes;
    for (const MutableTensor& variable : Variables()) {
      std::size_t size = DTypeBits(variable.dtype) / 8u;
      for (const std::uint64_t dim : variable.shape) size *= dim;
      bytes.append(static_cast<const char*>(variable.data), size);
    }
    std::ostringstream rest;
    rest << dropout_ << " " << gathered_ << " " << samples_;
    return bytes + rest.str();
  }

 private:
  struct Layer {
    explicit Layer(std::size_t size) : weights(size), gradient(size), first(size), second(size) {}
    std::vector<float> weights, gradient, first, second;
  };

  static float Uniform(std::mt19937_64* random) {
    return static_cast<float>((*random)() >> 40) / static_cast<float>(1 << 23) - 1.0f;
  }

  /// Forward and backward for one sample; gradients are added up. Returns the squared error.
  double Learn(std::uint64_t sample) {
    float input[kInputs];
    float target = 0;
    for (std::size_t i = 0; i < kInputs; ++i) {
      const float raw = std::sin(static_cast<float>(sample * (i + 1)) * 0.1f);
      input[i] = raw * projection_[i];
      target += raw / static_cast<float>(i + 1);
    }
    std::vector<float> active(kHidden);
    float output = 0;
    for (std::size_t h = 0; h < kHidden; ++h) {
      float sum = 0;
      for (std::size_t i = 0; i < kInputs; ++i) sum += hidden_.weights[h * kInputs + i] * input[i];
      const bool dropped = (dropout_() & 7) == 0;
      active[h] = dropped || sum < 0 ? 0 : sum * (8.0f / 7.0f);
      output += active[h] * output_.weights[h];
    }
    const float error = output - target;
    for (std::size_t h = 0; h < kHidden; ++h) {
      if (active[h] == 0) continue;
      output_.gradient[h] += error * active[h];
      const float back = error * output_.weights[h] * (8.0f / 7.0f);
      for (std::size_t i = 0; i < kInputs; ++i) {
        hidden_.gradient[h * kInputs + i] += back * input[i];
      }
    }
    return static_cast<double>(error) * static_cast<double>(error);
  }

  void Apply() {
    ++updates_;
    learning_rate_ *= 0.995;
    const auto t = static_cast<double>(updates_);
    const auto rate = static_cast<float>(learning_rate_ * std::sqrt(1 - std::pow(0.999, t)) /
                                         (1 - std::pow(0.9, t)));
    for (Layer* layer : {&hidden_, &output_}) {
      for (std::size_t i = 0; i < layer->weights.size(); ++i) {
        const float g = layer->gradient[i];
        layer->first[i] = 0.9f * layer->first[i] + 0.1f * g;
        layer->second[i] = 0.999f * layer->second[i] + 0.001f * g * g;
        layer->weights[i] -= rate * layer->first[i] / (std::sqrt(layer->second[i]) + 1e-8f);
        layer->gradient[i] = 0;
      }
    }
  }

  Layer hidden_{kHidden * kInputs};
  Layer output_{kHidden};
  std::vector<float> projection_ =
      std::vector<float>(kInputs);  // never changes: its file is shared
  double learning_rate_ = 0.01;
  std::int64_t updates_ = 0;
  std::mt19937_64 dropout_;  // each trainer's own
  int gathered_ = 0;         // steps whose gradients wait to be applied
  std::int64_t samples_ = 0;
};

/// One line of the record of losses: what the outside compares.
struct LossRecord {
  std::int64_t global_step;  // the number of the step, from 0
  double loss;
};

}  // namespace cairn::train_job
