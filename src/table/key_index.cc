#include "table/key_index.h"

#include <algorithm>
#include <cstdlib>
#include <new>

namespace cairn::table {
namespace {

constexpr std::uint32_t kFirstCapacity = 8;
// Three quarters full at most, half full after growing.
bool TooFull(std::uint64_t used, std::uint64_t capacity) { return used * 4 > capacity * 3; }

}  // namespace

void KeyIndex::Insert(std::uint64_t hash, RowHeader* row) {
  std::uint32_t capacity = capacity_.load(std::memory_order_relaxed);
  if (TooFull(std::uint64_t{used_} + 1, capacity)) {
    // Many removed places: the same size does again.
    const std::uint64_t wanted = (std::uint64_t{size_} + 1) * 2;
    Rehash(static_cast<std::uint32_t>(std::max<std::uint64_t>(wanted, kFirstCapacity)));
    capacity = capacity_.load(std::memory_order_relaxed);
  }
  std::uint64_t* words = words_.load(std::memory_order_relaxed);
  std::uint32_t i = Home(hash, capacity);
  while (words[i] != kEmpty && words[i] >> 16 != kRemoved) i = i + 1 == capacity ? 0 : i + 1;
  if (words[i] == kEmpty) ++used_;
  words[i] = Word(hash, row);
  ++size_;
}

void KeyIndex::Remove(std::int64_t key, std::uint64_t hash) {
  const std::uint32_t i = Place(key, hash);
  if (i == kNowhere) return;
  std::uint64_t* words = words_.load(std::memory_order_relaxed);
  const std::uint32_t capacity = capacity_.load(std::memory_order_relaxed);
  --size_;
  // The last of a run of neighbours may become empty; others must not end a search early.
  if (words[i + 1 == capacity ? 0 : i + 1] == kEmpty) {
    words[i] = kEmpty;
    --used_;
  } else {
    words[i] = kRemoved << 16;
  }
}

void KeyIndex::Reserve(std::size_t rows) {
  const std::uint64_t wanted = rows * 4 / 3 + 1;
  if (wanted > capacity_.load(std::memory_order_relaxed) && wanted < kNowhere) {
    Rehash(std::max(static_cast<std::uint32_t>(wanted), kFirstCapacity));
  }
}

void KeyIndex::Rehash(std::uint32_t capacity) {
  auto* fresh = static_cast<std::uint64_t*>(std::calloc(capacity, sizeof(std::uint64_t)));
  if (fresh == nullptr) throw std::bad_alloc();
  std::uint64_t* old = words_.load(std::memory_order_relaxed);
  const std::uint32_t old_capacity = capacity_.load(std::memory_order_relaxed);
  constexpr std::uint32_t kAhead = 16;  // the keys stand in the records, far apart
  for (std::uint32_t i = 0; i < old_capacity; ++i) {
    if (i + kAhead < old_capacity && old[i + kAhead] >> 16 > kRemoved) {
      __builtin_prefetch(Pointer(old[i + kAhead]));
    }
    if (old[i] >> 16 <= kRemoved) continue;
    const std::uint64_t hash = IndexHash(Pointer(old[i])->key);
    std::uint32_t at = Home(hash, capacity);
    while (fresh[at] != kEmpty) at = at + 1 == capacity ? 0 : at + 1;
    fresh[at] = old[i];
  }
  used_ = size_;
  words_.store(fresh, std::memory_order_relaxed);
  capacity_.store(capacity, std::memory_order_relaxed);
  std::free(old);
}

void KeyIndex::Reset() {
  std::free(words_.load(std::memory_order_relaxed));
  words_.store(nullptr, std::memory_order_relaxed);
  capacity_.store(0, std::memory_order_relaxed);
  size_ = 0;
  used_ = 0;
}

}  // namespace cairn::table
