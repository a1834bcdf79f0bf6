#include "table/row_store.h"

#include <algorithm>
#include <array>
#include <bit>
#include <new>

namespace cairn::table {
namespace {

// Chunks grow with the shard, so that small tables stay small and the rest of the last chunk is
// little against the others.
constexpr std::size_t kFirstChunkBytes = 512;
constexpr std::size_t kLargestChunkBytes = 32u << 10;

template <typename T>
void Free(std::vector<T>* list) {
  std::vector<T>().swap(*list);
}

/// Digit by digit: for thousands of addresses several times as fast as comparing them.
void SortByAddress(std::vector<RowHeader*>* list) {
  constexpr std::size_t kFew = 256;
  constexpr unsigned kDigit = 11;
  if (list->size() < kFew) return std::sort(list->begin(), list->end());
  const auto address = [](const RowHeader* row) { return reinterpret_cast<std::uintptr_t>(row); };
  std::uintptr_t least = address(list->front());
  std::uintptr_t most = least;
  bool sorted = true;
  std::uintptr_t before = least;
  for (const RowHeader* row : *list) {
    const std::uintptr_t at = address(row);
    sorted = sorted && at >= before;
    before = at;
    least = std::min(least, at);
    most = std::max(most, at);
  }
  if (sorted) return;
  constexpr unsigned kAligned = std::countr_zero(alignof(RowHeader));
  const int bits = std::bit_width((most - least) >> kAligned);
  std::vector<RowHeader*> other(list->size());
  for (int from = 0; from < bits; from += kDigit) {
    const auto digit = [&](const RowHeader* row) {
      return ((address(row) - least) >> kAligned >> from) & ((1u << kDigit) - 1);
    };
    std::array<std::uint32_t, 1u << kDigit> ends{};
    for (const RowHeader* row : *list) ++ends[digit(row)];
    std::uint32_t sum = 0;
    for (std::uint32_t& end : ends) sum += std::exchange(end, sum);
    for (RowHeader* row : *list) other[ends[digit(row)]++] = row;
    list->swap(other);
  }
}

/// Puts a list in order, each row once. Returns its rows.
std::vector<RowHeader*> SortDistinct(RowList* list) {
  std::vector<RowHeader*> rows = list->Rows();
  SortByAddress(&rows);
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  list->Replace(rows);
  return rows;
}

bool Alive(const RowHeader* row) { return row->frequency != kDeadRow; }

}  // namespace

RowHeader* RowStore::TakePlace() {
  if (!free_.empty()) {
    RowHeader* row = free_.back();
    free_.pop_back();
    return row;
  }
  if (chunks_.empty() || used_in_last_ == chunks_.back().rows) {
    const std::size_t stride = layout_->stride();
    const std::size_t bytes =
        std::clamp<std::size_t>(capacity_ * stride / 8, kFirstChunkBytes, kLargestChunkBytes);
    const auto rows = static_cast<std::uint32_t>(std::max<std::size_t>(bytes / stride, 1));
    chunks_.reserve(chunks_.size() + 1);
    std::byte* base = slab_->Allocate(rows * stride);
    if (base == nullptr) throw std::bad_alloc();
    chunks_.push_back({base, rows});
    capacity_ += rows;
    used_in_last_ = 0;
  }
  RowHeader* row = At(chunks_.back(), used_in_last_++);
  row->frequency = kDeadRow;  // until it is in the index
  return row;
}

RowHeader* RowStore::Insert(std::int64_t key, std::uint64_t hash, const Epoch& epoch) {
  if (kTracking && epoch.tracking) current_.MakeRoom();
  if (free_.size() == free_.capacity()) free_.reserve(free_.size() + 1);
  RowHeader* row = TakePlace();
  row->key = key;  // before the index grows: it reads the keys
  try {
    index_.Insert(hash, row);
  } catch (const std::bad_alloc&) {
    free_.push_back(row);
    throw;
  }
  row->version = 0;
  row->frequency = 0;
  if constexpr (kTracking) {
    // A place that was freed in this epoch is in the list already.
    if (epoch.tracking && row->epoch != epoch.number) current_.Add(row);
    ++in_current_;
    ++since_parent_;
    ++since_base_;
  }
  row->epoch = epoch.number;
  return row;
}

bool RowStore::KeepForCut(const RowHeader* row) {
  if (!Alive(row) || row->epoch > scope_.epoch) return true;
  if (!scope_.full && row->epoch <= scope_.from) return true;
  if (once_) return WasWalked(row) || kept_.Keep(row);
  if (pre_images_ == nullptr) pre_images_ = std::make_unique<PreImages>(layout_, cut_dropped_);
  const std::uint64_t cost = pre_images_->CostOfOne();
  if (!side_->Take(cost)) return false;
  try {
    pre_images_->Keep(row);
  } catch (const std::bad_alloc&) {
    side_->Release(cost);
    throw;
  }
  return true;
}

bool RowStore::FirstTouch(RowHeader* row, const Epoch& epoch, const SharedDurableEpochs& shared) {
  if (epoch.tracking) current_.MakeRoom();
  if (cutting_ && !KeepForCut(row)) return false;
  if (epoch.tracking) {
    current_.Add(row);
    ++in_current_;
    const DurableEpochs durable = shared.Get();
    if (row->epoch <= durable.parent) ++since_parent_;
    if (row->epoch <= durable.base) ++since_base_;
  }
  row->epoch = epoch.number;
  return true;
}

bool RowStore::Erase(RowHeader* row, std::uint64_t hash, const Epoch& epoch,
                     const SharedDurableEpochs& durable) {
  if (free_.size() == free_.capacity()) free_.reserve(free_.size() * 3 / 2 + 8);
  if (!Touch(row, epoch, durable)) return false;
  index_.Remove(row->key, hash);
  row->frequency = kDeadRow;
  free_.push_back(row);
  if (kTracking && epoch.tracking) {
    --in_current_;
    --since_parent_;
    --since_base_;
  }
  return true;
}

std::uint64_t RowStore::BeginCut(const CutScope& scope) {
  scope_ = scope;
  cutting_ = true;
  cut_dropped_ = 0;
  once_ = false;
  walked_ = {};
  closed_.Swap(&current_);
  in_current_ = 0;
  cut_chunks_ = static_cast<std::uint32_t>(chunks_.size());
  cut_used_in_last_ = used_in_last_;
  if (scope.full) return index_.size();
  return scope.cumulative ? since_base_ : since_parent_;
}

bool RowStore::AtCut(const RowHeader* slot, const Epochs& epochs, CutRow* row) const {
  row->header = slot;
  row->live = slot;
  if (slot->epoch > scope_.epoch) {
    if (pre_images_ == nullptr || !pre_images_->Find(slot, &row->image)) return false;
    row->header = row->image.header;
    row->live = nullptr;
  }
  if (!Alive(row->header)) return false;
  return scope_.full || (row->header->epoch > epochs.after && row->header->epoch <= epochs.last);
}

void RowStore::BeginWalk() {
  if (scope_.full || walking_) return;
  if (scope_.cumulative) walk_[0] = SortDistinct(&earlier_);
  walk_[1] = SortDistinct(&undurable_);
  walk_[2] = closed_.Rows();  // each row stands in it once
  SortByAddress(&walk_[2]);
  walking_ = true;
}

void RowStore::EndWalk() {
  walking_ = false;
  for (auto& list : walk_) Free(&list);
}

RowStore::Epochs RowStore::EpochsOf(std::uint32_t list) const {
  switch (list) {
    case 0:
      return {scope_.from, scope_.parent};
    case 1:
      return {scope_.parent, scope_.epoch - 1};
    default:
      return {scope_.epoch - 1, scope_.epoch};
  }
}

void RowStore::FetchCutRows(CutCursor* cursor, std::size_t rows, const Wanted& wanted) const {
  constexpr std::size_t kLine = 64;
  if (scope_.full) return;  // its rows stand side by side
  while (cursor->list < kCutLists && cursor->at == walk_[cursor->list].size()) {
    *cursor = {.list = cursor->list + 1};
  }
  if (cursor->list == kCutLists) return;
  const std::vector<RowHeader*>& list = walk_[cursor->list];
  for (; cursor->fetched < std::min(list.size(), cursor->at + rows); ++cursor->fetched) {
    const std::byte* row = RowLayout::Bytes(list[cursor->fetched]);
    if (wanted.begin > 0 || wanted.end == 0) __builtin_prefetch(row);
    for (std::size_t at = wanted.begin; at < wanted.end; at += kLine) __builtin_prefetch(row + at);
    if (wanted.end > 0) __builtin_prefetch(row + wanted.end - 1);
  }
}

std::size_t RowStore::NextCutRows(CutCursor* cursor, std::span<CutRow> rows) const {
  std::size_t found = 0;
  if (scope_.full) {
    for (; cursor->list < cut_chunks_; ++cursor->list, cursor->at = 0) {
      const Chunk& chunk = chunks_[cursor->list];
      const std::size_t end = cursor->list + 1 == cut_chunks_ ? cut_used_in_last_ : chunk.rows;
      while (cursor->at < end) {
        if (found == rows.size()) return found;
        if (AtCut(At(chunk, cursor->at++), {}, &rows[found])) ++found;
      }
    }
    return found;
  }
  for (; cursor->list < kCutLists; *cursor = {.list = cursor->list + 1}) {
    const Epochs epochs = EpochsOf(cursor->list);
    for (const auto& list = walk_[cursor->list]; cursor->at < list.size();) {
      if (found == rows.size()) return found;
      if (AtCut(list[cursor->at++], epochs, &rows[found])) ++found;
    }
  }
  return found;
}

std::size_t RowStore::NextUnchangedRows(CutCursor* cursor, std::span<const RowHeader*> rows) {
  std::size_t found = 0;
  for (; cursor->list < kCutLists; *cursor = {.list = cursor->list + 1}) {
    const Epochs epochs = EpochsOf(cursor->list);
    for (const auto& list = walk_[cursor->list]; cursor->at < list.size();) {
      const RowHeader* const row = list[cursor->at];
      if (found == rows.size()) {
        walked_ = {cursor->list, row};
        return found;
      }
      ++cursor->at;
      if (row->epoch > epochs.after && row->epoch <= epochs.last && Alive(row)) rows[found++] = row;
    }
  }
  walked_ = {kCutLists, nullptr};
  return found;
}

KeptRows RowStore::TakeKept() {
  cutting_ = false;
  return std::move(kept_);
}

void RowStore::DropCutColumn(std::size_t column) {
  cut_dropped_ |= std::uint64_t{1} << column;
  if (pre_images_ != nullptr) side_->Release(pre_images_->DropColumn(column));
}

void RowStore::EndCopy() {
  cutting_ = false;
  kept_.Clear();
  if (pre_images_ == nullptr) return;
  const std::uint64_t bytes = pre_images_->bytes();
  pre_images_ = nullptr;
  side_->Release(bytes);
}

void RowStore::EndCut(bool committed) {
  EndWalk();  // of a cut that was given up half-way
  if (committed) since_parent_ = in_current_;
  if (committed && scope_.full) {
    earlier_.Clear();
    undurable_.Clear();
    closed_.Clear();
    since_base_ = in_current_;
  } else if (committed) {
    earlier_.TakeAll(&undurable_);
    earlier_.TakeAll(&closed_);
  } else {
    undurable_.TakeAll(&closed_);
  }
}

void RowStore::CompactLists() {
  constexpr std::size_t kFew = 1024;
  if (earlier_.size() + undurable_.size() <= 2 * compacted_ + kFew) return;
  SortDistinct(&earlier_);
  SortDistinct(&undurable_);
  compacted_ = earlier_.size() + undurable_.size();
}

RowHeader* RowStore::Next(Cursor* cursor) const {
  for (; cursor->chunk < chunks_.size(); ++cursor->chunk, cursor->at = 0) {
    const Chunk& chunk = chunks_[cursor->chunk];
    const std::uint32_t end = cursor->chunk + 1 == chunks_.size() ? used_in_last_ : chunk.rows;
    while (cursor->at < end) {
      RowHeader* row = At(chunk, cursor->at++);
      if (Alive(row)) return row;
    }
  }
  return nullptr;
}

void RowStore::EndLoad() {
  current_.RemoveIf([](const RowHeader* row) { return !Alive(row); });
  earlier_.Clear();
  earlier_.TakeAll(&current_);
  in_current_ = 0;
  since_parent_ = 0;
  since_base_ = static_cast<std::uint32_t>(earlier_.size());
}

void RowStore::Forget(std::uint32_t epoch) {
  Cursor cursor;
  while (RowHeader* row = Next(&cursor)) {
    if (row->epoch > epoch) continue;
    free_.reserve(free_.size() + 1);
    index_.Remove(row->key, IndexHash(row->key));
    row->frequency = kDeadRow;
    free_.push_back(row);
  }
}

void RowStore::Reset() {
  EndCopy();
  index_.Reset();
  Free(&chunks_);
  used_in_last_ = 0;
  capacity_ = 0;
  Free(&free_);
  current_.Clear();
  closed_.Clear();
  earlier_.Clear();
  undurable_.Clear();
  EndWalk();
  compacted_ = 0;
  in_current_ = 0;
  since_parent_ = 0;
  since_base_ = 0;
}

}  // namespace cairn::table
