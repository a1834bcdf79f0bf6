#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include <cairn/optimizer.h>

namespace cairn::table {

/// Runs an optimizer for some steps over one row, beside a reference formula in double precision:
/// reference(weight, gradient, slots of the element) for each element.
inline void CompareWithFormula(
    const Optimizer& optimizer,
    const std::function<void(double*, double, std::vector<double>*, int)>& reference,
    std::size_t reference_slots, const std::vector<double>& initial) {
  constexpr std::uint32_t kDim = 5;
  std::vector<float> weights = {0.5F, -0.25F, 0, 2, -3};
  std::vector<float> slots;
  for (const SlotSpec& slot : optimizer.Slots(kDim)) {
    slots.insert(slots.end(), slot.width, slot.initial);
  }
  std::vector<double> expected(weights.begin(), weights.end());
  std::vector<std::vector<double>> state(kDim, initial);
  ASSERT_EQ(initial.size(), reference_slots);
  for (int step = 0; step < 30; ++step) {
    std::vector<float> gradient(kDim);
    for (std::uint32_t i = 0; i < kDim; ++i) {
      gradient[i] = std::sin(static_cast<float>(step * 7 + static_cast<int>(i)));
    }
    optimizer.Apply(weights.data(), slots.data(), gradient.data(), kDim, optimizer.learning_rate());
    for (std::uint32_t i = 0; i < kDim; ++i) {
      reference(&expected[i], static_cast<double>(gradient[i]), &state[i], step + 1);
      ASSERT_NEAR(static_cast<double>(weights[i]), expected[i], 2e-5) << "step " << step;
    }
  }
  // A gradient that is no number shows in the weights: a row that silently learns no more would not
  // be noticed.
  const std::vector<float> nothing(kDim, std::numeric_limits<float>::quiet_NaN());
  optimizer.Apply(weights.data(), slots.data(), nothing.data(), kDim, optimizer.learning_rate());
  for (const float w : weights) EXPECT_TRUE(std::isnan(w));
}

/// A gradient of 0 from the start leaves finite weights.
inline void ExpectFiniteOnZeros(const Optimizer& optimizer) {
  std::vector<float> weights(3, 1.0F);
  std::vector<float> slots;
  for (const SlotSpec& slot : optimizer.Slots(3)) {
    slots.insert(slots.end(), slot.width, slot.initial);
  }
  slots.resize(slots.size() + 1);
  const std::vector<float> zeros(3);
  optimizer.Apply(weights.data(), slots.data(), zeros.data(), 3, optimizer.learning_rate());
  for (const float w : weights) EXPECT_TRUE(std::isfinite(w));
}

}  // namespace cairn::table
