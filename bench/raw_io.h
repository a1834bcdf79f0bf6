#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <cairn/status.h>

namespace cairn::bench {

/// What the disk gives to a program that does nothing but move bytes: the baselines. One file,
/// memory that starts at a page boundary.
struct RawOptions {
  std::size_t block = 8u << 20;
  int depth = 8;         // blocks in flight, O_DIRECT only
  bool allocate = true;  // reserve the blocks of a new file first
};

/// Writes a new file (or over an existing one) past the page cache, then fdatasync and fsync of the
/// directory.
Status WriteDirect(const std::string& path, std::span<const std::byte> bytes, bool overwrite,
                   const RawOptions& options = {});
/// Writes through the page cache, then fsync of the file and its directory.
Status WriteBuffered(const std::string& path, std::span<const std::byte> bytes, bool overwrite);

Status ReadDirect(const std::string& path, std::span<std::byte> into,
                  const RawOptions& options = {});
Status ReadBuffered(const std::string& path, std::span<std::byte> into);

/// memcpy of the same bytes by `threads` threads, each its share in one call.
void CopyOnThreads(std::span<const std::byte> from, std::byte* to, int threads);

}  // namespace cairn::bench
