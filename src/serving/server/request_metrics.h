#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include <cairn/serving.h>

namespace cairn::serving {

/// How long requests of one kind took: counts by upper bounds of time. Any thread.
class LatencyHistogram {
 public:
  void Observe(double seconds);
  void CountError() { errors_.fetch_add(1, std::memory_order_relaxed); }
  /// In Prometheus's text format; `name` without the unit, `label` as `kind="predict"`.
  void Append(std::string_view name, std::string_view label, std::string* out) const;
  std::uint64_t errors() const { return errors_.load(std::memory_order_relaxed); }

  static constexpr std::array<double, 14> kBounds = {5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3,
                                                     1e-2, 2e-2, 5e-2, 0.1,  0.2,  0.5,  1};

 private:
  std::array<std::atomic<std::uint64_t>, kBounds.size() + 1> counts_{};
  std::atomic<std::uint64_t> nanos_{0};
  std::atomic<std::uint64_t> errors_{0};
};

/// How long the newest checkpoint has been there without being served; 0 when it is the one.
/// `now`: nanoseconds since 1970.
double LagSeconds(const ModelStats& stats, const VersionInfo& served, std::int64_t now);

/// The whole page `/metrics`. `now`: nanoseconds since 1970, for the lag.
std::string MetricsPage(const Model& model, std::int64_t now, const LatencyHistogram& predict,
                        const LatencyHistogram& lookup);

}  // namespace cairn::serving
