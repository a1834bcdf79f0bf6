#include <memory>
#include <string>
#include <vector>

#include <cairn/optimizer.h>

#include "base/status_macros.h"
#include "table/optimizer/adam_step.h"
#include "table/settings.h"

namespace cairn {
namespace table {
namespace {

class AdamW final : public Optimizer {
 public:
  explicit AdamW(const AdamWOptions& options) : options_(options) {}

  std::string name() const override { return "adamw"; }
  float learning_rate() const override { return options_.learning_rate; }
  std::vector<SlotSpec> Slots(std::uint32_t dim) const override { return AdamSlots(dim); }

  // The decay is no part of the gradient: w ← w − η λ w.
  void Apply(float* weights, float* slots, const float* gradient, std::uint32_t dim,
             float learning_rate) const override {
    AdamStep(options_, weights, slots, gradient, dim, learning_rate,
             [&](float w) { return w - learning_rate * options_.weight_decay * w; });
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
