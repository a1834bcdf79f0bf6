#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/thread_annotations.h"
#include "table/row_layout.h"
#include "table/slab.h"

namespace cairn::table {

/// Memory for lists of rows: blocks that go from one list to the next. It is given back all at
/// once, so there is as much as all lists together ever held. Any thread.
class RowListPool {
 public:
  /// Small lists take little, long ones are few blocks: each of a list is twice the one before.
  static constexpr std::uint32_t kSizes = 8;
  struct Block {
    Block* next = nullptr;
    std::uint32_t size = 0;  // as a power of two, in cache lines
    std::uint32_t filled = 0;

    std::uint32_t room() const { return (8u << size) - 2; }
    RowHeader** rows() { return reinterpret_cast<RowHeader**>(this + 1); }
    RowHeader* const* rows() const { return reinterpret_cast<RowHeader* const*>(this + 1); }
  };
  static_assert(sizeof(Block) == 2 * sizeof(RowHeader*));

  /// Throws std::bad_alloc.
  Block* Take(std::uint32_t size) EXCLUDES(mu_);
  /// This block and those after it.
  void Give(Block* first) EXCLUDES(mu_);
  /// When no list has a block.
  void Reset() EXCLUDES(mu_);
  std::uint64_t bytes() const { return slab_.bytes(); }

 private:
  Mutex mu_;
  std::array<Block*, kSizes> free_ GUARDED_BY(mu_) = {};
  Slab slab_;
};

/// Rows in the order in which they were added. Adding never moves what is there, and a whole list
/// is added to another in no time: both happen under locks that updates wait for. For one thread at
/// a time.
class RowList {
 public:
  explicit RowList(RowListPool* pool) : pool_(pool) {}
  ~RowList() { Clear(); }
  RowList(const RowList&) = delete;
  RowList& operator=(const RowList&) = delete;

  /// Before Add. Throws std::bad_alloc.
  void MakeRoom() {
    if (next_ == end_) Grow();
  }
  void Add(RowHeader* row) { *next_++ = row; }
  /// All rows of another list, which is empty then.
  void TakeAll(RowList* other);
  void Swap(RowList* other);
  void Clear();

  std::size_t size() const {
    return before_last_ + (last_ == nullptr ? 0 : static_cast<std::size_t>(next_ - last_->rows()));
  }
  std::vector<RowHeader*> Rows() const;
  /// Other rows, at most as many as there are.
  void Replace(std::span<RowHeader* const> rows);
  template <typename Predicate>
  void RemoveIf(const Predicate& remove);

 private:
  using Block = RowListPool::Block;
  void Grow();
  void EndBlock();
  /// Makes `last` the last block, with `filled` rows in it and `before` in those before it.
  void EndWith(Block* last, std::size_t filled, std::size_t before);

  // First: with what stands before a list they share a cache line.
  RowHeader** next_ = nullptr;
  RowHeader** end_ = nullptr;
  Block* first_ = nullptr;
  Block* last_ = nullptr;
  std::size_t before_last_ = 0;  // rows of the other blocks
  RowListPool* pool_;
};

template <typename Predicate>
void RowList::RemoveIf(const Predicate& remove) {
  if (first_ == nullptr) return;
  EndBlock();
  Block* to = first_;
  std::uint32_t filled = 0;
  std::size_t before = 0;
  for (const Block* from = first_; from != nullptr; from = from->next) {
    const std::uint32_t rows = from->filled;  // `to` may be the same block, never one behind it
    for (std::uint32_t i = 0; i < rows; ++i) {
      RowHeader* const row = from->rows()[i];
      if (remove(row)) continue;
      if (filled == to->room()) {
        to->filled = std::exchange(filled, 0);
        before += to->filled;
        to = to->next;
      }
      to->rows()[filled++] = row;
    }
  }
  EndWith(to, filled, before);
}

}  // namespace cairn::table
