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

class Adagrad final : public Optimizer {
 public:
  explicit Adagrad(const AdagradOptions& options) : options_(options) {}

  std::string name() const override { return "adagrad"; }
  float learning_rate() const override { return options_.learning_rate; }
  std::vector<SlotSpec> Slots(std::uint32_t dim) const override {
    return {{.name = "accumulator",
             .width = dim,
             .initial = options_.initial_accumulator_value,
             .rounding = SlotRounding::kNeverToZero}};
  }

  // a ← a + g²;  w ← w − η g / (√a + ε)
  void Apply(float* weights, float* slots, const float* gradient, std::uint32_t dim,
             float learning_rate) const override {
    const float epsilon = options_.epsilon;
    for (std::uint32_t i = 0; i < dim; ++i) {
      const float g = gradient[i];
      const float a = slots[i] + g * g;
      slots[i] = a;
      // Without a start value and with a gradient of 0 nothing is known of the element yet.
      const float root = std::sqrt(a) + epsilon;
      weights[i] -= root == 0 ? 0.0F : learning_rate * g / root;
    }
  }

 private:
  const AdagradOptions options_;
};

}  // namespace
}  // namespace table

Result<std::shared_ptr<const Optimizer>> MakeAdagrad(const AdagradOptions& options) {
  RETURN_IF_ERROR(table::CheckSettings(
      "adagrad",
      {{"learning_rate", options.learning_rate, 0, table::kLargest},
       {"initial_accumulator_value", options.initial_accumulator_value, 0, table::kLargest},
       {"epsilon", options.epsilon, 0, 1}}));
  return std::shared_ptr<const Optimizer>(std::make_shared<table::Adagrad>(options));
}

}  // namespace cairn
