#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <cairn/status.h>
#include <cairn/table_rows.h>

#include "checkpoint/catalog.h"
#include "checkpoint/plain_part.h"
#include "checkpoint/stored_bytes.h"
#include "format/manifest.h"
#include "storage/store.h"

namespace cairn {

/// One table of a restore point put together: the rows that stand at the end of the chain, each as
/// it was written last, as exact numbers and plain keys however it was stored. Works shard by
/// shard, so that it holds the keys of one shard at a time (and the deleted keys of all increments,
/// and the keys of parts that pack them). For one thread; a failure leaves it usable.
class MergedTable {
 public:
  /// Where an entry's newest version stands.
  struct Place {
    std::int64_t key = 0;
    std::uint32_t member = 0;  // of members()
    std::uint64_t entry = 0;   // row or pending entry of its part
  };

  /// `members` in the order of the chain. FailedPrecondition, saying what to do, when their rows
  /// have different columns.
  static Result<std::unique_ptr<MergedTable>> Make(std::vector<PlainPart> members);

  const std::string& name() const { return members_.front().part().table; }
  const std::vector<PlainPart>& members() const { return members_; }
  std::uint32_t shards() const { return shards_; }
  bool has_shard_offsets() const { return grouped_; }
  /// The columns of rows and of pending entries, as those of the full checkpoint.
  const std::vector<TableColumn>& columns() const { return columns_; }

  /// The rows of a shard: in the order of the chain, and as they stand in each part. Corruption
  /// when a checkpoint has a key twice.
  Result<std::vector<Place>> Rows(std::uint32_t shard);
  /// The keys not admitted yet, in the same order.
  Result<std::vector<Place>> Pending();
  /// The bytes of a column of consecutive entries of one member.
  Status Read(const TableColumn& column, std::uint32_t member, std::uint64_t entry,
              std::span<std::byte> into);

 private:
  MergedTable() = default;
  Status CheckColumns();
  Status ReadDeleted();
  bool DeletedAfter(std::int64_t key, std::size_t position) const;
  /// The newest of each key, back in the order of members.
  Result<std::vector<Place>> Newest(std::vector<Place> all) const;
  std::size_t PositionOf(const Place& place) const {
    return members_[place.member].part().position;
  }

  std::vector<PlainPart> members_;
  std::vector<TableColumn> columns_;
  std::uint32_t shards_ = 1;
  bool grouped_ = false;
  std::map<std::size_t, std::vector<std::int64_t>> deleted_;  // by position; sorted
};

class IncomingFiles;

/// All tables of a restore point put together, as files of a new checkpoint. One use, one thread;
/// borrows the chain and outlives the files it was added to.
class MergedTables {
 public:
  static Result<std::unique_ptr<MergedTables>> Open(Store* store,
                                                    const std::vector<OpenCheckpoint*>& chain);

  /// Adds __lookup_table__/<participant>.safetensors for each participant that has one in the last
  /// checkpoint of the chain. Each gets a run of shards of every table; which one does not matter
  /// to a restore, which goes by shards. Tensors of no table stay as they are in the last one.
  Status AddTo(IncomingFiles* files);
  /// After AddTo: the sums for the manifest.
  const std::vector<ManifestTable>& facts() const { return facts_; }
  const std::vector<std::unique_ptr<MergedTable>>& tables() const { return tables_; }

 private:
  MergedTables() = default;

  OpenCheckpoint* tip_ = nullptr;
  std::vector<std::unique_ptr<StoredBytes>> bytes_;  // of the chain
  std::vector<std::unique_ptr<MergedTable>> tables_;
  std::vector<ManifestTable> facts_;
};

}  // namespace cairn
