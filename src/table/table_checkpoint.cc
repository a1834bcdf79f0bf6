#include <cairn/table_checkpoint.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <new>
#include <set>
#include <utility>

#include "base/log.h"
#include "base/status_macros.h"
#include "checkpoint/save_turn.h"
#include "format/json.h"
#include "table/array_filler.h"
#include "table/joined_pieces.h"

namespace cairn {
namespace {

std::vector<StoredColumn> ColumnsOf(const TablePart& part) {
  std::vector<StoredColumn> columns;
  for (const TableColumn& column : part.columns) {
    const std::uint64_t entries = column.group == TableGroup::kRows      ? part.rows
                                  : column.group == TableGroup::kDeleted ? part.deleted
                                                                         : part.pending;
    StoredColumn stored{column.name, column.dtype, {entries}};
    stored.shape.insert(stored.shape.end(), column.entry_shape.begin(), column.entry_shape.end());
    columns.push_back(std::move(stored));
  }
  columns.push_back({"shard_offsets", DType::kI64, {part.shard_offsets.size()}});
  return columns;
}

/// A column's entries as numbers. Blocks need not be aligned for them.
template <typename T>
std::vector<T> Numbers(std::span<const std::byte> bytes) {
  std::vector<T> numbers(bytes.size() / sizeof(T));
  if (!numbers.empty()) std::memcpy(numbers.data(), bytes.data(), numbers.size() * sizeof(T));
  return numbers;
}

CutKind CutOf(SaveKind kind) {
  switch (kind) {
    case SaveKind::kFull:
      return CutKind::kFull;
    case SaveKind::kCumulative:
      return CutKind::kCumulative;
    case SaveKind::kConsecutive:
      return CutKind::kConsecutive;
  }
  return CutKind::kFull;
}

/// The tensors that are memory, at this instant: where the caller's may change when Save returns.
Status CopyDense(SaveRequest* request, std::vector<std::vector<std::byte>>* copies) {
  if (request->lazy || request->stream) return Status::Ok();
  try {
    for (Tensor& tensor : request->tensors) {
      if (tensor.data == nullptr) continue;
      std::uint64_t bits = static_cast<std::uint64_t>(DTypeBits(tensor.dtype));
      for (const std::uint64_t extent : tensor.shape) bits *= extent;
      const auto* const from = static_cast<const std::byte*>(tensor.data);
      copies->emplace_back(from, from + (bits + 7) / 8);
      tensor.data = copies->back().data();
    }
  } catch (const std::bad_alloc&) {
    return ResourceExhaustedError("no memory for a copy of the tensors");
  }
  return Status::Ok();
}

/// What this participant's tables have besides rows (docs/format/tables.md); there when there is
/// something to say.
constexpr char kTablesFile[] = "tables.json";

/// Learning rates that the training has set: others are the optimizers'.
std::string EncodeRates(const std::vector<Table*>& tables) {
  Value::Object rates;
  for (const Table* table : tables) {
    const float rate = table->learning_rate();
    if (rate == table->options().optimizer->learning_rate()) continue;
    if (!std::isfinite(rate) || rate < 0) continue;  // none that a restore would take
    rates[table->options().name] = Value::Object{{"learning_rate", static_cast<double>(rate)}};
  }
  return rates.empty() ? "" : EncodeJson(rates);
}

Status RestoreRates(const std::map<std::string, std::string>& state_files,
                    const std::vector<Table*>& tables) {
  Value stored = Value::Object{};
  if (const auto file = state_files.find(kTablesFile); file != state_files.end()) {
    ASSIGN_OR_RETURN(stored, DecodeJson(file->second));
  }
  for (Table* table : tables) {
    const std::string& name = table->options().name;
    const float own = table->options().optimizer->learning_rate();
    const float before = table->learning_rate();
    const Value* const said = stored.Find(name);
    const Value* const number = said == nullptr ? nullptr : said->Find("learning_rate");
    const float rate = number == nullptr ? own : static_cast<float>(number->AsDouble(-1));
    if (!std::isfinite(rate) || rate < 0) {
      return CorruptionError(
          fmt::format("{}: table \"{}\" has a learning rate that is none", kTablesFile, name));
    }
    table->set_learning_rate(rate);
    if (rate == before) continue;
    const std::string now =
        fmt::format("table \"{}\": the learning rate is {} again, as it was saved", name, rate);
    // Whoever has set another one here may count on it.
    before == own ? LogInfo(now) : LogWarning(fmt::format("{}, and not {}", now, before));
  }
  return Status::Ok();
}

}  // namespace

Status CheckTables(const std::vector<Table*>& tables, const std::vector<RowTracked*>& arrays) {
  std::set<std::string> names;
  for (const Table* table : tables) {
    if (table == nullptr) return InvalidArgumentError("tables: one is null");
    if (!names.insert(table->options().name).second) {
      return InvalidArgumentError("tables: \"" + table->options().name + "\" is there twice");
    }
  }
  RETURN_IF_ERROR(CheckPieces(arrays));
  for (const RowTracked* array : arrays) {
    if (names.contains(array->options().name)) {
      return InvalidArgumentError("\"" + array->options().name +
                                  "\" is a table and a tracked array; rename one of them");
    }
  }
  return Status::Ok();
}

Status CheckDenseNames(std::span<const std::string_view> dense, const std::vector<Table*>& tables,
                       const std::vector<RowTracked*>& arrays) {
  std::map<std::string_view, const char*> taken;
  for (const Table* table : tables) taken.emplace(table->options().name, "a table");
  for (const RowTracked* array : arrays) taken.emplace(array->options().name, "a tracked array");
  for (const std::string_view name : dense) {
    const auto other = taken.find(name);
    if (other == taken.end()) continue;
    return InvalidArgumentError("\"" + std::string(name) + "\" is " + other->second +
                                " and a dense variable; rename one of them");
  }
  return Status::Ok();
}

// ---------------------------------------------------------------- restore

struct TableFiller::Target {
  Table* table = nullptr;
  std::unique_ptr<TableLoader> loader;
  std::unique_ptr<TableLoader::Part> part;
  std::optional<std::size_t> position;  // of the checkpoint that is being read
  std::vector<std::byte> packed_keys;
  std::vector<std::int64_t> keys;  // unpacked
};

TableFiller::TableFiller(std::vector<Table*> tables, std::vector<RowTracked*> arrays,
                         Options options)
    : options_(options) {
  for (Table* table : tables) {
    targets_.push_back(std::make_unique<Target>());
    targets_.back()->table = table;
  }
  std::map<std::string, std::vector<RowTracked*>> pieces;
  for (RowTracked* piece : arrays) pieces[piece->options().name].push_back(piece);
  for (auto& [name, of_one] : pieces) {
    arrays_.push_back(std::make_unique<table::ArrayFiller>(std::move(of_one)));
  }
}

TableFiller::~TableFiller() = default;

TableFiller::Target* TableFiller::Find(const std::string& table) {
  if (passed_over_.contains(table)) return nullptr;
  for (const auto& target : targets_) {
    if (target->table->options().name == table) return target.get();
  }
  return nullptr;
}

table::ArrayFiller* TableFiller::FindArray(const std::string& name) {
  if (passed_over_.contains(name)) return nullptr;
  for (const auto& array : arrays_) {
    if (array->name() == name) return array.get();
  }
  return nullptr;
}

Status TableFiller::Compare(const std::vector<TablePart>& parts) {
  mismatch_ = {};
  passed_over_.clear();
  std::set<std::string, std::less<>> stored;
  std::set<std::string, std::less<>> unexpected;
  const auto compared = [&](const std::string& name, const Status& fits) {
    if (fits.ok()) return Status::Ok();
    if (fits.reason() != Reason::kMismatch) return fits;
    passed_over_.try_emplace(name, fits.message());
    return Status::Ok();
  };
  for (const TablePart& part : parts) {
    if (passed_over_.contains(part.table)) continue;
    const Target* target = Find(part.table);
    const bool known = target != nullptr || FindArray(part.table) != nullptr;
    (known ? stored : unexpected).insert(part.table);
    if (target == nullptr) continue;
    RETURN_IF_ERROR(compared(
        part.table, TableLoader::Fits(*target->table, ColumnsOf(part), part.shard_offsets)));
  }
  for (const auto& array : arrays_) RETURN_IF_ERROR(compared(array->name(), array->Start(parts)));
  const auto look_for = [&](const std::string& name) {
    if (!stored.contains(name)) mismatch_.missing.push_back(name);
  };
  for (const auto& target : targets_) look_for(target->table->options().name);
  for (const auto& array : arrays_) look_for(array->name());
  mismatch_.unexpected.assign(unexpected.begin(), unexpected.end());
  for (const auto& [name, why] : passed_over_) mismatch_.mismatched.push_back(name + ": " + why);
  return Status::Ok();
}

Status TableFiller::Start(std::vector<TablePart>* parts) {
  RETURN_IF_ERROR(Compare(*parts));
  if (options_.strict) {
    std::string why;
    for (const auto& [name, reason] : passed_over_) why += (why.empty() ? "" : "; ") + reason;
    if (!mismatch_.missing.empty() || !mismatch_.unexpected.empty()) {
      why += fmt::format(
          "{}the tables do not match: not in the checkpoint: [{}]; stored but not asked for: [{}]",
          why.empty() ? "" : "; ", fmt::join(mismatch_.missing, ", "),
          fmt::join(mismatch_.unexpected, ", "));
    }
    if (!why.empty()) return MismatchError(std::move(why));
  }
  for (TablePart& part : *parts) {
    const Target* target = Find(part.table);
    if (target != nullptr) {
      const ShardRange owned = target->table->options().shards;
      part.wanted = {{owned.begin, owned.end}};
    } else if (FindArray(part.table) == nullptr) {
      part.wanted.clear();
    }
  }
  // A second call: what came of the damaged restore point is void.
  for (const auto& target : targets_) {
    target->part = nullptr;
    target->loader = nullptr;
    target->position.reset();
  }
  return Status::Ok();
}

Status TableFiller::Begin(const TablePart& part) {
  Target* target = Find(part.table);
  if (target == nullptr) return Status::Ok();
  if (target->loader == nullptr) {  // not before: until here the restore may still be refused
    ASSIGN_OR_RETURN(target->loader, TableLoader::Begin(target->table, {.merge = options_.merge}));
  }
  if (target->position != part.position) {
    RETURN_IF_ERROR(
        target->loader->BeginCheckpoint(part.increment ? CutKind::kConsecutive : CutKind::kFull));
    target->position = part.position;
  }
  target->packed_keys.clear();
  target->keys.clear();
  ASSIGN_OR_RETURN(target->part, target->loader->BeginPart(ColumnsOf(part), part.shard_offsets));
  return Status::Ok();
}

Status TableFiller::Block(const TablePart& part, const TableBlock& block) {
  if (table::ArrayFiller* array = FindArray(part.table)) return array->Block(part, block);
  Target* target = Find(part.table);
  if (target == nullptr || target->part == nullptr) return Status::Ok();
  const auto column = [&](std::string_view name) -> std::span<const std::byte> {
    for (std::size_t i = 0; i < part.columns.size(); ++i) {
      if (part.columns[i].name == name) return block.columns[i];
    }
    return {};
  };
  switch (block.group) {
    case TableGroup::kDeleted:
      return target->loader->AddDeleted(Numbers<std::int64_t>(column("deleted")));
    case TableGroup::kPending:
      return target->loader->AddPending(Numbers<std::int64_t>(column("pending_keys")),
                                        Numbers<std::int64_t>(column("pending_counts")),
                                        Numbers<std::int64_t>(column("pending_versions")));
    case TableGroup::kPacked: {
      const std::span<const std::byte> bytes = column("keys_zstd");
      target->packed_keys.insert(target->packed_keys.end(), bytes.begin(), bytes.end());
      return Status::Ok();
    }
    case TableGroup::kRows:
      return AddRows(target, part, block);
  }
  return Status::Ok();
}

Status TableFiller::AddRows(Target* target, const TablePart& part, const TableBlock& block) {
  const auto column = [&](const std::string& name) -> std::span<const std::byte> {
    for (std::size_t i = 0; i < part.columns.size(); ++i) {
      if (part.columns[i].name == name) return block.columns[i];
    }
    return {};
  };
  RowBlock rows;
  rows.first = block.first;
  std::vector<std::int64_t> keys;
  if (!target->packed_keys.empty()) {
    if (target->keys.empty()) {
      ASSIGN_OR_RETURN(target->keys, DecodeTableKeys(target->packed_keys, part.rows));
    }
    if (block.first > target->keys.size() || block.count > target->keys.size() - block.first) {
      return CorruptionError("table \"" + part.table + "\": fewer keys than rows");
    }
    rows.keys = std::span(target->keys).subspan(block.first, block.count);
  } else {
    keys = Numbers<std::int64_t>(column("keys"));
    rows.keys = keys;
  }
  const auto frequency = Numbers<std::int64_t>(column("frequency"));
  const auto version = Numbers<std::int64_t>(column("version"));
  rows.frequency = frequency;
  rows.version = version;
  rows.values = column("values");
  const auto value_scale = Numbers<float>(column("values_scale"));
  rows.value_scale = value_scale;
  std::vector<std::vector<float>> scales;
  for (const SlotSpec& slot : target->table->slots()) {
    rows.slots.push_back(column("slot/" + slot.name));
    scales.push_back(Numbers<float>(column("slot/" + slot.name + "_scale")));
  }
  for (const auto& scale : scales) rows.slot_scale.emplace_back(scale);
  return target->part->AddRows(rows);
}

Status TableFiller::Finish() {
  Status first;
  for (const auto& target : targets_) {
    target->part = nullptr;
    if (target->loader == nullptr) continue;
    Status finished = target->loader->Finish();
    if (first.ok()) first = std::move(finished);
    target->loader = nullptr;
  }
  for (const auto& array : arrays_) {
    Status finished = array->Finish();
    if (first.ok()) first = std::move(finished);
  }
  return first;
}

// ---------------------------------------------------------------- save

TableCheckpoints::TableCheckpoints(CheckpointManager* manager, std::vector<Table*> tables,
                                   std::vector<RowTracked*> arrays, Options options)
    : manager_(manager),
      tables_(std::move(tables)),
      arrays_(std::move(arrays)),
      options_(options) {}

TableCheckpoints::~TableCheckpoints() { Wait(); }

bool TableCheckpoints::CanIncrement() const {
  if (base_.empty()) return false;
  const auto has_base = [](const auto* each) { return each->has_base(); };
  return std::all_of(tables_.begin(), tables_.end(), has_base) &&
         std::all_of(arrays_.begin(), arrays_.end(), has_base) && SettledCounts() == settled_;
}

std::vector<std::uint64_t> TableCheckpoints::SettledCounts() const {
  std::vector<std::uint64_t> counts;
  for (const Table* table : tables_) counts.push_back(table->settled_count());
  for (const RowTracked* array : arrays_) counts.push_back(array->settled_count());
  return counts;
}

void TableCheckpoints::Settle() {
  if (cuts_.empty()) return;
  if (const auto outcome = in_flight_.Outcome()) Resolve(*outcome);
}

void TableCheckpoints::Wait() {
  if (cuts_.empty()) return;
  while (!in_flight_.WaitFor(std::chrono::hours(1))) {
  }
  Settle();
}

void TableCheckpoints::Resolve(const Result<CheckpointInfo>& outcome) {
  for (const auto& cut : cuts_) {
    const TableCut::Error error = cut->QuantizationError();
    quantization_error_.max_abs = std::max(quantization_error_.max_abs, error.max_abs);
    quantization_error_.max_relative =
        std::max(quantization_error_.max_relative, error.max_relative);
    outcome.ok() ? cut->Committed() : cut->Failed();
  }
  DropCuts();
  if (!outcome.ok()) return;
  parent_ = outcome->id;
  settled_ = SettledCounts();
  if (kind_in_flight_ == SaveKind::kFull) base_ = outcome->id;
}

void TableCheckpoints::DropCuts() {
  joined_.clear();
  cuts_.clear();
}

CutGate* TableCheckpoints::gate() const {
  const std::shared_ptr<CutGate>& gate =
      tables_.empty() ? arrays_[0]->options().gate : tables_[0]->options().gate;
  return gate ? gate.get() : CutGate::Process().get();
}

Result<SaveHandle> TableCheckpoints::Save(SaveRequest request) {
  const auto begun = std::chrono::steady_clock::now();
  if (tables_.empty() && arrays_.empty()) {
    if (request.kind != SaveKind::kFull) {
      return FailedPreconditionError("an increment holds changed rows, and there are no tables");
    }
    return manager_->Save(std::move(request));
  }
  RETURN_IF_ERROR(CheckTables(tables_, arrays_));
  std::vector<std::string_view> dense;
  for (const Tensor& tensor : request.tensors) {
    if (tensor.group == TensorGroup::kModel) dense.push_back(tensor.name);
  }
  RETURN_IF_ERROR(CheckDenseNames(dense, tables_, arrays_));
  // Before the gate is closed, and before anything is cut: nobody waits for a disk there, and no
  // cut is made for a save that is skipped.
  if (auto* turns = dynamic_cast<SaveTurns*>(manager_)) {
    ASSIGN_OR_RETURN(const std::optional<SaveHandle> skipped, turns->AwaitTurn(request.step));
    if (skipped) return *skipped;
  }
  Wait();
  if (request.kind != SaveKind::kFull) {
    if (!CanIncrement()) {
      return FailedPreconditionError(
          base_.empty() || SettledCounts() == settled_
              ? "there is nothing that an increment could build on: save a full checkpoint first"
              : "another manager saved or restored these tables, or they were cleared, since the "
                "last save here, so that changes since then are not known: save a full checkpoint "
                "first");
    }
    request.since = request.kind == SaveKind::kCumulative ? base_ : parent_;
  }
  const SaveKind kind = request.kind;
  SaveHandle handle;
  Status saved;
  if (options_.compress_keys && !tables_.empty()) {
    // How long the keys are, when they are compressed, has to be known before the files are laid
    // out, and takes a walk over the rows: the gate is open again by then, and the engine copies
    // what was copied where the tables were cut.
    std::vector<std::vector<std::byte>> copies;
    saved = CutAndSave(&request, [&] { return CopyDense(&request, &copies); }, begun, &handle);
  } else {
    saved = gate()->Exclusive([&] { return CutAndSave(&request, {}, begun, &handle); });
  }
  if (!saved.ok()) {
    DropCuts();  // their rows join the next one
    return saved;
  }
  in_flight_ = handle;
  kind_in_flight_ = kind;
  quantization_error_ = {};
  return handle;
}

Status TableCheckpoints::CutAndSave(SaveRequest* request, const std::function<Status()>& also,
                                    std::chrono::steady_clock::time_point begun,
                                    SaveHandle* handle) {
  const CutRequest cut{CutOf(request->kind), options_.quantize, options_.compress_keys};
  ASSIGN_OR_RETURN(cuts_, CutTablesAndArrays(tables_, arrays_, cut, also));
  const auto add = [&](const TableFacts& facts, std::vector<Tensor> columns) {
    request->tables.push_back(facts);
    for (Tensor& column : columns) request->tensors.push_back(std::move(column));
  };
  std::map<std::string, std::vector<TableCut*>> pieces;
  for (std::size_t i = 0; i < cuts_.size(); ++i) {
    const TableSummary& summary = cuts_[i]->summary();
    if (i < tables_.size()) {
      add(table::FactsOf(summary), cuts_[i]->Tensors());
    } else {
      pieces[summary.name].push_back(cuts_[i].get());
    }
  }
  for (auto& [name, of_one] : pieces) {
    joined_.push_back(std::make_unique<table::JoinedPieces>(std::move(of_one)));
    add(joined_.back()->facts(), joined_.back()->Tensors());
  }
  if (std::string rates = EncodeRates(tables_); !rates.empty()) {
    request->state_files[kTablesFile] = std::move(rates);
  }
  if (auto* turns = dynamic_cast<SaveTurns*>(manager_)) {
    turns->AddStall(std::chrono::steady_clock::now() - begun);
  }
  ASSIGN_OR_RETURN(*handle, manager_->Save(std::move(*request)));
  return Status::Ok();
}

Result<std::optional<Restored>> TableCheckpoints::Restore(RestoreRequest request,
                                                          const TableFiller::Options& options) {
  RETURN_IF_ERROR(CheckTables(tables_, arrays_));
  Wait();
  TableFiller filler(tables_, arrays_, options);
  const bool any = !tables_.empty() || !arrays_.empty();
  if (any) request.tables = &filler;
  // What a damaged checkpoint brought half-way could not be told from the rows that are to stay.
  if (any && options.merge) request.atomic = true;
  MismatchReport* const report = request.mismatch;
  auto outcome = manager_->Restore(std::move(request));
  const MismatchReport& tables = filler.mismatch();
  if (!outcome.ok() && outcome.status().reason() == Reason::kMismatch && report != nullptr &&
      report->missing.empty() && report->unexpected.empty() && report->mismatched.empty()) {
    *report = tables;
  }
  ASSIGN_OR_RETURN(std::optional<Restored> restored, std::move(outcome));
  if (!restored) return restored;
  RETURN_IF_ERROR(filler.Finish());
  skipped_.clear();
  for (const std::string& name : tables.missing) {
    skipped_.emplace_back(name, "the table is not in the checkpoint");
  }
  std::vector<std::string> unasked = tables.unexpected;
  if (!any) {
    for (const TableFacts& table : restored->info.tables) unasked.push_back(table.name);
  }
  for (std::string& name : unasked) {
    skipped_.emplace_back(std::move(name), "the table was not asked for");
  }
  for (const auto& [name, why] : filler.passed_over()) skipped_.emplace_back(name, why);
  std::vector<Table*> filled;
  for (Table* table : tables_) {
    const std::string& name = table->options().name;
    if (!options.merge && !filler.passed_over().contains(name) &&
        std::ranges::find(tables.missing, name) == tables.missing.end()) {
      filled.push_back(table);
    }
  }
  RETURN_IF_ERROR(RestoreRates(restored->state_files, filled));
  restored->skipped.insert(restored->skipped.end(), skipped_.begin(), skipped_.end());
  parent_ = restored->info.id;
  settled_ = SettledCounts();
  base_ = restored->info.kind == "full" ? restored->info.id : restored->info.base;
  // No increment can stand on it: merged rows, or a whole table, are not in it.
  if (options.merge || !tables.missing.empty() || !filler.passed_over().empty()) {
    parent_.clear();
    base_.clear();
  }
  return restored;
}

}  // namespace cairn
