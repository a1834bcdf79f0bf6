#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/status.h>

#include "base/clock.h"
#include "storage/fs.h"

namespace cairn::cli {

/// A hidden directory for measurements, removed with everything in it.
class ScratchDirectory {
 public:
  ScratchDirectory() = default;
  ~ScratchDirectory();
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;

  /// Inside `directory`; `purpose` is part of its name.
  Status Make(const std::string& directory, std::string_view purpose);
  std::string operator/(std::string_view name) const;

 private:
  std::string path_;
};

/// Moves a file's bytes as fast as the disk takes them, with several parts in flight as the engine
/// does, and nothing else: what a checkpoint is compared with. Ctrl-C ends it with Cancelled.
class RawFiles {
 public:
  static constexpr std::size_t kPart = 8u << 20;
  static constexpr std::size_t kAlign = 4096;

  explicit RawFiles(Clock* clock);

  /// Bytes per second until they are durable. fresh: a new file, otherwise one that is there.
  Result<double> Write(const std::string& path, std::uint64_t bytes, bool direct, bool fresh);
  /// Bytes per second of a file that is not cached.
  Result<double> Read(const std::string& path, std::uint64_t bytes, bool direct);

 private:
  struct FreeAligned {
    void operator()(std::byte* p) const;
  };
  double Rate(std::uint64_t bytes, Clock::Duration begun) const;
  Status Move(FsFile* file, std::uint64_t bytes, bool write, bool direct);

  Clock* const clock_;
  std::unique_ptr<std::byte, FreeAligned> memory_;
};

/// Of no values: 0.
double Median(std::vector<double> values);

}  // namespace cairn::cli
