#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "base/thread_annotations.h"

namespace cairn::crash {

/// What the engine has promised at an instant.
struct Promise {
  std::map<int, std::int64_t> begun;  // every save that was begun: serial → step
  std::vector<int> acknowledged;      // in order
  std::set<int> required;             // acknowledged, and retention may not have removed them
  std::set<int> deleted;              // Delete returned OK: they may not come back
  std::map<int, bool> pinned;         // the last pin or unpin that returned, none under way
  std::map<int, double> scores;       // AddMetrics returned
};

/// Keeps the promises of the engine, outside of it. Thread-safe.
class Oracle {
 public:
  explicit Oracle(std::optional<std::uint64_t> keep_last) : keep_last_(keep_last) {}

  /// The serial number of a new save.
  int Begin(std::int64_t step) EXCLUDES(mu_);
  void Acknowledge(int serial) EXCLUDES(mu_);
  /// Sealed by an opening that returned: they count like acknowledged ones from now on.
  void Adopt(const std::set<int>& serials) EXCLUDES(mu_);
  void Deleting(int serial) EXCLUDES(mu_);
  void Deleted(int serial) EXCLUDES(mu_);
  void Pinning(int serial) EXCLUDES(mu_);
  void Pinned(int serial, bool pinned) EXCLUDES(mu_);
  void Scoring() EXCLUDES(mu_);  // applies retention
  void Scored(int serial, double score) EXCLUDES(mu_);
  Promise Now() const EXCLUDES(mu_);

 private:
  /// What retention may remove now; for ever.
  void Release() REQUIRES(mu_);

  const std::optional<std::uint64_t> keep_last_;
  mutable Mutex mu_;
  Promise promise_ GUARDED_BY(mu_);
  std::set<int> released_ GUARDED_BY(mu_);  // retention or a Delete may have removed them
};

}  // namespace cairn::crash
