#include <cairn/table_restore.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <new>
#include <optional>
#include <utility>

#include "base/status_macros.h"
#include "table/table_cut.h"
#include "table/table_impl.h"

namespace cairn {
namespace {

/// The columns of a part as the loader wants them, with their lengths.
std::vector<StoredColumn> StoredColumns(const TablePart& part) {
  std::vector<StoredColumn> columns;
  for (const TableColumn& column : part.columns) {
    StoredColumn stored{column.name, column.dtype, {}};
    switch (column.group) {
      case TableGroup::kRows:
        stored.shape = {part.rows};
        break;
      case TableGroup::kDeleted:
        stored.shape = {part.deleted};
        break;
      case TableGroup::kPending:
        stored.shape = {part.pending};
        break;
      case TableGroup::kPacked:
        break;
    }
    stored.shape.insert(stored.shape.end(), column.entry_shape.begin(), column.entry_shape.end());
    columns.push_back(std::move(stored));
  }
  columns.push_back({"shard_offsets", DType::kI64, {part.shard_offsets.size()}});
  return columns;
}

/// A column of a block, copied: the engine promises no alignment.
template <typename T>
std::vector<T> Copy(const TablePart& part, const TableBlock& block, std::string_view name) {
  for (std::size_t c = 0; c < part.columns.size(); ++c) {
    if (part.columns[c].name != name || part.columns[c].group != block.group) continue;
    std::vector<T> out(block.columns[c].size() / sizeof(T));
    if (!out.empty()) std::memcpy(out.data(), block.columns[c].data(), out.size() * sizeof(T));
    return out;
  }
  return {};
}

std::span<const std::byte> Borrow(const TablePart& part, const TableBlock& block,
                                  std::string_view name) {
  for (std::size_t c = 0; c < part.columns.size(); ++c) {
    if (part.columns[c].name == name) return block.columns[c];
  }
  return {};
}

}  // namespace

/// The load of one table.
struct TableLoad {
  Table* table = nullptr;
  std::unique_ptr<TableLoader> loader;
  std::optional<std::size_t> position;  // of the checkpoint that is being read
  std::unique_ptr<TableLoader::Part> part;
  std::vector<std::byte> packed_keys;
  std::optional<std::vector<std::int64_t>> keys;  // unpacked

