#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <cairn/status.h>
#include <cairn/value.h>

#include "base/clock.h"
#include "base/thread_annotations.h"
#include "master/task_threads.h"

namespace cairn {
struct VerifyReport;
}

namespace cairn::master {

/// Checkpoints that are compared with their checksums in the background, two at a time. In memory
/// alone. May be called from any thread.
class Verifications {
 public:
  /// `on_change`: how far one is or what it found changed (as Get says it); on any thread, not more
  /// than four times a second for each.
  using OnChange = std::function<void(const std::string& checkpoint)>;
  explicit Verifications(Clock* clock, OnChange on_change = nullptr)
      : clock_(clock), on_change_(std::move(on_change)), threads_(2, 1000) {}
  ~Verifications();

  /// As Verification of the contract; `state` NONE when nobody asked.
  Value Get(const std::string& checkpoint) const;
  /// Begins, unless it is under way. Unavailable: too many.
  Status Begin(const std::string& checkpoint, const std::string& path);

 private:
  struct Entry {
    std::string state = "RUNNING";
    std::atomic<std::uint64_t> done = 0;
    std::atomic<std::uint64_t> total = 0;
    std::vector<std::string> problems;
    std::int64_t time = 0;
  };
  void Run(const std::string& checkpoint, const std::string& path, Entry* entry);
  void Finish(const Result<VerifyReport>& report, Entry* entry) EXCLUDES(mu_);

  Clock* const clock_;
  const OnChange on_change_;
  mutable Mutex mu_;
  std::atomic<bool> stopping_ = false;
  std::map<std::string, std::shared_ptr<Entry>> entries_ GUARDED_BY(mu_);  // shared: a task has it
  TaskThreads threads_;
};

}  // namespace cairn::master
