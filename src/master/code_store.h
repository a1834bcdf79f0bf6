#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include <cairn/status.h>

#include "base/clock.h"
#include "master/code_archive.h"

namespace cairn::master {

/// Archives of code, by the SHA-256 of their bytes, in a directory. May be called from any thread.
class CodeStore {
 public:
  explicit CodeStore(std::string directory, CodeLimits limits = {})
      : directory_(std::move(directory)), limits_(limits) {}

  struct Stored {
    std::string digest;
    std::uint64_t bytes = 0;
    std::uint64_t files = 0;
  };
  /// Looks through the archive before it is kept; durable when it returns. As VisitCode.
  Result<Stored> Put(std::string_view archive) const;
  /// NotFound, also for what is no digest.
  Result<std::string> Get(std::string_view digest) const;
  /// Unpacks into `directory` unless it is there already.
  Status Extract(std::string_view digest, const std::string& directory) const;
  /// Removes what is not in `used` and older than `age`; and what a crash left.
  Status Sweep(const std::set<std::string>& used, std::chrono::nanoseconds age, Clock* clock) const;

  const CodeLimits& limits() const { return limits_; }

 private:
  std::string PathOf(std::string_view digest) const;

  const std::string directory_;
  const CodeLimits limits_;
};

/// 64 lower-case hex digits.
bool IsDigest(std::string_view text);

}  // namespace cairn::master
