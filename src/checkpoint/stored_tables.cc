#include "checkpoint/stored_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "base/status_macros.h"
#include "checkpoint/names.h"
#include "checkpoint/restore.h"
#include "format/safetensors.h"

namespace cairn {
namespace {

constexpr std::string_view kSafetensors = ".safetensors";
constexpr std::uint64_t kMaxShards = 1u << 20;

TableGroup GroupOf(std::string_view column) {
  if (column == kDeletedColumn || column.starts_with("deleted_")) return TableGroup::kDeleted;
  if (column.starts_with("pending_")) return TableGroup::kPending;
  if (column.ends_with(kPackedSuffix)) return TableGroup::kPacked;
  return TableGroup::kRows;
}

/// The table that a tensor belongs to: `<table>/<column>`. No table's name continues another's
/// (CheckTableFacts), so at most one fits.
const ManifestTable* TableOf(const Manifest& manifest, std::string_view tensor) {
  for (const ManifestTable& table : manifest.tables) {
    if (tensor.size() > table.name.size() + 1 && tensor.starts_with(table.name) &&
        tensor[table.name.size()] == '/') {
      return &table;
    }
  }
  return nullptr;
}

Result<TableColumn> Describe(std::string name, const StoredTensor& tensor) {
  if (tensor.shape.empty() || tensor.pieces.size() != 1) {
    return CorruptionError("column " + name + " is no list of entries");
  }
  TableColumn column;
  column.name = std::move(name);
  column.group = GroupOf(column.name);
  column.dtype = tensor.dtype;
  column.entry_shape.assign(tensor.shape.begin() + 1, tensor.shape.end());
  auto bytes = TensorBytes(column.dtype, column.entry_shape);
  if (!bytes.ok()) {
    return CorruptionError("column " + column.name + ": " + std::string(bytes.status().message()));
  }
  column.entry_bytes = *bytes;
  return column;
}

/// Builds one StoredTable from the columns of a file.
class TableBuilder {
 public:
  explicit TableBuilder(StoredTable table) : table_(std::move(table)) {}

  Status Add(std::string name, const StoredTensor& tensor) {
    ASSIGN_OR_RETURN(TableColumn column, Describe(std::move(name), tensor));
    if (column.name == kShardOffsetsColumn) {
      offsets_ = tensor;
      return Status::Ok();
    }
    const bool keys = column.name == kKeysColumn || column.name == kDeletedColumn ||
                      column.name == kPendingKeysColumn;
    if (keys && (column.dtype != DType::kI64 || !column.entry_shape.empty())) {
      return CorruptionError("column " + column.name + " does not hold int64 keys");
    }
    const auto [it, fresh] =
        entries_.try_emplace(column.group, std::pair(column.name, tensor.shape[0]));
    const bool alone = column.group == TableGroup::kPacked;
    if (!fresh && !alone && it->second.second != tensor.shape[0]) {
      return CorruptionError(fmt::format("columns {} and {} have {} and {} entries",
                                         it->second.first, column.name, it->second.second,
                                         tensor.shape[0]));
    }
    table_.file = tensor.pieces.front().file;
    table_.begin.push_back(tensor.pieces.front().file_offset);
    table_.entries.push_back(tensor.shape[0]);
    table_.part.columns.push_back(std::move(column));
    return Status::Ok();
  }

  Result<StoredTable> Finish(Store* store, const OpenCheckpoint& checkpoint) {
    TablePart& part = table_.part;
    part.rows = entries_.contains(TableGroup::kRows) ? entries_[TableGroup::kRows].second : 0;
    part.deleted =
        entries_.contains(TableGroup::kDeleted) ? entries_[TableGroup::kDeleted].second : 0;
    part.pending =
        entries_.contains(TableGroup::kPending) ? entries_[TableGroup::kPending].second : 0;
    const bool keys = table_.Find(kKeysColumn) >= 0 ||
                      table_.Find(std::string(kKeysColumn) + std::string(kPackedSuffix)) >= 0;
    if (part.rows > 0 && !keys) return CorruptionError("has no keys");
    part.wanted = {{0, 1}};
    if (offsets_) RETURN_IF_ERROR(ReadOffsets(store, checkpoint));
    return std::move(table_);
  }

 private:
  Status ReadOffsets(Store* store, const OpenCheckpoint& checkpoint) {
    TablePart& part = table_.part;
    if (offsets_->dtype != DType::kI64 || offsets_->shape.size() != 1 || offsets_->shape[0] < 2 ||
        offsets_->shape[0] > kMaxShards + 1) {
      return CorruptionError("shard_offsets is no list of int64");
    }
    std::vector<std::int64_t> values(offsets_->shape[0]);
    const ByteRun run{.file = offsets_->pieces.front().file,
                      .file_offset = offsets_->pieces.front().file_offset,
                      .bytes = values.size() * sizeof(std::int64_t),
                      .to = reinterpret_cast<std::byte*>(values.data())};
    RETURN_IF_ERROR(ReadRuns(store, checkpoint, {&run, 1}, {}));
    if (values.front() != 0 || !std::is_sorted(values.begin(), values.end()) ||
        static_cast<std::uint64_t>(values.back()) != part.rows) {
      return CorruptionError(
          fmt::format("shard_offsets do not divide the {} rows among shards", part.rows));
    }
    part.shard_offsets = std::move(values);
    part.wanted = {{0, part.shards()}};
    return Status::Ok();
  }

