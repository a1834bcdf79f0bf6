#include "checkpoint/table_merge.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

#include "base/status_macros.h"
#include "checkpoint/names.h"
#include "checkpoint/transfer.h"
#include "format/safetensors.h"

namespace cairn {
namespace {

// Chunks kept per checkpoint of a chain: its rows are read roughly front to back, a column at a
// time, 8-bit ones together with their scales.
constexpr std::size_t kChunksKept = 4;

bool SameColumn(const TableColumn& a, const TableColumn& b) {
  return a.name == b.name && a.dtype == b.dtype && a.entry_shape == b.entry_shape;
}

const TableColumn* FindColumn(const std::vector<TableColumn>& columns, const std::string& name) {
  const auto it = std::find_if(columns.begin(), columns.end(),
                               [&](const TableColumn& column) { return column.name == name; });
  return it == columns.end() ? nullptr : &*it;
}

/// The dtype of a table's weights, as the manifest tells it.
DType WeightsOf(const Manifest& manifest, const std::string& table) {
  for (const ManifestTable& one : manifest.tables) {
    if (one.name == table) return one.dtype;
  }
  return DType::kF32;
}

/// A run of entries that stand behind each other in one member.
struct Run {
  std::uint32_t member = 0;
  std::uint64_t first = 0;
  std::uint64_t count = 0;
};

std::vector<Run> RunsOf(const std::vector<MergedTable::Place>& places) {
  std::vector<Run> runs;
  for (const MergedTable::Place& place : places) {
    if (!runs.empty() && runs.back().member == place.member &&
        runs.back().first + runs.back().count == place.entry) {
      ++runs.back().count;
    } else {
      runs.push_back({place.member, place.entry, 1});
    }
  }
  return runs;
}

/// One column of merged entries, front to back: shards [next, end) one after the other, or all
/// pending entries.
class MergedColumnSource final : public TensorSource {
 public:
  MergedColumnSource(MergedTable* table, TableColumn column, std::uint32_t begin, std::uint32_t end)
      : table_(table),
        column_(std::move(column)),
        first_shard_(begin),
        next_shard_(begin),
        end_shard_(end) {}

  Status Fill(std::uint64_t offset, std::span<std::byte> into) override {
    if (offset == 0 && position_ > 0) {
      // Written once more, after a failure.
      next_shard_ = first_shard_;
      runs_.clear();
      at_ = done_ = position_ = 0;
    }
    if (offset != position_) return InternalError("merged columns are read in order");
    position_ += into.size();
    while (!into.empty()) {
      if (at_ == runs_.size()) {
        RETURN_IF_ERROR(Load());
        continue;
      }
      const Run& run = runs_[at_];
      const std::uint64_t bytes = run.count * column_.entry_bytes - done_;
      const std::size_t n = std::min<std::uint64_t>(bytes, into.size());
      RETURN_IF_ERROR(ReadPart(run, n, into.first(n)));
      into = into.subspan(n);
      done_ += n;
      if (done_ == run.count * column_.entry_bytes) {
        ++at_;
        done_ = 0;
      }
    }
    return Status::Ok();
  }

 private:
  /// A request may end within an entry.
  Status ReadPart(const Run& run, std::size_t bytes, std::span<std::byte> into) {
    const std::uint64_t size = column_.entry_bytes;
    const std::uint64_t first = done_ / size;
    const std::uint64_t skip = done_ % size;
    if (skip == 0 && bytes % size == 0) {
      return table_->Read(column_, run.member, run.first + first, into);
    }
    const std::uint64_t entries = (skip + bytes + size - 1) / size;
    scratch_.resize(entries * size);
    RETURN_IF_ERROR(table_->Read(column_, run.member, run.first + first, scratch_));
    std::memcpy(into.data(), scratch_.data() + skip, bytes);
    return Status::Ok();
  }

  Status Load() {
    at_ = 0;
    if (column_.group == TableGroup::kPending) {
      if (std::exchange(next_shard_, end_shard_) == end_shard_) return Behind();
      ASSIGN_OR_RETURN(const auto places, table_->Pending());
      runs_ = RunsOf(places);
      return Status::Ok();
    }
    if (next_shard_ == end_shard_) return Behind();
    ASSIGN_OR_RETURN(const auto places, table_->Rows(next_shard_++));
    runs_ = RunsOf(places);
    return Status::Ok();
  }

