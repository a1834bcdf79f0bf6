#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <cairn/dtype.h>
#include <cairn/status.h>

#include "serving/read_epochs.h"
#include "serving/row_index.h"
#include "table/row_layout.h"
#include "table/slab.h"

namespace cairn::serving {

/// Numbers of versions: each update makes the next one.
using Version = std::uint32_t;
inline constexpr Version kMaxVersion = 0x7FFFFFFF;

struct ServedTable {
  std::string name;
  std::uint32_t dim = 0;
  DType dtype = DType::kF32;  // kF32, kF16, kBF16: rows are kept as they are stored
  float default_value = 0;    // of each weight of a row that is not there

  friend bool operator==(const ServedTable&, const ServedTable&) = default;
};

/// The rows of a table in several versions at once. A row is a list of records, the newest first;
/// a reader at a version takes the first that is not newer. An update adds a record for each row
/// that it changes and nothing else, so it costs the memory of the rows that changed, and readers
/// of earlier versions never see it. Rows that come again with the same bytes are not added: a new
/// full of a model that hardly changed hardly costs anything.
///
/// Lookup: any thread, without a lock. Everything else: one updater at a time.
class VersionedTable {
 public:
  VersionedTable(ServedTable options, ReadEpochs* epochs);
  ~VersionedTable();
  VersionedTable(const VersionedTable&) = delete;
  VersionedTable& operator=(const VersionedTable&) = delete;

  const ServedTable& options() const { return options_; }
  std::size_t row_bytes() const { return row_bytes_; }

  /// The weights of each id as they were at `version`, as float32, `dim` a row; the default where
  /// the row was not there. Returns how many were. The caller keeps the version alive (Collect).
  std::size_t Lookup(Version version, std::span<const std::int64_t> ids, float* out) const;

  /// Remembers what the last update changed, until Collect has seen to it. Before Begin: a Collect
  /// that had no memory may have left it. Throws std::bad_alloc with nothing changed.
  void NoteUpdate();
  /// Begins the update that makes `version`, which is greater than any before. `replace`: rows that
  /// are not put are gone afterwards.
  void Begin(Version version, bool replace);
  /// Expects so many rows in all.
  Status Reserve(std::uint64_t rows);
  /// `values`: a row of row_bytes() for each key. Of a key that comes twice the last counts.
  /// ResourceExhausted: the update can only be aborted.
  Status Put(std::span<const std::int64_t> keys, const std::byte* values);
  Status Delete(std::span<const std::int64_t> keys);
  /// The update is whole; its version may be read. Of a replacement the rows that did not come go;
  /// ResourceExhausted as with Put.
  Status Finish();
  /// All is as before Begin. Also after Finish, before anybody was told of the version. Asks for no
  /// memory; waits for lookups that are under way.
  void Abort();

  /// Frees the records that no version in `alive` sees (ascending; the newest finished one is among
  /// them, and no version comes back once it was left out), as soon as no reader is under way. When
  /// it throws (std::bad_alloc) some are left for the next time.
  void Collect(std::span<const Version> alive);

  std::uint64_t rows() const { return rows_; }               // of the newest update
  std::uint64_t changed() const { return touched_.size(); }  // records that it added
  /// Any thread: bytes of records, index and lists of changed keys in use, with what waits to be
  /// freed; free records that were in use once are not counted.
  std::uint64_t bytes_in_use() const;
  std::uint64_t bytes_reserved() const;

 private:
  /// The rows that an update added records for, until no older version needs the earlier ones.
  struct Update {
    Version version = 0;
    Version before = 0;  // the one that it was made from
    std::vector<std::int64_t> keys;
    std::optional<Version> needed_by;  // the newest older version that was alive at the last look
    std::size_t unique = 0;            // keys when they were last sorted and made unique
  };
  struct Retired {
    ReadEpochs::Tag tag = 0;
    std::vector<Record*> records;
    std::vector<RowIndex::Array*> arrays;
  };

  static const Record* Visible(const Record* newest, Version version) {
    while (newest != nullptr && newest->version() > version) {
      newest = newest->older.load(std::memory_order_acquire);
    }
    return newest == nullptr || newest->deleted() ? nullptr : newest;
  }
  void ReadRow(const Record* record, float* out) const;
  void PrefetchAhead(std::span<const std::int64_t> keys, std::size_t i) const;
  Record* Allocate();
  Record* Add(std::int64_t key, Record* newest, bool deleted);
  void PutRow(std::int64_t key, std::uint64_t hash, const std::byte* values);
  void DeleteRow(std::int64_t key, std::uint64_t hash, Record* newest);
  void CollectKey(std::int64_t key, std::span<const Version> alive);
  void MergeUpdates();
  void CountLists();
  void Release(Record* record);
  void Retire();
  void Reclaim();

  const ServedTable options_;
  const table::RowLayout layout_;
  const std::size_t row_bytes_;
  const std::size_t stride_;
  ReadEpochs* const epochs_;

  RowIndex index_;
  table::Slab slab_;
  // What increments add, until others are free: a few megabytes, of which huge pages would waste
  // more than they hold.
  table::Slab patches_;
  std::byte* chunk_ = nullptr;  // records that were never used
  std::size_t chunk_records_ = 0;
  Record* free_ = nullptr;                 // linked by `older`
  std::atomic<std::uint64_t> records_{0};  // in use, retired ones too

  Version version_ = 0;  // of the update under way, or the last one
  Version before_ = 0;
  bool replace_ = false;
  std::uint64_t rows_ = 0;
  std::uint64_t rows_before_ = 0;
  std::vector<std::int64_t> touched_;  // keys with a record of the update under way
  std::deque<Update> updates_;
  Retired retiring_;
  std::deque<Retired> retired_;
  std::atomic<std::uint64_t> list_bytes_{0};
};

}  // namespace cairn::serving