  StoredTable table_;
  std::map<TableGroup, std::pair<std::string, std::uint64_t>> entries_;  // a column, its length
  std::optional<StoredTensor> offsets_;
};

}  // namespace

std::ptrdiff_t StoredTable::Find(std::string_view column) const {
  for (std::size_t i = 0; i < part.columns.size(); ++i) {
    if (part.columns[i].name == column) return static_cast<std::ptrdiff_t>(i);
  }
  return -1;
}

std::vector<std::string> TableParticipants(const Manifest& manifest) {
  std::vector<std::string> participants;
  const std::string prefix = names::Path(names::kTables, "");
  for (const ManifestFile& file : manifest.files) {
    if (!file.path.starts_with(prefix) || !file.path.ends_with(kSafetensors)) continue;
    participants.push_back(
        file.path.substr(prefix.size(), file.path.size() - prefix.size() - kSafetensors.size()));
  }
  return participants;
}

Result<std::vector<StoredTable>> ReadTables(Store* store, OpenCheckpoint* checkpoint,
                                            std::size_t position) {
  const Manifest& manifest = checkpoint->manifest();
  std::vector<StoredTable> tables;
  for (const std::string& participant : TableParticipants(manifest)) {
    ASSIGN_OR_RETURN(const TensorMap tensors,
                     checkpoint->ReadCatalog(TensorGroup::kTable, participant));
    std::map<std::string, TableBuilder> builders;
    const auto where = [&](const std::string& table) {
      return names::Path(checkpoint->directory(), names::kTables) + "/" + participant + ", table " +
             table;
    };
    for (const auto& [name, tensor] : tensors) {
      const ManifestTable* known = TableOf(manifest, name);
      if (known == nullptr) continue;
      StoredTable fresh;
      fresh.part.table = known->name;
      fresh.part.participant = participant;
      fresh.part.checkpoint = manifest.id;
      fresh.part.step = manifest.step;
      fresh.part.increment = manifest.kind == CheckpointKind::kIncrement;
      fresh.part.position = position;
      auto& builder = builders.try_emplace(known->name, std::move(fresh)).first->second;
      RETURN_IF_ERROR(
          builder.Add(name.substr(known->name.size() + 1), tensor).WithContext(where(known->name)));
    }
    for (auto& [name, builder] : builders) {
      auto table = builder.Finish(store, *checkpoint);
      if (!table.ok()) return table.status().WithContext(where(name));
      tables.push_back(*std::move(table));
    }
  }
  return tables;
}

Result<std::vector<std::string>> LooseTableTensors(OpenCheckpoint* checkpoint,
                                                   const std::string& participant) {
  ASSIGN_OR_RETURN(const TensorMap tensors,
                   checkpoint->ReadCatalog(TensorGroup::kTable, participant));
  std::vector<std::string> loose;
  for (const auto& [name, tensor] : tensors) {
    if (TableOf(checkpoint->manifest(), name) == nullptr) loose.push_back(name);
  }
  return loose;
}

Status CheckTableFacts(const std::vector<TableFacts>& tables, const std::vector<Tensor>& tensors) {
  std::map<std::string_view, const TableFacts*> by_name;
  for (const TableFacts& table : tables) {
    if (table.name.empty()) return InvalidArgumentError("a table has no name");
    if (!by_name.emplace(table.name, &table).second) {
      return InvalidArgumentError("two tables are called \"" + table.name + "\"");
    }
  }
  for (auto it = by_name.begin(); it != by_name.end(); ++it) {
    const std::string prefix = std::string(it->first) + "/";
    const auto longer = by_name.lower_bound(prefix);
    if (longer != by_name.end() && longer->first.starts_with(prefix)) {
      return InvalidArgumentError("the table \"" + std::string(longer->first) +
                                  "\" is called like a column of the table \"" +
                                  std::string(it->first) + "\"; rename one of them");
    }
  }
  for (const Tensor& tensor : tensors) {
    if (tensor.group != TensorGroup::kTable || tensor.shape.empty()) continue;
    for (const auto& [column, facts_of] :
         {std::pair{kKeysColumn, &TableFacts::rows}, {kDeletedColumn, &TableFacts::deleted}}) {
      if (!tensor.name.ends_with("/" + std::string(column))) continue;
      const std::string_view name =
          std::string_view(tensor.name).substr(0, tensor.name.size() - column.size() - 1);
      const auto it = by_name.find(name);
      if (it == by_name.end() || it->second->*facts_of == tensor.shape[0]) continue;
      return InvalidArgumentError(
          fmt::format("the table \"{}\" is said to have {} {}, its tensor "
                      "\"{}\" has {}",
                      name, it->second->*facts_of, column == kKeysColumn ? "rows" : "deleted keys",
                      tensor.name, tensor.shape[0]));
    }
  }
  return Status::Ok();
}

}  // namespace cairn
