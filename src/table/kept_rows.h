#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/thread_annotations.h"
#include "table/row_layout.h"
#include "table/side_buffer.h"
#include "table/slab.h"

namespace cairn::table {

/// Memory for kept rows, in equal blocks that go from one shard to the next. Any thread.
class KeptRowPool {
 public:
  static constexpr std::uint32_t kBlockRows = 16;

  explicit KeptRowPool(std::size_t stride) : stride_(stride) {}

  std::size_t stride() const { return stride_; }
  /// Throws std::bad_alloc.
  std::byte* Take() EXCLUDES(mu_);
  void Give(const std::vector<std::byte*>& blocks) EXCLUDES(mu_);
  /// Keeps the memory for the next cut (Slab::Rewind), unless some of it is in use.
  void Trim() EXCLUDES(mu_);
  /// Bytes that no row is kept in.
  std::uint64_t spare_bytes() const EXCLUDES(mu_);

 private:
  const std::size_t stride_;
  mutable Mutex mu_;
  std::size_t in_use_ GUARDED_BY(mu_) = 0;
  std::vector<std::byte*> free_ GUARDED_BY(mu_);
  Slab slab_;
};

/// Rows of one shard as they were at a cut that is read once: whole records, in the order in which
/// they were changed since. Guarded by the shard's lock until they are taken over. Moved, not
/// copied; the destructor gives the memory back.
class KeptRows {
 public:
  KeptRows() = default;
  KeptRows(KeptRowPool* pool, SideBuffer* side) : pool_(pool), side_(side) {}
  KeptRows(KeptRows&& other) noexcept { *this = std::move(other); }
  KeptRows& operator=(KeptRows&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(side_, other.side_);
    std::swap(rows_, other.rows_);
    blocks_.swap(other.blocks_);
    return *this;
  }
  ~KeptRows() { Clear(); }

  /// Keeps the row as it is. False: the side buffer is full. Throws std::bad_alloc.
  bool Keep(const RowHeader* row);
  std::size_t size() const { return rows_; }
  const RowHeader* At(std::size_t number) const {
    return reinterpret_cast<const RowHeader*>(blocks_[number / KeptRowPool::kBlockRows] +
                                              number % KeptRowPool::kBlockRows * pool_->stride());
  }
  void Clear();

 private:
  KeptRowPool* pool_ = nullptr;
  SideBuffer* side_ = nullptr;
  std::size_t rows_ = 0;
  std::vector<std::byte*> blocks_;
};

}  // namespace cairn::table
