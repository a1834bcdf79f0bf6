#include <memory>
#include <string>
#include <vector>

#include <cairn/optimizer.h>

#include "base/status_macros.h"
#include "table/settings.h"

namespace cairn {
namespace table {
namespace {

class Sgd final : public Optimizer {
 public:
  explicit Sgd(const SgdOptions& options) : options_(options) {}

  std::string name() const override { return "sgd"; }
  float learning_rate() const override { return options_.learning_rate; }
  std::vector<SlotSpec> Slots(std::uint32_t /*dim*/) const override { return {}; }

  void Apply(float* weights, float* /*slots*/, const float* gradient, std::uint32_t dim,
             float learning_rate) const override {
    for (std::uint32_t i = 0; i < dim; ++i) weights[i] -= learning_rate * gradient[i];
  }

 private:
  const SgdOptions options_;
};

}  // namespace
}  // namespace table

Result<std::shared_ptr<const Optimizer>> MakeSgd(const SgdOptions& options) {
  RETURN_IF_ERROR(
      table::CheckSettings("sgd", {{"learning_rate", options.learning_rate, 0, table::kLargest}}));
  return std::shared_ptr<const Optimizer>(std::make_shared<table::Sgd>(options));
}

}  // namespace cairn
