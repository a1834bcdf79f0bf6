#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include <cairn/status.h>

#include "storage/fs.h"

namespace cairn {

/// The process's real file system. Lives for ever; may be used from any thread.
///
/// Queues use io_uring where the kernel allows it and CAIRN_NO_IO_URING is not 1, threads
/// otherwise.
Fs* PosixFs();

/// The status for a failed system call, with the mapping that fs.h promises:
/// `open "path": Permission denied`.
Status ErrnoStatus(int error, std::string_view operation, std::string_view path);

/// An open file of PosixFs. Besides the contract of FsFile it remembers the first error of a
/// background write-back: the kernel tells an open file of such an error only once, and whoever
/// asks first (StartWriteback or DropCache) must not swallow it for Sync.
class PosixFile final : public FsFile {
 public:
  /// Takes over `fd`. `offset_align` is 0 for files that are not O_DIRECT.
  PosixFile(int fd, std::string path, std::size_t offset_align)
      : fd_(fd), path_(std::move(path)), offset_align_(offset_align) {}
  ~PosixFile() override;
  PosixFile(const PosixFile&) = delete;
  PosixFile& operator=(const PosixFile&) = delete;

  Result<std::size_t> ReadAt(std::uint64_t offset, std::span<std::byte> into) override;
  Status WriteAt(std::uint64_t offset, std::span<const std::byte> bytes) override;
  Status Sync(std::string_view why) override;
  Status Truncate(std::uint64_t bytes) override;
  Status Allocate(std::uint64_t bytes) override;
  Result<FsStat> Stat() override;
  /// May wait while the disk's queue is full.
  void StartWriteback(std::uint64_t offset, std::uint64_t bytes) override;
  /// Waits until write-back of the range that was started has ended: dirty pages cannot be dropped.
  void DropCache(std::uint64_t offset, std::uint64_t bytes) override;

  int fd() const { return fd_; }
  const std::string& path() const { return path_; }
  /// True when a read that ended at `position` has reached the end of the file for sure: O_DIRECT
  /// stops at odd positions only there, and may not be continued from one.
  bool EndsAt(std::uint64_t position) const {
    return offset_align_ != 0 && position % offset_align_ != 0;
  }
  /// The error of an earlier background write-back, or OK.
  Status WritebackStatus() const;

 private:
  const int fd_;
  const std::string path_;
  const std::size_t offset_align_;
  std::atomic<int> writeback_error_{0};
};

/// A directory, open for a sync.
Result<std::unique_ptr<PosixFile>> OpenDirectory(const std::string& path);

}  // namespace cairn