  static Status Behind() { return InternalError("read behind the end of a merged column"); }

  MergedTable* const table_;
  const TableColumn column_;
  const std::uint32_t first_shard_;
  std::uint32_t next_shard_;
  const std::uint32_t end_shard_;
  std::uint64_t position_ = 0;  // in the column
  std::vector<Run> runs_;
  std::size_t at_ = 0;
  std::uint64_t done_ = 0;  // bytes of runs_[at_]
  std::vector<std::byte> scratch_;
};

/// Bytes in memory.
class BytesSource final : public TensorSource {
 public:
  explicit BytesSource(std::string bytes) : bytes_(std::move(bytes)) {}
  Status Fill(std::uint64_t offset, std::span<std::byte> into) override {
    std::memcpy(into.data(), bytes_.data() + offset, into.size());
    return Status::Ok();
  }

 private:
  const std::string bytes_;
};

/// The tensors of one file in the making.
struct FileBuilder {
  std::vector<TensorEntry> entries;
  std::vector<std::unique_ptr<TensorSource>> sources;

  Status Add(std::string name, DType dtype, std::vector<std::uint64_t> shape,
             std::unique_ptr<TensorSource> source) {
    ASSIGN_OR_RETURN(const std::uint64_t bytes, TensorBytes(dtype, shape));
    TensorEntry entry;
    entry.name = std::move(name);
    entry.dtype = dtype;
    entry.shape = std::move(shape);
    entry.begin = entries.empty() ? 0 : entries.back().end;
    entry.end = entry.begin + bytes;
    entries.push_back(std::move(entry));
    sources.push_back(std::move(source));
    return Status::Ok();
  }
};

/// Adds one table's shards [begin, end) to a file.
Status AddShards(MergedTable* table, std::uint32_t begin, std::uint32_t end, bool with_pending,
                 FileBuilder* file, ManifestTable* facts) {
  std::vector<std::int64_t> offsets(table->shards() + 1, 0);
  for (std::uint32_t shard = begin; shard < end; ++shard) {
    ASSIGN_OR_RETURN(const auto rows, table->Rows(shard));
    offsets[shard + 1] = static_cast<std::int64_t>(rows.size());
  }
  for (std::size_t i = 1; i < offsets.size(); ++i) offsets[i] += offsets[i - 1];
  const auto rows = static_cast<std::uint64_t>(offsets.back());
  std::uint64_t pending = 0;
  if (with_pending) {
    ASSIGN_OR_RETURN(const auto places, table->Pending());
    pending = places.size();
  }
  facts->rows += rows;
  for (const TableColumn& column : table->columns()) {
    std::uint64_t entries = 0;
    if (column.group == TableGroup::kRows) entries = rows;
    if (column.group == TableGroup::kPending) entries = pending;
    std::vector<std::uint64_t> shape = {entries};
    shape.insert(shape.end(), column.entry_shape.begin(), column.entry_shape.end());
    RETURN_IF_ERROR(file->Add(
        names::Path(table->name(), column.name), column.dtype, std::move(shape),
        std::make_unique<MergedColumnSource>(
            table, column, begin, column.group == TableGroup::kPending ? begin + 1 : end)));
  }
  if (!table->has_shard_offsets()) return Status::Ok();
  std::string bytes(offsets.size() * sizeof(std::int64_t), '\0');
  std::memcpy(bytes.data(), offsets.data(), bytes.size());
  return file->Add(names::Path(table->name(), kShardOffsetsColumn), DType::kI64, {offsets.size()},
                   std::make_unique<BytesSource>(std::move(bytes)));
}

}  // namespace

Result<std::unique_ptr<MergedTable>> MergedTable::Make(std::vector<PlainPart> members) {
  std::unique_ptr<MergedTable> merged(new MergedTable());
  merged->members_ = std::move(members);
  const TablePart& first = merged->members_.front().part();
  merged->grouped_ = true;
  for (const PlainPart& member : merged->members_) {
    merged->grouped_ =
        merged->grouped_ && member.part().shards() == first.shards() && first.shards() > 0;
  }
  merged->shards_ = merged->grouped_ ? first.shards() : 1;
  RETURN_IF_ERROR(merged->CheckColumns());
  RETURN_IF_ERROR(merged->ReadDeleted());
  return merged;
}

Status MergedTable::CheckColumns() {
  for (const PlainPart& member : members_) {
    const TablePart& part = member.part();
    const auto otherwise = [&](const TableColumn& column) {
      return FailedPreconditionError(fmt::format(
          "table {}: step {} stores its column {} in another way than the full checkpoint ({}); "
          "rows can then only be put together by the table itself: restore it and save in full",
          name(), part.step, column.name, DTypeName(column.dtype)));
    };
    for (const TableColumn& column : member.columns()) {
      if (column.group == TableGroup::kPacked) return otherwise(column);
      const TableColumn* known = FindColumn(columns_, column.name);
      if (known != nullptr && !SameColumn(*known, column)) return otherwise(column);
      if (known != nullptr) continue;
      // A part without rows may lack columns; one with rows has them all.
      if (column.group == TableGroup::kRows && &member != &members_.front()) {
        return otherwise(column);
      }
      columns_.push_back(column);
    }
    for (const TableColumn& column : columns_) {
      if (column.group == TableGroup::kRows && part.rows > 0 &&
          member.Find(column.name) == nullptr) {
        return otherwise(column);
      }
    }
  }
  return Status::Ok();
}

Status MergedTable::ReadDeleted() {
  for (PlainPart& member : members_) {
    const TablePart& part = member.part();
    ASSIGN_OR_RETURN(const std::vector<std::int64_t> keys,
                     member.Keys(kDeletedColumn, 0, part.deleted));
    auto& all = deleted_[part.position];
    all.insert(all.end(), keys.begin(), keys.end());
  }
  for (auto& [position, keys] : deleted_) std::sort(keys.begin(), keys.end());
  return Status::Ok();
}

bool MergedTable::DeletedAfter(std::int64_t key, std::size_t position) const {
  for (auto it = deleted_.upper_bound(position); it != deleted_.end(); ++it) {
    if (std::binary_search(it->second.begin(), it->second.end(), key)) return true;
  }
  return false;
}

Result<std::vector<MergedTable::Place>> MergedTable::Newest(std::vector<Place> all) const {
  std::sort(all.begin(), all.end(), [this](const Place& a, const Place& b) {
    return a.key != b.key ? a.key < b.key : PositionOf(a) > PositionOf(b);
  });
  std::vector<Place> newest;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const bool again = i > 0 && all[i - 1].key == all[i].key;
    if (again && PositionOf(all[i - 1]) == PositionOf(all[i])) {
      return CorruptionError(fmt::format("table {}: step {} has the key {} twice", name(),
                                         members_[all[i].member].part().step, all[i].key));
    }
    if (!again && !DeletedAfter(all[i].key, PositionOf(all[i]))) newest.push_back(all[i]);
  }
  std::sort(newest.begin(), newest.end(), [](const Place& a, const Place& b) {
    return std::tie(a.member, a.entry) < std::tie(b.member, b.entry);
  });
  return newest;
}

