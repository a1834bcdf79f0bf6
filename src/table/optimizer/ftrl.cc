#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <cairn/optimizer.h>

#include "base/status_macros.h"
#include "table/settings.h"

namespace cairn {
namespace table {
namespace {

class Ftrl final : public Optimizer {
 public:
  explicit Ftrl(const FtrlOptions& options) : options_(options) {}

  std::string name() const override { return "ftrl"; }
  float learning_rate() const override { return options_.learning_rate; }
  std::vector<SlotSpec> Slots(std::uint32_t dim) const override {
    return {{.name = "accumulator",
             .width = dim,
             .initial = options_.initial_accumulator_value,
             .rounding = SlotRounding::kNone},
            {.name = "linear", .width = dim, .initial = 0, .rounding = SlotRounding::kNone}};
  }

  // n' ← n + g²;  σ = (n'^−p − n^−p) / η;  z ← z + g − σ w;  n ← n'
  // w ← 0 where |z| ≤ λ₁, else −(z − sign(z) λ₁) / ((n^−p + β) / η + 2 λ₂)
  void Apply(float* weights, float* slots, const float* gradient, std::uint32_t dim,
             float learning_rate) const override {
    // A rate of 0 pauses: the formula divides by it.
    if (!(learning_rate > 0)) return;
    float* n = slots;
    float* z = slots + dim;
    for (std::uint32_t i = 0; i < dim; ++i) {
      const float g = gradient[i];
      const float before = Power(n[i]);
      n[i] += g * g;
      const float after = Power(n[i]);
      z[i] += g - (after - before) / learning_rate * weights[i];
      const float sign = z[i] < 0 ? -1.0F : 1.0F;
      const float divisor = (after + options_.beta) / learning_rate + 2 * options_.l2;
      weights[i] = std::fabs(z[i]) <= options_.l1 || divisor == 0
                       ? 0.0F
                       : -(z[i] - sign * options_.l1) / divisor;
    }
  }

 private:
  float Power(float n) const {
    const float power = options_.learning_rate_power;
    return power == -0.5F ? std::sqrt(n) : std::pow(n, -power);
  }

  const FtrlOptions options_;
};

}  // namespace
}  // namespace table

Result<std::shared_ptr<const Optimizer>> MakeFtrl(const FtrlOptions& options) {
  RETURN_IF_ERROR(table::CheckSettings(
      "ftrl", {{"learning_rate", options.learning_rate, 1e-30F, table::kLargest},
               {"learning_rate_power", options.learning_rate_power, -10, 0},
               {"initial_accumulator_value", options.initial_accumulator_value, 0, table::kLargest},
               {"l1", options.l1, 0, table::kLargest},
               {"l2", options.l2, 0, table::kLargest},
               {"beta", options.beta, 0, table::kLargest}}));
  return std::shared_ptr<const Optimizer>(std::make_shared<table::Ftrl>(options));
}

}  // namespace cairn
