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

class Adam final : public Optimizer {
 public:
  explicit Adam(const AdamOptions& options) : options_(options) {}

  std::string name() const override { return "adam"; }
  float learning_rate() const override { return options_.learning_rate; }
  std::vector<SlotSpec> Slots(std::uint32_t dim) const override { return AdamSlots(dim); }

  void Apply(float* weights, float* slots, const float* gradient, std::uint32_t dim,
             float learning_rate) const override {
    AdamStep(options_, weights, slots, gradient, dim, learning_rate, [](float w) { return w; });
  }

 private:
  const AdamOptions options_;
};

}  // namespace
}  // namespace table

Result<std::shared_ptr<const Optimizer>> MakeAdam(const AdamOptions& options) {
  RETURN_IF_ERROR(
      table::CheckSettings("adam", {{"learning_rate", options.learning_rate, 0, table::kLargest},
                                    {"beta1", options.beta1, 0, 0.9999999F},
                                    {"beta2", options.beta2, 0, 0.9999999F},
                                    {"epsilon", options.epsilon, 0, 1}}));
  return std::shared_ptr<const Optimizer>(std::make_shared<table::Adam>(options));
}

}  // namespace cairn
