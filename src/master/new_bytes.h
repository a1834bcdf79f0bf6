#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/thread_annotations.h"

namespace cairn::master {

/// How many bytes of a checkpoint no earlier one of its repository has: what it cost to keep. Files
/// are compared by their checksums, which is how saves find out what they can share. A committed
/// checkpoint does not change, so that what was found once is known until the master ends. May be
/// called from any thread; one that asks for something new waits for the storage.
class NewBytes {
 public:
  explicit NewBytes(Clock* clock) : clock_(clock) {}

  /// Nothing where nobody knows: the repository cannot be read, or has no such checkpoint. One that
  /// was not found is looked for again after some seconds at the earliest.
  std::optional<std::uint64_t> Of(const std::string& repository, const std::string& id);

 private:
  Clock* const clock_;
  Mutex mu_;
  std::map<std::string, std::uint64_t> known_ GUARDED_BY(mu_);     // by checkpoint
  std::map<std::string, Clock::Duration> looked_ GUARDED_BY(mu_);  // by repository: when
};

}  // namespace cairn::master
