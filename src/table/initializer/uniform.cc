#include <cairn/initializer.h>

#include "base/status_macros.h"
#include "table/random_stream.h"
#include "table/settings.h"

namespace cairn {
namespace table {
namespace {

class Uniform final : public Initializer {
 public:
  Uniform(float low, float high) : low_(low), high_(high) {}
  void Fill(std::uint64_t stream, std::span<float> row) const override {
    const double low = static_cast<double>(low_);
    const double width = static_cast<double>(high_) - low;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const auto value = static_cast<float>(low + width * DrawUnit(stream, i));
      row[i] = value < high_ ? value : low_;  // rounding may reach the end, which is excluded
    }
  }

 private:
  const float low_;
  const float high_;
};

}  // namespace
}  // namespace table

Result<std::shared_ptr<const Initializer>> MakeUniform(float low, float high) {
  RETURN_IF_ERROR(table::CheckSettings("uniform", {{"low", low, -table::kLargest, table::kLargest},
                                                   {"high", high, low, table::kLargest}}));
  return std::shared_ptr<const Initializer>(std::make_shared<table::Uniform>(low, high));
}

}  // namespace cairn