Result<std::vector<MergedTable::Place>> MergedTable::Rows(std::uint32_t shard) {
  std::vector<Place> all;
  for (std::uint32_t m = 0; m < members_.size(); ++m) {
    const TablePart& part = members_[m].part();
    std::uint64_t first = 0;
    std::uint64_t end = part.rows;
    if (grouped_) {
      first = static_cast<std::uint64_t>(part.shard_offsets[shard]);
      end = static_cast<std::uint64_t>(part.shard_offsets[shard + 1]);
    }
    ASSIGN_OR_RETURN(const std::vector<std::int64_t> keys,
                     members_[m].Keys(kKeysColumn, first, end - first));
    for (std::uint64_t i = 0; i < keys.size(); ++i) all.push_back({keys[i], m, first + i});
  }
  return Newest(std::move(all));
}

Result<std::vector<MergedTable::Place>> MergedTable::Pending() {
  std::vector<Place> all;
  for (std::uint32_t m = 0; m < members_.size(); ++m) {
    ASSIGN_OR_RETURN(const std::vector<std::int64_t> keys,
                     members_[m].Keys(kPendingKeysColumn, 0, members_[m].part().pending));
    for (std::uint64_t i = 0; i < keys.size(); ++i) all.push_back({keys[i], m, i});
  }
  if (all.empty()) return all;
  ASSIGN_OR_RETURN(std::vector<Place> newest, Newest(std::move(all)));
  // What became a row since is pending no longer.
  for (PlainPart& member : members_) {
    const TablePart& part = member.part();
    if (part.position == 0) continue;
    ASSIGN_OR_RETURN(std::vector<std::int64_t> keys, member.Keys(kKeysColumn, 0, part.rows));
    std::sort(keys.begin(), keys.end());
    std::erase_if(newest, [&](const Place& place) {
      return PositionOf(place) < part.position &&
             std::binary_search(keys.begin(), keys.end(), place.key);
    });
  }
  return newest;
}