  void Reset() {
    part = nullptr;
    loader = nullptr;  // leaves the table empty, if it had begun
    position.reset();
  }
  Status AddRows(const TablePart& stored, const TableBlock& block);
};

struct TableRestore::State {
  std::map<std::string, TableLoad> loads;
  std::string twice;  // a name that two tables have
  Options options;
};

TableRestore::TableRestore(std::vector<Table*> tables)
    : TableRestore(std::move(tables), Options{}) {}

TableRestore::TableRestore(std::vector<Table*> tables, const Options& options)
    : state_(std::make_unique<State>()) {
  state_->options = options;
  for (Table* each : tables) {
    TableLoad& load = state_->loads[each->options().name];
    if (load.table != nullptr) state_->twice = each->options().name;
    load.table = each;
  }
}

TableRestore::~TableRestore() = default;

Status TableRestore::Start(std::vector<TablePart>* parts) {
  if (!state_->twice.empty()) {
    return InvalidArgumentError("two tables are called \"" + state_->twice + "\"");
  }
  // A restore point before this one was damaged: what came of it goes.
  for (auto& [name, load] : state_->loads) load.Reset();
  std::map<std::string, bool> stored;
  std::vector<std::string> problems;
  for (TablePart& part : *parts) {
    const auto it = state_->loads.find(part.table);
    if (it == state_->loads.end()) {
      part.wanted.clear();
      if (!state_->options.ignore_others && !stored[part.table]) {
        problems.push_back("table \"" + part.table + "\" is stored and not given");
      }
      stored[part.table] = true;
      continue;
    }
    stored[part.table] = true;
    const auto* table = dynamic_cast<table::TableImpl*>(it->second.table);
    if (table == nullptr) {
      return InvalidArgumentError("only tables made by Table::Make can be restored");
    }
    const Status fits = table::CheckStored(table, StoredColumns(part), part.shard_offsets);
    if (fits.reason() == Reason::kMismatch) {
      problems.emplace_back(fits.message());
    } else if (!fits.ok()) {
      return fits;
    }
    const ShardRange own = it->second.table->options().shards;
    part.wanted = {{own.begin, own.end}};
  }
  for (const auto& [name, load] : state_->loads) {
    if (!stored.contains(name)) problems.push_back("table \"" + name + "\" is not stored");
  }
  if (problems.empty()) return Status::Ok();
  return MismatchError(fmt::format("{}", fmt::join(problems, "; ")));
}

Status TableRestore::Begin(const TablePart& part) {
  const auto it = state_->loads.find(part.table);
  if (it == state_->loads.end()) return Status::Ok();
  TableLoad& load = it->second;
  if (load.loader == nullptr) {
    ASSIGN_OR_RETURN(load.loader, TableLoader::Begin(load.table, {.merge = state_->options.merge}));
  }
  if (load.position != part.position) {
    RETURN_IF_ERROR(
        load.loader->BeginCheckpoint(part.increment ? CutKind::kConsecutive : CutKind::kFull));
    load.position = part.position;
  }
  load.packed_keys.clear();
  load.keys.reset();
  ASSIGN_OR_RETURN(load.part, load.loader->BeginPart(StoredColumns(part), part.shard_offsets));
  return Status::Ok();
}

Status TableLoad::AddRows(const TablePart& stored, const TableBlock& block) {
  std::vector<std::int64_t> own_keys;
  std::span<const std::int64_t> block_keys;
  if (packed_keys.empty()) {
    own_keys = Copy<std::int64_t>(stored, block, "keys");
    block_keys = own_keys;
  } else {
    if (!keys) {
      ASSIGN_OR_RETURN(keys, DecodeTableKeys(packed_keys, stored.rows));
    }
    if (block.first > keys->size() || block.count > keys->size() - block.first) {
      return InternalError("a block of rows that the part does not have");
    }
    block_keys = std::span(*keys).subspan(block.first, block.count);
  }
  const auto frequency = Copy<std::int64_t>(stored, block, "frequency");
  const auto version = Copy<std::int64_t>(stored, block, "version");
  const auto scale_name = [](const std::string& name) {
    return name + std::string(table::kScaleSuffix);
  };
  const auto value_scale = Copy<float>(stored, block, scale_name("values"));
  std::vector<std::vector<float>> slot_scale;
  RowBlock rows;
  rows.first = block.first;
  rows.keys = block_keys;
  rows.frequency = frequency;
  rows.version = version;
  rows.values = Borrow(stored, block, "values");
  rows.value_scale = value_scale;
  for (const SlotSpec& slot : table->slots()) {
    rows.slots.push_back(Borrow(stored, block, "slot/" + slot.name));
    slot_scale.push_back(Copy<float>(stored, block, scale_name("slot/" + slot.name)));
  }
  for (const auto& scale : slot_scale) rows.slot_scale.emplace_back(scale);
  return part->AddRows(rows);
}

Status TableRestore::Block(const TablePart& part, const TableBlock& block) {
  const auto it = state_->loads.find(part.table);
  if (it == state_->loads.end()) return Status::Ok();
  TableLoad& load = it->second;
  try {
    switch (block.group) {
      case TableGroup::kPacked: {
        const auto bytes = Borrow(part, block, table::kCompressedKeys);
        load.packed_keys.insert(load.packed_keys.end(), bytes.begin(), bytes.end());
        return Status::Ok();
      }
      case TableGroup::kDeleted:
        return load.loader->AddDeleted(Copy<std::int64_t>(part, block, "deleted"));
      case TableGroup::kPending:
        return load.loader->AddPending(Copy<std::int64_t>(part, block, "pending_keys"),
                                       Copy<std::int64_t>(part, block, "pending_counts"),
                                       Copy<std::int64_t>(part, block, "pending_versions"));
      case TableGroup::kRows:
        return load.AddRows(part, block);
    }
  } catch (const std::bad_alloc&) {
    return ResourceExhaustedError("no memory to restore table \"" + part.table + "\"");
  }
  return Status::Ok();
}

Status TableRestore::End(const TablePart& part) {
  const auto it = state_->loads.find(part.table);
  if (it != state_->loads.end()) it->second.part = nullptr;
  return Status::Ok();
}

Status TableRestore::Finish() {
  for (auto& [name, load] : state_->loads) {
    if (load.loader == nullptr) {
      return FailedPreconditionError("table \"" + name + "\" was not restored");
    }
  }
  Status status;
  for (auto& [name, load] : state_->loads) {
    const Status finished = load.loader->Finish();
    if (status.ok()) status = finished;
    load.Reset();
  }
  return status;
}

TableFacts FactsOf(const TableCut& cut) {
  const TableSummary& summary = cut.summary();
  return {.name = summary.name,
          .dim = summary.dim,
          .dtype = summary.dtype,
          .rows = summary.rows,
          .deleted = summary.deleted};
}

}  // namespace cairn
