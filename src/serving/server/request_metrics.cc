#include "serving/server/request_metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace cairn::serving {
namespace {

void Gauge(std::string_view name, std::string_view help, std::string_view type, double value,
           std::string* out) {
  fmt::format_to(std::back_inserter(*out), "# HELP {0} {1}\n# TYPE {0} {2}\n{0} {3}\n", name, help,
                 type, value);
}

}  // namespace

void LatencyHistogram::Observe(double seconds) {
  const auto bound = std::lower_bound(kBounds.begin(), kBounds.end(), seconds);
  counts_[static_cast<std::size_t>(bound - kBounds.begin())].fetch_add(1,
                                                                       std::memory_order_relaxed);
  nanos_.fetch_add(static_cast<std::uint64_t>(std::max(0.0, seconds) * 1e9),
                   std::memory_order_relaxed);
}

void LatencyHistogram::Append(std::string_view name, std::string_view label,
                              std::string* out) const {
  auto to = std::back_inserter(*out);
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    sum += counts_[i].load(std::memory_order_relaxed);
    const std::string bound = i < kBounds.size() ? fmt::format("{}", kBounds[i]) : "+Inf";
    fmt::format_to(to, "{}_seconds_bucket{{{},le=\"{}\"}} {}\n", name, label, bound, sum);
  }
  fmt::format_to(to, "{}_seconds_sum{{{}}} {}\n", name, label,
                 static_cast<double>(nanos_.load(std::memory_order_relaxed)) / 1e9);
  fmt::format_to(to, "{}_seconds_count{{{}}} {}\n", name, label, sum);
}

double LagSeconds(const ModelStats& stats, const VersionInfo& served, std::int64_t now) {
  // Which is newer is not decided by clocks: those of two machines differ, and the writer's may be
  // set back.
  if (served.committed_nanos == stats.newest_committed_nanos) return 0;
  return static_cast<double>(std::max<std::int64_t>(0, now - stats.newest_committed_nanos)) / 1e9;
}

std::string MetricsPage(const Model& model, std::int64_t now, const LatencyHistogram& predict,
                        const LatencyHistogram& lookup) {
  const ModelStats stats = model.stats();
  const auto version = model.Version();
  std::string out;
  Gauge("cairn_serving_ready", "Whether a version is served", "gauge", version.ok() ? 1 : 0, &out);
  if (version.ok()) {
    Gauge("cairn_serving_version_step", "Step of the version that is served", "gauge",
          static_cast<double>(version->step), &out);
    Gauge("cairn_serving_rows", "Rows of all tables", "gauge", static_cast<double>(version->rows),
          &out);
    const std::int64_t behind = std::max<std::int64_t>(0, stats.newest_step - version->step);
    Gauge("cairn_serving_lag_steps", "Steps behind the newest committed checkpoint", "gauge",
          static_cast<double>(behind), &out);
    Gauge("cairn_serving_lag_seconds", "Age of the newest checkpoint that is not served yet",
          "gauge", LagSeconds(stats, *version, now), &out);
    Gauge("cairn_serving_age_seconds", "Since the version that is served was committed", "gauge",
          static_cast<double>(std::max<std::int64_t>(0, now - version->committed_nanos)) / 1e9,
          &out);
  }
  Gauge("cairn_serving_held", "Whether a version is held by rollback or pin", "gauge",
        model.held() ? 1 : 0, &out);
  Gauge("cairn_serving_repository_reachable", "At the last look", "gauge", stats.reachable ? 1 : 0,
        &out);
  Gauge("cairn_serving_updates_total", "Updates that were applied", "counter",
        static_cast<double>(stats.updates), &out);
  Gauge("cairn_serving_refused_total", "Updates that were refused", "counter",
        static_cast<double>(stats.refused), &out);
  Gauge("cairn_serving_rows_applied_total", "Rows that updates have read", "counter",
        static_cast<double>(stats.rows_applied), &out);
  Gauge("cairn_serving_update_seconds_total", "Time that updates took", "counter",
        stats.update_seconds, &out);
  Gauge("cairn_serving_last_update_seconds", "Time that the last update took", "gauge",
        stats.last_update_seconds, &out);
  Gauge("cairn_serving_table_bytes", "Memory of rows and their index", "gauge",
        static_cast<double>(stats.table_bytes), &out);
  out +=
      "# HELP cairn_serving_request_seconds Time of requests\n"
      "# TYPE cairn_serving_request_seconds histogram\n";
  predict.Append("cairn_serving_request", "kind=\"predict\"", &out);
  lookup.Append("cairn_serving_request", "kind=\"lookup\"", &out);
  out +=
      "# HELP cairn_serving_request_errors_total Requests that were refused or failed\n"
      "# TYPE cairn_serving_request_errors_total counter\n";
  fmt::format_to(std::back_inserter(out),
                 "cairn_serving_request_errors_total{{kind=\"predict\"}} {}\n"
                 "cairn_serving_request_errors_total{{kind=\"lookup\"}} {}\n",
                 predict.errors(), lookup.errors());
  return out;
}

}  // namespace cairn::serving
