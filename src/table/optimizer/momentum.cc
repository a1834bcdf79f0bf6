#include <memory>
#include <string>
#include <vector>

#include <cairn/optimizer.h>

#include "base/status_macros.h"
#include "table/settings.h"

namespace cairn {
namespace table {
namespace {

class Momentum final : public Optimizer {
 public:
  explicit Momentum(const MomentumOptions& options) : options_(options) {}

  std::string name() const override { return "momentum"; }
  float learning_rate() const override { return options_.learning_rate; }
  std::vector<SlotSpec> Slots(std::uint32_t dim) const override {
    return {{.name = "momentum", .width = dim, .initial = 0}};
  }

  // m ← μ m + g;  w ← w − η m   (Nesterov: w ← w − η (g + μ m))
  void Apply(float* weights, float* slots, const float* gradient, std::uint32_t dim,
             float learning_rate) const override {
    const float decay = options_.momentum;
    for (std::uint32_t i = 0; i < dim; ++i) {
      slots[i] = decay * slots[i] + gradient[i];
      const float direction = options_.nesterov ? gradient[i] + decay * slots[i] : slots[i];
      weights[i] -= learning_rate * direction;
    }
  }

 private:
  const MomentumOptions options_;
};

}  // namespace
}  // namespace table

Result<std::shared_ptr<const Optimizer>> MakeMomentum(const MomentumOptions& options) {
  RETURN_IF_ERROR(table::CheckSettings(
      "momentum", {{"learning_rate", options.learning_rate, 0, table::kLargest},
                   {"momentum", options.momentum, 0, 1}}));
  return std::shared_ptr<const Optimizer>(std::make_shared<table::Momentum>(options));
}

}  // namespace cairn
