#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/thread_annotations.h"

namespace cairn::table {

/// Memory for the chunks of a table's shards, in slabs that grow from 64 KiB to 32 MiB. Large slabs
/// are on huge pages: rows are read in random order, and a page walk costs as much as the row.
/// Chunks are given back all at once. Any thread.
class Slab {
 public:
  Slab() = default;
  ~Slab() { Reset(); }
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;

  /// Zeroed bytes, aligned to 64; nullptr without memory.
  std::byte* Allocate(std::size_t bytes) EXCLUDES(mu_);
  /// Frees everything that was allocated.
  void Reset() EXCLUDES(mu_);
  std::uint64_t bytes() const EXCLUDES(mu_);

 private:
  struct Mapping {
    std::byte* base;
    std::size_t bytes;
  };
  bool Grow(std::size_t at_least) REQUIRES(mu_);

  mutable Mutex mu_;
  std::vector<Mapping> mappings_ GUARDED_BY(mu_);
  std::byte* next_ GUARDED_BY(mu_) = nullptr;
  std::size_t left_ GUARDED_BY(mu_) = 0;
  std::uint64_t mapped_ GUARDED_BY(mu_) = 0;
};

}  // namespace cairn::table
