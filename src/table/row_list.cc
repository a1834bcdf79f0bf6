#include "table/row_list.h"

#include <algorithm>
#include <new>
#include <utility>

namespace cairn::table {

RowListPool::Block* RowListPool::Take(std::uint32_t size) {
  const MutexLock lock(&mu_);
  Block* block = free_[size];
  if (block != nullptr) {
    free_[size] = block->next;
  } else {
    std::byte* memory = slab_.Allocate(std::size_t{64} << size);
    if (memory == nullptr) throw std::bad_alloc();
    block = reinterpret_cast<Block*>(memory);
  }
  *block = {.size = size};
  return block;
}

void RowListPool::Give(Block* first) {
  const MutexLock lock(&mu_);
  while (first != nullptr) {
    Block* const block = std::exchange(first, first->next);
    block->next = std::exchange(free_[block->size], block);
  }
}

void RowListPool::Reset() {
  const MutexLock lock(&mu_);
  free_ = {};
  slab_.Reset();
}

void RowList::EndBlock() {
  if (last_ == nullptr) return;
  last_->filled = static_cast<std::uint32_t>(next_ - last_->rows());
  before_last_ += last_->filled;
}

void RowList::Grow() {
  const std::uint32_t size =
      last_ == nullptr ? 0 : std::min(last_->size + 1, RowListPool::kSizes - 1);
  Block* const block = pool_->Take(size);
  EndBlock();
  (last_ == nullptr ? first_ : last_->next) = block;
  last_ = block;
  next_ = block->rows();
  end_ = next_ + block->room();
}

void RowList::TakeAll(RowList* other) {
  if (other->first_ == nullptr) return;
  EndBlock();
  before_last_ += std::exchange(other->before_last_, 0);
  Block* const first = std::exchange(other->first_, nullptr);
  (last_ == nullptr ? first_ : last_->next) = first;
  last_ = std::exchange(other->last_, nullptr);
  next_ = std::exchange(other->next_, nullptr);
  end_ = std::exchange(other->end_, nullptr);
}

void RowList::Swap(RowList* other) {
  std::swap(next_, other->next_);
  std::swap(end_, other->end_);
  std::swap(first_, other->first_);
  std::swap(last_, other->last_);
  std::swap(before_last_, other->before_last_);
}

void RowList::Clear() {
  if (first_ == nullptr) return;
  pool_->Give(first_);
  next_ = nullptr;
  end_ = nullptr;
  first_ = nullptr;
  last_ = nullptr;
  before_last_ = 0;
}

std::vector<RowHeader*> RowList::Rows() const {
  std::vector<RowHeader*> rows;
  rows.reserve(size());
  for (const Block* block = first_; block != nullptr; block = block->next) {
    RowHeader* const* begin = block->rows();
    rows.insert(rows.end(), begin, block == last_ ? next_ : begin + block->filled);
  }
  return rows;
}

void RowList::EndWith(Block* last, std::size_t filled, std::size_t before) {
  if (filled + before == 0) return Clear();
  pool_->Give(std::exchange(last->next, nullptr));
  last_ = last;
  next_ = last->rows() + filled;
  end_ = last->rows() + last->room();
  before_last_ = before;
}

void RowList::Replace(std::span<RowHeader* const> rows) {
  if (rows.empty()) return Clear();
  std::size_t before = 0;
  Block* block = first_;
  for (; rows.size() > block->room(); block = block->next) {
    block->filled = block->room();
    std::copy_n(rows.begin(), block->filled, block->rows());
    before += block->filled;
    rows = rows.subspan(block->filled);
  }
  std::copy(rows.begin(), rows.end(), block->rows());
  EndWith(block, rows.size(), before);
}

}  // namespace cairn::table
