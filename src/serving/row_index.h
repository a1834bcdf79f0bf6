#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace cairn::serving {

/// One version of a row. Weights follow it in memory, as they are stored in checkpoints. All but
/// `older` and `seen` are fixed before the record is linked; records of an update that is not
/// visible yet may be changed by the updater, because readers pass over them without looking.
struct Record {
  std::int64_t key;
  std::atomic<Record*> older;        // the version before it
  std::atomic<std::uint32_t> stamp;  // version << 1 | deleted
  std::uint32_t seen;                // the updater's: the last replacement that had this row

  std::uint32_t version() const { return stamp.load(std::memory_order_relaxed) >> 1; }
  bool deleted() const { return (stamp.load(std::memory_order_relaxed) & 1) != 0; }
  void Stamp(std::uint32_t version, bool deleted) {
    stamp.store(version << 1 | (deleted ? 1u : 0u), std::memory_order_relaxed);
  }
  std::byte* weights() { return reinterpret_cast<std::byte*>(this + 1); }
  const std::byte* weights() const { return reinterpret_cast<const std::byte*>(this + 1); }
};
static_assert(sizeof(Record) == 24);

/// From keys to the newest record of each: open addressing over words of a pointer (48 bits) and a
/// tag (16 bits of the hash), in 256 arrays that grow one by one. Readers take no lock: a word is
/// replaced in one store, and an array that was outgrown stays until nobody can be reading it. One
/// thread at a time changes it.
class RowIndex {
 public:
  RowIndex() = default;
  ~RowIndex();
  RowIndex(const RowIndex&) = delete;
  RowIndex& operator=(const RowIndex&) = delete;

  using Word = std::atomic<std::uint64_t>;
  /// Capacity, then that many words.
  struct Array {
    std::uint64_t capacity = 0;

    Word* words() { return reinterpret_cast<Word*>(this + 1); }
    const Word* words() const { return reinterpret_cast<const Word*>(this + 1); }
    std::uint32_t Home(std::uint64_t hash) const {
      return static_cast<std::uint32_t>(((hash >> 32) * capacity) >> 32);
    }
    std::uint32_t Next(std::uint32_t i) const { return i + 1 == capacity ? 0 : i + 1; }
  };

  // Readers, inside of a ReadEpochs::Guard ----------

  void Prefetch(std::uint64_t hash) const {
    if (const Array* array = ArrayOf(hash)) __builtin_prefetch(&array->words()[array->Home(hash)]);
  }
  /// The first record whose tag fits, or nullptr. Looks at no record.
  Record* Candidate(std::uint64_t hash) const {
    const Array* array = ArrayOf(hash);
    if (array == nullptr) return nullptr;
    for (std::uint32_t i = array->Home(hash);; i = array->Next(i)) {
      const std::uint64_t word = array->words()[i].load(std::memory_order_acquire);
      if (word == kEmpty) return nullptr;
      if (TagOf(word) == TagOf(hash) && word >> 16 != kRemoved) return RecordOf(word);
    }
  }
  Record* Find(std::int64_t key, std::uint64_t hash) const {
    const Word* place = Place(key, hash);
    return place == nullptr ? nullptr : RecordOf(place->load(std::memory_order_acquire));
  }

  // The updater ----------

  /// Puts `record` in the place of the one that the key has.
  void Replace(std::uint64_t hash, std::int64_t key, Record* record);
  /// Adds a key that is not there. Throws std::bad_alloc with nothing changed. Arrays that it
  /// outgrew go to `outgrown`.
  void Insert(std::uint64_t hash, Record* record, std::vector<Array*>* outgrown);
  void Remove(std::uint64_t hash, std::int64_t key);
  /// Room for so many keys in all.
  void Reserve(std::uint64_t keys, std::vector<Array*>* outgrown);
  /// Calls `fn` with the newest record of each key; it may call Replace.
  void ForEach(const std::function<void(Record*)>& fn) const;
  static void Free(Array* array);

  std::uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  static constexpr std::uint64_t kEmpty = 0;
  static constexpr std::uint64_t kRemoved = 1;  // as a pointer
  static constexpr std::uint32_t kParts = 256;

  static std::uint16_t TagOf(std::uint64_t word) { return static_cast<std::uint16_t>(word); }
  static Record* RecordOf(std::uint64_t word) { return reinterpret_cast<Record*>(word >> 16); }
  static std::uint64_t WordOf(std::uint64_t hash, Record* record) {
    return reinterpret_cast<std::uint64_t>(record) << 16 | TagOf(hash);
  }
  static std::uint32_t PartOf(std::uint64_t hash) { return (hash >> 16) % kParts; }

  const Array* ArrayOf(std::uint64_t hash) const {
    return parts_[PartOf(hash)].array.load(std::memory_order_acquire);
  }
  const Word* Place(std::int64_t key, std::uint64_t hash) const {
    const Array* array = ArrayOf(hash);
    if (array == nullptr) return nullptr;
    for (std::uint32_t i = array->Home(hash);; i = array->Next(i)) {
      const std::uint64_t word = array->words()[i].load(std::memory_order_acquire);
      if (word == kEmpty) return nullptr;
      if (TagOf(word) == TagOf(hash) && word >> 16 != kRemoved && RecordOf(word)->key == key) {
        return &array->words()[i];
      }
    }
  }

  struct Part {
    std::atomic<Array*> array{nullptr};
    std::uint32_t keys = 0;
    std::uint32_t used = 0;  // with removed ones
  };
  void Grow(Part* part, std::uint32_t capacity, std::vector<Array*>* outgrown);

  Part parts_[kParts];
  std::atomic<std::uint64_t> bytes_{0};  // of the arrays in use
};

}  // namespace cairn::serving
