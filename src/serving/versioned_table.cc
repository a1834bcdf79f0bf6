#include "serving/versioned_table.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <new>
#include <thread>
#include <utility>

#include "base/status_macros.h"
#include "table/hashing.h"

namespace cairn::serving {

using table::IndexHash;

namespace {

constexpr std::size_t kBatch = 32;  // rows whose memory is asked for together
constexpr std::size_t kChunkBytes = 64u << 10;
constexpr std::size_t kRetireTogether = 16'384;

bool AnyAlive(std::span<const Version> alive, Version from, Version before) {
  const auto it = std::lower_bound(alive.begin(), alive.end(), from);
  return it != alive.end() && *it < before;
}

}  // namespace

VersionedTable::VersionedTable(ServedTable options, ReadEpochs* epochs)
    : options_(std::move(options)),
      layout_(options_.dim, options_.dtype, {}),
      row_bytes_(std::size_t{options_.dim} * static_cast<std::size_t>(DTypeBits(options_.dtype)) /
                 8),
      stride_((sizeof(Record) + row_bytes_ + 7) / 8 * 8),
      epochs_(epochs) {}

VersionedTable::~VersionedTable() {
  for (const Retired& retired : retired_) {
    for (RowIndex::Array* array : retired.arrays) RowIndex::Free(array);
  }
  for (RowIndex::Array* array : retiring_.arrays) RowIndex::Free(array);
}

// ---------------------------------------------------------------- readers

void VersionedTable::ReadRow(const Record* record, float* out) const {
  if (record == nullptr) {
    std::fill_n(out, options_.dim, options_.default_value);
  } else if (options_.dtype == DType::kF32) {
    std::memcpy(out, record->weights(), row_bytes_);
  } else {
    layout_.ReadStored(record->weights(), out);
  }
}

std::size_t VersionedTable::Lookup(Version version, std::span<const std::int64_t> ids,
                                   float* out) const {
  // A batch at a time is brought into the cache: first the places in the index, then the records.
  const ReadEpochs::Guard guard(epochs_);
  std::size_t found = 0;
  std::array<std::uint64_t, kBatch> hashes;
  std::array<Record*, kBatch> candidates;
  for (std::size_t first = 0; first < ids.size(); first += kBatch) {
    const std::size_t n = std::min(kBatch, ids.size() - first);
    for (std::size_t i = 0; i < n; ++i) {
      hashes[i] = IndexHash(ids[first + i]);
      index_.Prefetch(hashes[i]);
    }
    for (std::size_t i = 0; i < n; ++i) {
      candidates[i] = index_.Candidate(hashes[i]);
      if (candidates[i] == nullptr) continue;
      __builtin_prefetch(candidates[i]);
      __builtin_prefetch(reinterpret_cast<const char*>(candidates[i]) + 64);
    }
    for (std::size_t i = 0; i < n; ++i) {
      const Record* newest = candidates[i];
      if (newest != nullptr && newest->key != ids[first + i]) {
        newest = index_.Find(ids[first + i], hashes[i]);
      }
      const Record* visible = Visible(newest, version);
      ReadRow(visible, out + (first + i) * options_.dim);
      found += visible != nullptr;
    }
  }
  return found;
}

// ---------------------------------------------------------------- updates

Record* VersionedTable::Allocate() {
  Record* record = free_;
  if (record != nullptr) {
    free_ = record->older.load(std::memory_order_relaxed);
  } else {
    if (chunk_records_ == 0) {
      const std::size_t records = std::max<std::size_t>(1, kChunkBytes / stride_);
      chunk_ = (replace_ ? slab_ : patches_).Allocate(records * stride_);
      if (chunk_ == nullptr) throw std::bad_alloc();
      chunk_records_ = records;
    }
    record = new (chunk_) Record{};
    chunk_ += stride_;
    --chunk_records_;
  }
  records_.fetch_add(1, std::memory_order_relaxed);
  return record;
}

void VersionedTable::Begin(Version version, bool replace) {
  before_ = version_;
  version_ = version;
  replace_ = replace;
  rows_before_ = rows_;
  touched_.clear();
}

Status VersionedTable::Reserve(std::uint64_t rows) {
  try {
    index_.Reserve(rows, &retiring_.arrays);
  } catch (const std::bad_alloc&) {
    return ResourceExhaustedError("table \"" + options_.name + "\": no memory for its index");
  }
  return Status::Ok();
}

/// Links a record of this update before `newest`. Strong: nothing happened when it throws.
Record* VersionedTable::Add(std::int64_t key, Record* newest, bool deleted) {
  if (touched_.size() == touched_.capacity()) {
    touched_.reserve(touched_.size() + touched_.size() / 2 + 64);
    CountLists();
  }
  Record* record = Allocate();
  record->key = key;
  record->older.store(newest, std::memory_order_relaxed);
  record->Stamp(version_, deleted);
  record->seen = version_;
  return record;
}

void VersionedTable::PutRow(std::int64_t key, std::uint64_t hash, const std::byte* values) {
  Record* newest = index_.Find(key, hash);
  const bool was_there = newest != nullptr && !newest->deleted();
  if (newest != nullptr && newest->version() == version_) {
    // Nobody reads it yet.
    std::memcpy(newest->weights(), values, row_bytes_);
    newest->Stamp(version_, /*deleted=*/false);
    rows_ += was_there ? 0 : 1;
    return;
  }
  if (was_there && std::memcmp(newest->weights(), values, row_bytes_) == 0) {
    if (replace_) newest->seen = version_;
    return;
  }
  Record* record = Add(key, newest, /*deleted=*/false);
  std::memcpy(record->weights(), values, row_bytes_);
  if (newest != nullptr) {
    index_.Replace(hash, key, record);
  } else {
    try {
      index_.Insert(hash, record, &retiring_.arrays);
    } catch (const std::bad_alloc&) {
      Release(record);
      records_.fetch_sub(1, std::memory_order_relaxed);
      throw;
    }
  }
  touched_.push_back(key);
  rows_ += was_there ? 0 : 1;
}

/// Brings what the keys after the i-th will need into the cache: first the place in the index, then
/// the record.
void VersionedTable::PrefetchAhead(std::span<const std::int64_t> keys, std::size_t i) const {
  constexpr std::size_t kAhead = 16;
  if (i + 2 * kAhead < keys.size()) index_.Prefetch(IndexHash(keys[i + 2 * kAhead]));
  if (i + kAhead < keys.size()) {
    if (const Record* record = index_.Candidate(IndexHash(keys[i + kAhead]))) {
      __builtin_prefetch(record);
      __builtin_prefetch(reinterpret_cast<const char*>(record) + 64);
    }
  }
}

Status VersionedTable::Put(std::span<const std::int64_t> keys, const std::byte* values) {
  try {
    for (std::size_t i = 0; i < keys.size(); ++i) {
      PrefetchAhead(keys, i);
      PutRow(keys[i], IndexHash(keys[i]), values + i * row_bytes_);
    }
  } catch (const std::bad_alloc&) {
    return ResourceExhaustedError("table \"" + options_.name + "\": no memory for an update");
  }
  return Status::Ok();
}

void VersionedTable::DeleteRow(std::int64_t key, std::uint64_t hash, Record* newest) {
  if (newest == nullptr || newest->deleted()) return;
  if (newest->version() == version_) {
    newest->Stamp(version_, /*deleted=*/true);
  } else {
    index_.Replace(hash, key, Add(key, newest, /*deleted=*/true));
    touched_.push_back(key);
  }
  --rows_;
}

Status VersionedTable::Delete(std::span<const std::int64_t> keys) {
  try {
    for (const std::int64_t key : keys) {
      const std::uint64_t hash = IndexHash(key);
      DeleteRow(key, hash, index_.Find(key, hash));
    }
  } catch (const std::bad_alloc&) {
    return ResourceExhaustedError("table \"" + options_.name + "\": no memory for an update");
  }
  return Status::Ok();
}

Status VersionedTable::Finish() {
  if (!replace_) return Status::Ok();
  try {
    index_.ForEach([&](Record* newest) {
      if (newest->version() == version_ || newest->seen == version_) return;
      DeleteRow(newest->key, IndexHash(newest->key), newest);
    });
  } catch (const std::bad_alloc&) {
    return ResourceExhaustedError("table \"" + options_.name + "\": no memory for an update");
  }
  return Status::Ok();
}

void VersionedTable::Abort() {
  // Perhaps there is no memory: the records are noted in the place of their keys.
  static_assert(sizeof(Record*) == sizeof(std::int64_t));
  for (std::int64_t& place : touched_) {
    const std::uint64_t hash = IndexHash(place);
    Record* record = index_.Find(place, hash);
    Record* older = record->older.load(std::memory_order_relaxed);
    if (older != nullptr) {
      index_.Replace(hash, place, older);
    } else {
      index_.Remove(hash, place);
    }
    place = std::bit_cast<std::int64_t>(record);
  }
  if (!touched_.empty()) {
    const ReadEpochs::Tag tag = epochs_->Retire();
    while (epochs_->Passed() < tag) std::this_thread::yield();
    for (const std::int64_t place : touched_) Release(std::bit_cast<Record*>(place));
    records_.fetch_sub(touched_.size(), std::memory_order_relaxed);
  }
  touched_ = {};
  rows_ = rows_before_;
  version_ = before_;
  CountLists();
}

void VersionedTable::Release(Record* record) {
  record->older.store(free_, std::memory_order_relaxed);
  free_ = record;
}

void VersionedTable::CountLists() {
  std::uint64_t keys = touched_.capacity();
  for (const Update& update : updates_) keys += update.keys.capacity();
  list_bytes_.store(keys * sizeof(std::int64_t), std::memory_order_relaxed);
}

// ---------------------------------------------------------------- what nobody needs any more

void VersionedTable::NoteUpdate() {
  if (touched_.empty()) return;
  Update& update = updates_.emplace_back();
  update.version = version_;
  update.before = before_;
  update.keys = std::exchange(touched_, {});
}

void VersionedTable::Collect(std::span<const Version> alive) {
  NoteUpdate();
  std::erase_if(updates_, [&](Update& update) {
    std::optional<Version> older;  // the newest alive version before this update
    const auto it = std::lower_bound(alive.begin(), alive.end(), update.version);
    if (it != alive.begin()) older = *(it - 1);
    // What it superseded is no newer than `before`: while that, or one after it, is alive, so are
    // they.
    if (older && !update.needed_by && *older >= update.before) update.needed_by = older;
    if (older && older == update.needed_by) return false;
    for (std::size_t i = 0; i < update.keys.size(); ++i) {
      PrefetchAhead(update.keys, i);
      CollectKey(update.keys[i], alive);
      // Whoever could find them is mostly gone by now: the list need not grow with the update.
      if (retiring_.records.size() >= kRetireTogether) {
        Retire();
        Reclaim();
      }
    }
    update.needed_by = older;
    return !older.has_value();
  });
  MergeUpdates();
  CountLists();
  Retire();
  Reclaim();
}

void VersionedTable::CollectKey(std::int64_t key, std::span<const Version> alive) {
  const std::uint64_t hash = IndexHash(key);
  Record* newest = index_.Find(key, hash);
  if (newest == nullptr) return;
  std::vector<Record*>& retiring = retiring_.records;
  std::size_t unlinked = retiring.size();  // those before it can be found no more
  try {
    Record* kept = newest;
    Version before = newest->version();
    for (Record* record = newest->older.load(std::memory_order_relaxed); record != nullptr;) {
      Record* next = record->older.load(std::memory_order_relaxed);
      if (AnyAlive(alive, record->version(), before)) {
        if (kept->older.load(std::memory_order_relaxed) != record) {
          kept->older.store(record, std::memory_order_release);
          unlinked = retiring.size();
        }
        kept = record;
      } else {
        retiring.push_back(record);  // whoever stands on it still finds its way on
      }
      before = record->version();
      record = next;
    }
    if (kept->older.load(std::memory_order_relaxed) != nullptr) {
      kept->older.store(nullptr, std::memory_order_release);
      unlinked = retiring.size();
    }
    if (kept == newest && newest->deleted()) {
      retiring.push_back(newest);
      index_.Remove(hash, key);
    }
  } catch (const std::bad_alloc&) {
    retiring.resize(unlinked);
    throw;
  }
}

/// While an old version is held, every update has rows that it needs. Their keys are put together,
/// each once: the list grows with the rows that changed, not with the updates.
void VersionedTable::MergeUpdates() {
  for (std::size_t i = 0; i + 1 < updates_.size();) {
    Update& to = updates_[i];
    Update& from = updates_[i + 1];
    if (!to.needed_by || to.needed_by != from.needed_by) {
      ++i;
      continue;
    }
    to.keys.insert(to.keys.end(), from.keys.begin(), from.keys.end());
    to.version = from.version;
    if (to.keys.size() > 2 * to.unique) {
      std::sort(to.keys.begin(), to.keys.end());
      to.keys.erase(std::unique(to.keys.begin(), to.keys.end()), to.keys.end());
      to.keys.shrink_to_fit();
      to.unique = to.keys.size();
    }
    updates_.erase(updates_.begin() + static_cast<std::ptrdiff_t>(i) + 1);
  }
}

void VersionedTable::Retire() {
  if (retiring_.records.empty() && retiring_.arrays.empty()) return;
  retiring_.tag = epochs_->Retire();
  retired_.push_back(std::move(retiring_));
  retiring_ = {};
}

void VersionedTable::Reclaim() {
  const ReadEpochs::Tag passed = epochs_->Passed();
  while (!retired_.empty() && retired_.front().tag <= passed) {
    for (Record* record : retired_.front().records) Release(record);
    records_.fetch_sub(retired_.front().records.size(), std::memory_order_relaxed);
    for (RowIndex::Array* array : retired_.front().arrays) RowIndex::Free(array);
    retired_.pop_front();
  }
}

std::uint64_t VersionedTable::bytes_in_use() const {
  return records_.load(std::memory_order_relaxed) * stride_ + index_.bytes() +
         list_bytes_.load(std::memory_order_relaxed);
}

std::uint64_t VersionedTable::bytes_reserved() const {
  return slab_.bytes() + patches_.bytes() + index_.bytes();
}

}  // namespace cairn::serving