Status MergedTable::Read(const TableColumn& column, std::uint32_t member, std::uint64_t entry,
                         std::span<std::byte> into) {
  return members_[member].Read(column.name, entry, into);
}

Result<std::unique_ptr<MergedTables>> MergedTables::Open(
    Store* store, const std::vector<OpenCheckpoint*>& chain) {
  std::unique_ptr<MergedTables> merged(new MergedTables());
  merged->tip_ = chain.back();
  std::map<std::string, std::vector<PlainPart>> by_name;
  for (std::size_t i = 0; i < chain.size(); ++i) {
    merged->bytes_.push_back(std::make_unique<StoredBytes>(store, chain[i], kChunksKept));
    ASSIGN_OR_RETURN(std::vector<StoredTable> tables, ReadTables(store, chain[i], i));
    for (StoredTable& table : tables) {
      const std::string name = table.part.table;
      by_name[name].emplace_back(std::move(table), merged->bytes_.back().get(),
                                 WeightsOf(chain[i]->manifest(), name));
    }
  }
  for (auto& [name, members] : by_name) {
    ASSIGN_OR_RETURN(auto table, MergedTable::Make(std::move(members)));
    merged->tables_.push_back(std::move(table));
  }
  return merged;
}

Status MergedTables::AddTo(IncomingFiles* files) {
  const std::vector<std::string> participants = TableParticipants(tip_->manifest());
  facts_ = tip_->manifest().tables;
  for (ManifestTable& table : facts_) table.rows = table.deleted = 0;
  const auto share = [&](std::uint32_t shards, std::size_t i) {
    return static_cast<std::uint32_t>(std::uint64_t{shards} * i / participants.size());
  };
  for (std::size_t i = 0; i < participants.size(); ++i) {
    FileBuilder file;
    for (const auto& table : tables_) {
      const auto facts = std::find_if(facts_.begin(), facts_.end(), [&](const ManifestTable& one) {
        return one.name == table->name();
      });
      if (facts == facts_.end()) continue;  // the job has given the table up
      RETURN_IF_ERROR(AddShards(table.get(), share(table->shards(), i),
                                share(table->shards(), i + 1), /*with_pending=*/i == 0, &file,
                                &*facts));
    }
    ASSIGN_OR_RETURN(const std::vector<std::string> loose,
                     LooseTableTensors(tip_, participants[i]));
    ASSIGN_OR_RETURN(const TensorMap stored,
                     tip_->ReadCatalog(TensorGroup::kTable, participants[i]));
    for (const std::string& name : loose) {
      const StoredTensor& tensor = stored.at(name);
      RETURN_IF_ERROR(file.Add(name, tensor.dtype, tensor.shape,
                               std::make_unique<StoredArraySource>(bytes_.back().get(), tensor)));
    }
    ASSIGN_OR_RETURN(std::string head, EncodeSafetensorsHeader(file.entries, {}));
    files->AddTensors(names::Path(names::kTables, participants[i] + ".safetensors"),
                      participants[i], std::move(head), file.entries, std::move(file.sources));
  }
  return Status::Ok();
}

}  // namespace cairn
