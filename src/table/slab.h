#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/thread_annotations.h"

namespace cairn::table {

/// Memory for the chunks of a table's shards, in slabs that grow from 64 KiB to 32 MiB. Large slabs
/// are on huge pages: rows are read in random order, and a page walk costs as much as the row.
/// Chunks are given back all at once: to the system, or to be allocated again. Any thread.
class Slab {
 public:
  Slab() = default;
  ~Slab() { Reset(); }
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;

  /// Bytes aligned to 64, zeroed unless the slab was rewound; nullptr without memory.
  std::byte* Allocate(std::size_t bytes) EXCLUDES(mu_);
  /// Frees everything that was allocated, but keeps the memory for what comes next, of what was not
  /// needed this time half: new pages cost more than what is written to them. When the system runs
  /// short meanwhile it takes them.
  void Rewind() EXCLUDES(mu_);
  /// Frees everything that was allocated.
  void Reset() EXCLUDES(mu_);
  std::uint64_t bytes() const EXCLUDES(mu_);

 private:
  struct Mapping {
    std::byte* base;
    std::size_t bytes;
  };
  bool Grow(std::size_t at_least) REQUIRES(mu_);
  void Use(std::size_t mapping) REQUIRES(mu_);

  mutable Mutex mu_;
  std::vector<Mapping> mappings_ GUARDED_BY(mu_);
  std::size_t used_ GUARDED_BY(mu_) = 0;  // mappings; what is left belongs to the last of them
  std::byte* next_ GUARDED_BY(mu_) = nullptr;
  std::size_t left_ GUARDED_BY(mu_) = 0;
  std::uint64_t mapped_ GUARDED_BY(mu_) = 0;
};

}  // namespace cairn::table
