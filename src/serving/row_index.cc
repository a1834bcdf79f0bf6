#include "serving/row_index.h"

#include <algorithm>
#include <limits>
#include <new>

#include "table/hashing.h"

namespace cairn::serving {

using table::IndexHash;

RowIndex::~RowIndex() {
  for (Part& part : parts_) Free(part.array.load(std::memory_order_relaxed));
}

void RowIndex::Free(Array* array) { ::operator delete(array); }

void RowIndex::Replace(std::uint64_t hash, std::int64_t key, Record* record) {
  auto* place = const_cast<Word*>(Place(key, hash));
  place->store(WordOf(hash, record), std::memory_order_release);
}

void RowIndex::Insert(std::uint64_t hash, Record* record, std::vector<Array*>* outgrown) {
  Part& part = parts_[PartOf(hash)];
  Array* array = part.array.load(std::memory_order_relaxed);
  if (array == nullptr || std::uint64_t{part.used + 1} * 4 > array->capacity * 3) {
    // After a rehash half of it is free, so the next one is as many inserts away as it has keys.
    Grow(&part, std::max<std::uint32_t>(16, (part.keys + 1) * 2), outgrown);
    array = part.array.load(std::memory_order_relaxed);
  }
  std::uint32_t i = array->Home(hash);
  while (array->words()[i].load(std::memory_order_relaxed) >> 16 > kRemoved) i = array->Next(i);
  if (array->words()[i].load(std::memory_order_relaxed) == kEmpty) ++part.used;
  ++part.keys;
  array->words()[i].store(WordOf(hash, record), std::memory_order_release);
}

void RowIndex::Remove(std::uint64_t hash, std::int64_t key) {
  auto* place = const_cast<Word*>(Place(key, hash));
  place->store(kRemoved << 16 | TagOf(hash), std::memory_order_release);
  --parts_[PartOf(hash)].keys;
}

void RowIndex::Reserve(std::uint64_t keys, std::vector<Array*>* outgrown) {
  // Keys fall into the parts by chance: a little more than the mean holds nearly all of them.
  const std::uint64_t each = keys / kParts + keys / kParts / 16;
  const std::uint64_t capacity =
      std::min<std::uint64_t>(each * 3 / 2, std::numeric_limits<std::uint32_t>::max() / 2);
  for (Part& part : parts_) {
    const Array* array = part.array.load(std::memory_order_relaxed);
    if (capacity > (array == nullptr ? 16 : array->capacity)) {
      Grow(&part, static_cast<std::uint32_t>(capacity), outgrown);
    }
  }
}

void RowIndex::Grow(Part* part, std::uint32_t capacity, std::vector<Array*>* outgrown) {
  outgrown->reserve(outgrown->size() + 1);
  const std::size_t bytes = sizeof(Array) + capacity * sizeof(Word);
  auto* fresh = new (::operator new(bytes)) Array{capacity};
  for (std::uint32_t i = 0; i < capacity; ++i) new (&fresh->words()[i]) Word(kEmpty);
  Array* old = part->array.load(std::memory_order_relaxed);
  std::uint64_t old_bytes = 0;
  if (old != nullptr) {
    old_bytes = sizeof(Array) + old->capacity * sizeof(Word);
    for (std::uint32_t i = 0; i < old->capacity; ++i) {
      const std::uint64_t word = old->words()[i].load(std::memory_order_relaxed);
      if (word >> 16 <= kRemoved) continue;
      const std::uint64_t hash = IndexHash(RecordOf(word)->key);
      std::uint32_t to = fresh->Home(hash);
      while (fresh->words()[to].load(std::memory_order_relaxed) != kEmpty) to = fresh->Next(to);
      fresh->words()[to].store(word, std::memory_order_relaxed);
    }
    outgrown->push_back(old);
  }
  part->used = part->keys;
  part->array.store(fresh, std::memory_order_release);
  bytes_.fetch_add(bytes - old_bytes, std::memory_order_relaxed);
}

void RowIndex::ForEach(const std::function<void(Record*)>& fn) const {
  for (const Part& part : parts_) {
    const Array* array = part.array.load(std::memory_order_relaxed);
    if (array == nullptr) continue;
    for (std::uint32_t i = 0; i < array->capacity; ++i) {
      const std::uint64_t word = array->words()[i].load(std::memory_order_relaxed);
      if (word >> 16 > kRemoved) fn(RecordOf(word));
    }
  }
}

}  // namespace cairn::serving
