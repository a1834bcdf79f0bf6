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

class RowwiseAdagrad final : public Optimizer {
 public:
  explicit RowwiseAdagrad(const RowwiseAdagradOptions& options) : options_(options) {}

  std::string name() const override { return "rowwise_adagrad"; }
  float learning_rate() const override { return options_.learning_rate; }
  std::vector<SlotSpec> Slots(std::uint32_t /*dim*/) const override {
    return {{.name = "accumulator", .width = 1, .initial = options_.initial_accumulator_value}};
  }

  // a ← a + mean(g²);  w ← w − η g / (√a + ε)
  void Apply(float* weights, float* slots, const float* gradient, std::uint32_t dim,
             float learning_rate) const override {
    float square = 0;
    for (std::uint32_t i = 0; i < dim; ++i) square += gradient[i] * gradient[i];
    *slots += square / static_cast<float>(dim);
    const float root = std::sqrt(*slots) + options_.epsilon;
    const float step = root == 0 ? 0.0F : learning_rate / root;
    for (std::uint32_t i = 0; i < dim; ++i) weights[i] -= step * gradient[i];
  }

 private:
  const RowwiseAdagradOptions options_;
};

}  // namespace
}  // namespace table

Result<std::shared_ptr<const Optimizer>> MakeRowwiseAdagrad(const RowwiseAdagradOptions& options) {
  RETURN_IF_ERROR(table::CheckSettings(
      "rowwise_adagrad",
      {{"learning_rate", options.learning_rate, 0, table::kLargest},
       {"initial_accumulator_value", options.initial_accumulator_value, 0, table::kLargest},
       {"epsilon", options.epsilon, 0, 1}}));
  return std::shared_ptr<const Optimizer>(std::make_shared<table::RowwiseAdagrad>(options));
}

}  // namespace cairn
