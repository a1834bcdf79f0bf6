#include <cmath>
#include <numbers>

#include <cairn/initializer.h>

#include "base/status_macros.h"
#include "table/random_stream.h"
#include "table/settings.h"

namespace cairn {
namespace table {

double DrawNormal(std::uint64_t stream, std::uint64_t i) {
  const double u = 1 - DrawUnit(stream, 2 * i);  // in (0, 1]
  const double v = DrawUnit(stream, 2 * i + 1);
  return std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v);
}

namespace {

class Normal final : public Initializer {
 public:
  Normal(float mean, float stddev) : mean_(mean), stddev_(stddev) {}
  void Fill(std::uint64_t stream, std::span<float> row) const override {
    for (std::size_t i = 0; i < row.size(); ++i) {
      row[i] = static_cast<float>(mean_ + stddev_ * DrawNormal(stream, i));
    }
  }

 private:
  const double mean_;
  const double stddev_;
};

}  // namespace
}  // namespace table

Result<std::shared_ptr<const Initializer>> MakeNormal(float mean, float stddev) {
  RETURN_IF_ERROR(table::CheckSettings("normal", {{"mean", mean, -table::kLargest, table::kLargest},
                                                  {"stddev", stddev, 0, table::kLargest}}));
  return std::shared_ptr<const Initializer>(std::make_shared<table::Normal>(mean, stddev));
}

}  // namespace cairn
