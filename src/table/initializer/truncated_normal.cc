#include <cmath>

#include <cairn/initializer.h>

#include "base/status_macros.h"
#include "table/random_stream.h"
#include "table/settings.h"

namespace cairn {
namespace table {
namespace {

class TruncatedNormal final : public Initializer {
 public:
  TruncatedNormal(float mean, float stddev) : mean_(mean), stddev_(stddev) {}
  void Fill(std::uint64_t stream, std::span<float> row) const override {
    for (std::size_t i = 0; i < row.size(); ++i) {
      // Each element has a stream of its own, to draw from until one lies inside.
      const std::uint64_t own = DrawBits(stream, i);
      double draw = 3;
      for (std::uint64_t n = 0; std::fabs(draw) > 2; ++n) draw = DrawNormal(own, n);
      row[i] = static_cast<float>(mean_ + stddev_ * draw);
    }
  }

 private:
  const double mean_;
  const double stddev_;
};

}  // namespace
}  // namespace table

Result<std::shared_ptr<const Initializer>> MakeTruncatedNormal(float mean, float stddev) {
  RETURN_IF_ERROR(table::CheckSettings(
      "truncated_normal",
      {{"mean", mean, -table::kLargest, table::kLargest}, {"stddev", stddev, 0, table::kLargest}}));
  return std::shared_ptr<const Initializer>(std::make_shared<table::TruncatedNormal>(mean, stddev));
}

}  // namespace cairn
