#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "catalog/metrics.h"

namespace cairn {

std::vector<SeriesPoint> Downsample(std::vector<SeriesPoint> points, std::uint64_t max_points) {
  if (max_points == 0 || points.size() <= std::max<std::uint64_t>(max_points, 4)) return points;
  max_points = std::max<std::uint64_t>(max_points, 4);
  // The first and the last, and up to two of each stretch: three where a value is not finite, so
  // such stretches are paid for by making all of them longer.
  const auto thin = [&](std::size_t stretches) {
    std::vector<SeriesPoint> kept;
    const std::size_t inner = points.size() - 2;
    kept.push_back(points.front());
    for (std::size_t s = 0; s < stretches; ++s) {
      const std::size_t begin = 1 + inner * s / stretches;
      const std::size_t end = 1 + inner * (s + 1) / stretches;
      std::optional<std::size_t> least;
      std::optional<std::size_t> greatest;
      std::optional<std::size_t> odd;
      for (std::size_t i = begin; i < end; ++i) {
        if (!std::isfinite(points[i].value)) {
          if (!odd) odd = i;
          continue;
        }
        if (!least || points[i].value < points[*least].value) least = i;
        if (!greatest || points[i].value > points[*greatest].value) greatest = i;
      }
      std::vector<std::size_t> chosen;
      for (const auto& at : {least, greatest, odd}) {
        if (at) chosen.push_back(*at);
      }
      std::sort(chosen.begin(), chosen.end());
      chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
      for (const std::size_t at : chosen) kept.push_back(points[at]);
    }
    kept.push_back(points.back());
    return kept;
  };
  std::vector<SeriesPoint> kept = thin((max_points - 2) / 2);
  if (kept.size() > max_points) kept = thin(std::max<std::uint64_t>((max_points - 2) / 3, 1));
  // Only possible with one stretch of all three kinds and four points asked for.
  if (kept.size() > max_points) kept.erase(kept.begin() + 1);
  return kept;
}

}  // namespace cairn
