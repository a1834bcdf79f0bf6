#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <cairn/optimizer.h>

/// What Adam and AdamW have in common: the slots, and all of a step but the decay of the weights.
namespace cairn::table {

inline std::vector<SlotSpec> AdamSlots(std::uint32_t dim) {
  return {{.name = "m", .width = dim, .initial = 0},
          {.name = "v", .width = dim, .initial = 0, .rounding = SlotRounding::kNeverToZero},
          {.name = "updates", .width = 1, .initial = 0}};
}

// m ← β₁ m + (1 − β₁) g;  v ← β₂ v + (1 − β₂) g²;  t ← t + 1;  w ← decayed(w)
// w ← w − η (m / (1 − β₁ᵗ)) / (√(v / (1 − β₂ᵗ)) + ε)
template <typename Options, typename Decayed>
void AdamStep(const Options& options, float* weights, float* slots, const float* gradient,
              std::uint32_t dim, float learning_rate, const Decayed& decayed) {
  float* m = slots;
  float* v = slots + dim;
  float* t = slots + 2 * std::size_t{dim};
  *t += 1;  // stays at 2^24, where the corrections have long become 1
  const double count = static_cast<double>(*t);
  const auto correct1 = static_cast<float>(1 - std::pow(static_cast<double>(options.beta1), count));
  const auto correct2 = static_cast<float>(1 - std::pow(static_cast<double>(options.beta2), count));
  for (std::uint32_t i = 0; i < dim; ++i) {
    const float g = gradient[i];
    m[i] = options.beta1 * m[i] + (1 - options.beta1) * g;
    v[i] = options.beta2 * v[i] + (1 - options.beta2) * g * g;
    const float root = std::sqrt(v[i] / correct2) + options.epsilon;
    weights[i] = decayed(weights[i]);
    weights[i] -= root == 0 ? 0.0F : learning_rate * (m[i] / correct1) / root;
  }
}

}  // namespace cairn::table
