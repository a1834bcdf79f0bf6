#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "table/hashing.h"
#include "table/row_layout.h"

namespace cairn::table {

/// From keys to row records of one shard: open addressing with linear probing over words of a
/// pointer (48 bits) and a tag (16 bits of the hash). The key itself is compared in the record,
/// which the caller wants anyway: 8 bytes a place, 11 to 16 a row. The shard's lock guards it, but
/// for Prefetch.
class KeyIndex {
 public:
  KeyIndex() = default;
  ~KeyIndex() { Reset(); }
  KeyIndex(const KeyIndex&) = delete;
  KeyIndex& operator=(const KeyIndex&) = delete;

  /// Brings the place of `hash` into the cache. Without a lock, any time: it may look at the wrong
  /// place, and does no harm there.
  void Prefetch(std::uint64_t hash) const {
    const std::uint64_t* words = words_.load(std::memory_order_relaxed);
    if (words != nullptr) {
      __builtin_prefetch(words + Home(hash, capacity_.load(std::memory_order_relaxed)));
    }
  }

  /// The first record whose tag fits, or nullptr. Looks at no record.
  RowHeader* Candidate(std::uint64_t hash) const {
    const std::uint64_t* words = words_.load(std::memory_order_relaxed);
    if (words == nullptr) return nullptr;
    const std::uint32_t capacity = capacity_.load(std::memory_order_relaxed);
    for (std::uint32_t i = Home(hash, capacity);; i = i + 1 == capacity ? 0 : i + 1) {
      const std::uint64_t word = words[i];
      if (word == kEmpty) return nullptr;
      if (Tag(word) == Tag(hash) && word >> 16 != kRemoved) return Pointer(word);
    }
  }

  RowHeader* Find(std::int64_t key, std::uint64_t hash) const {
    const std::uint32_t i = Place(key, hash);
    return i == kNowhere ? nullptr : Pointer(words_.load(std::memory_order_relaxed)[i]);
  }

  /// Adds a record whose key is not there yet. Throws std::bad_alloc, with nothing changed.
  void Insert(std::uint64_t hash, RowHeader* row);
  /// Removes the record of a key that is there.
  void Remove(std::int64_t key, std::uint64_t hash);
  void Reserve(std::size_t rows);
  void Reset();

  std::size_t size() const { return size_; }
  std::uint64_t bytes() const {
    return std::uint64_t{capacity_.load(std::memory_order_relaxed)} * sizeof(std::uint64_t);
  }

 private:
  static constexpr std::uint64_t kEmpty = 0;
  static constexpr std::uint64_t kRemoved = 1;  // as a pointer
  static constexpr std::uint32_t kNowhere = ~std::uint32_t{0};

  static std::uint32_t Home(std::uint64_t hash, std::uint32_t capacity) {
    return static_cast<std::uint32_t>(((hash >> 32) * capacity) >> 32);
  }
  static std::uint16_t Tag(std::uint64_t word) { return static_cast<std::uint16_t>(word); }
  static RowHeader* Pointer(std::uint64_t word) { return reinterpret_cast<RowHeader*>(word >> 16); }
  static std::uint64_t Word(std::uint64_t hash, RowHeader* row) {
    return reinterpret_cast<std::uint64_t>(row) << 16 | Tag(hash);
  }
  std::uint32_t Place(std::int64_t key, std::uint64_t hash) const {
    const std::uint64_t* words = words_.load(std::memory_order_relaxed);
    if (words == nullptr) return kNowhere;
    const std::uint32_t capacity = capacity_.load(std::memory_order_relaxed);
    for (std::uint32_t i = Home(hash, capacity);; i = i + 1 == capacity ? 0 : i + 1) {
      const std::uint64_t word = words[i];
      if (word == kEmpty) return kNowhere;
      if (Tag(word) == Tag(hash) && word >> 16 != kRemoved && Pointer(word)->key == key) return i;
    }
  }
  void Rehash(std::uint32_t capacity);

  // Atomic for Prefetch alone.
  std::atomic<std::uint64_t*> words_{nullptr};
  std::atomic<std::uint32_t> capacity_{0};
  std::uint32_t size_ = 0;
  std::uint32_t used_ = 0;  // with removed ones
};

}  // namespace cairn::table
