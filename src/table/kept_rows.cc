#include "table/kept_rows.h"

#include <cstring>
#include <new>

namespace cairn::table {

std::byte* KeptRowPool::Take() {
  const MutexLock lock(&mu_);
  std::byte* block = nullptr;
  if (!free_.empty()) {
    block = free_.back();
    free_.pop_back();
  } else {
    // Room for all, so that giving back cannot fail.
    if (free_.capacity() <= in_use_) free_.reserve(2 * in_use_ + 64);
    block = slab_.Allocate(kBlockRows * stride_);
    if (block == nullptr) throw std::bad_alloc();
  }
  ++in_use_;
  return block;
}

void KeptRowPool::Give(const std::vector<std::byte*>& blocks) {
  const MutexLock lock(&mu_);
  free_.insert(free_.end(), blocks.begin(), blocks.end());
  in_use_ -= blocks.size();
}

void KeptRowPool::Trim() {
  const MutexLock lock(&mu_);
  if (in_use_ > 0) return;
  std::vector<std::byte*>().swap(free_);
  slab_.Rewind();
}

std::uint64_t KeptRowPool::spare_bytes() const {
  const MutexLock lock(&mu_);
  return slab_.bytes() - in_use_ * kBlockRows * stride_;
}

bool KeptRows::Keep(const RowHeader* row) {
  const std::size_t stride = pool_->stride();
  if (!side_->Take(stride)) return false;
  const std::size_t at = rows_ % KeptRowPool::kBlockRows;
  if (at == 0) {
    try {
      if (blocks_.size() == blocks_.capacity()) blocks_.reserve(2 * blocks_.size() + 4);
      blocks_.push_back(pool_->Take());
    } catch (const std::bad_alloc&) {
      side_->Release(stride);
      throw;
    }
  }
  std::memcpy(blocks_.back() + at * stride, row, stride);
  ++rows_;
  return true;
}

void KeptRows::Clear() {
  if (rows_ == 0) return;
  pool_->Give(blocks_);
  blocks_.clear();
  side_->Release(std::exchange(rows_, 0) * pool_->stride());
}

}  // namespace cairn::table
