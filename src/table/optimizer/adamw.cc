#include <cmath>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include <cairn/optimizer.h>

#include "base/status_macros.h"
#include "table/settings.h"

namespace cairn {
namespace table {
namespace {

class AdamW final : public Optimizer {
 public:
  explicit AdamW(const AdamWOptions& options) : options_(options) {}

  std::string name() const override { return "adamw"; }
  float learning_rate() const override { return options_.learning_rate; }
  std::vector<SlotSpec> Slots(std::uint32_t dim) const override {
    return {{.name = "m", .width = dim, .initial = 0},
            {.name = "v", .width = dim, .initial = 0},
            {.name = "updates", .width = 1, .initial = 0}};
  }

  // m ← β₁ m + (1 − β₁) g;  v ← β₂ v + (1 − β₂) g²;  t ← t + 1
  // w ← w − η λ w, then w ← w − η (m / (1 − β₁ᵗ)) / (√(v / (1 − β₂ᵗ)) + ε)
  void Apply(float* weights, float* slots, const float* gradient, std::uint32_t dim,
             float learning_rate) const override {
    float* m = slots;
    float* v = slots + dim;
    float* t = slots + 2 * std::size_t{dim};
    *t += 1;  // stays at 2^24, where the corrections have long become 1
    const double count = static_cast<double>(*t);
    const auto correct1 =
        static_cast<float>(1 - std::pow(static_cast<double>(options_.beta1), count));
    const auto correct2 =
        static_cast<float>(1 - std::pow(static_cast<double>(options_.beta2), count));
    for (std::uint32_t i = 0; i < dim; ++i) {
      const float g = gradient[i];
      m[i] = options_.beta1 * m[i] + (1 - options_.beta1) * g;
      v[i] = options_.beta2 * v[i] + (1 - options_.beta2) * g * g;
      weights[i] -= learning_rate * options_.weight_decay * weights[i];
      const float root = std::sqrt(v[i] / correct2) + options_.epsilon;
      weights[i] -= root > 0 ? learning_rate * (m[i] / correct1) / root : 0.0F;
    }
  }

 private:
  const AdamWOptions options_;
};

}  // namespace
}  // namespace table

Result<std::shared_ptr<const Optimizer>> MakeAdamW(const AdamWOptions& options) {
  RETURN_IF_ERROR(
      table::CheckSettings("adamw", {{"learning_rate", options.learning_rate, 0, table::kLargest},
                                     {"beta1", options.beta1, 0, 0.9999999F},
                                     {"beta2", options.beta2, 0, 0.9999999F},
                                     {"epsilon", options.epsilon, 0, 1},
                                     {"weight_decay", options.weight_decay, 0, 1}}));
  return std::shared_ptr<const Optimizer>(std::make_shared<table::AdamW>(options));
}

}  // namespace cairn
