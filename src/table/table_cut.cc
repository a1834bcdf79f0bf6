#include "table/table_cut.h"

#include <fmt/format.h>

#include <new>
#include <utility>

#include "base/status_macros.h"
#include "format/key_column.h"

namespace cairn::table {
namespace {

std::uint64_t Sum(std::span<const std::uint32_t> counts) {
  std::uint64_t sum = 0;
  for (const std::uint32_t n : counts) sum += n;
  return sum;
}

}  // namespace

TableCutImpl::TableCutImpl(TableImpl* table, const CutRequest& request)
    : table_(table), request_(request), offsets_(kTableShards + 1) {
  // A full is read in the order of its memory, so that walking it again costs little.
  if (request_.kind == CutKind::kFull) return;
  stage_rows_ =
      table_->options().side_buffer_bytes / CutStage::RowBytes(table_->layout(), StagesWeights());
}

TableCutImpl::~TableCutImpl() {
  if (open_) Failed();
}

void TableCutImpl::Flip() {
  scope_ = table_->FlipEpoch(request_.kind, stage_rows_, &counts_);
  open_ = true;
}

void TableCutImpl::AddColumns(std::string name, ColumnKind kind, std::size_t payload) {
  const bool weights = payload == 0;
  const std::uint32_t width =
      weights ? table_->layout().dim() : table_->layout().slots()[payload - 1].width;
  ColumnSpec column;
  column.name = std::move(name);
  column.kind = kind;
  column.payload = payload;
  column.shape = {summary_.rows, width};
  if (kind == ColumnKind::kPayload) {
    column.dtype = weights ? table_->layout().dtype() : DType::kF32;
    column.row_bytes = table_->layout().columns()[payload].bytes;
    columns_.push_back(std::move(column));
    return;
  }
  column.dtype = DType::kI8;
  column.row_bytes = width;
  ColumnSpec scale = column;
  columns_.push_back(std::move(column));
  scale.name += kScaleSuffix;
  scale.kind = ColumnKind::kScale;
  scale.dtype = DType::kF32;
  scale.shape = {summary_.rows};
  scale.row_bytes = sizeof(float);
  columns_.push_back(std::move(scale));
}

void TableCutImpl::PlanColumns() {
  const TableOptions& options = table_->options();
  summary_ = {.name = options.name,
              .dim = options.dim,
              .dtype = options.dtype,
              .rows = Sum(counts_.rows),
              .deleted = Sum(counts_.deleted),
              .pending = Sum(counts_.pending),
              .held = {options.shards.begin, options.shards.end}};
  for (std::uint32_t s = 0; s < kTableShards; ++s) {
    offsets_[s + 1] = offsets_[s] + counts_.rows[s];
  }
  const auto add = [&](std::string name, StoreKind store, ColumnKind kind, std::uint64_t rows) {
    ColumnSpec column;
    column.name = std::move(name);
    column.store = store;
    column.kind = kind;
    column.shape = {rows};
    columns_.push_back(std::move(column));
  };
  // The larger columns first: what is kept aside for them is given back first.
  const bool quantize = request_.quantize && request_.kind != CutKind::kFull;
  AddColumns("values", quantize ? ColumnKind::kQuantized : ColumnKind::kPayload, 0);
  for (std::size_t i = 0; i < table_->slots().size(); ++i) {
    const SlotSpec& slot = table_->slots()[i];
    // A scale would cost as much as a single element does.
    const bool small = quantize && slot.width > 1 && slot.rounding != SlotRounding::kNone;
    AddColumns("slot/" + slot.name, small ? ColumnKind::kQuantized : ColumnKind::kPayload, i + 1);
  }
  add("keys", StoreKind::kRows, ColumnKind::kKey, summary_.rows);
  add("frequency", StoreKind::kRows, ColumnKind::kFrequency, summary_.rows);
  add("version", StoreKind::kRows, ColumnKind::kVersion, summary_.rows);
  if (request_.kind != CutKind::kFull) {
    add("deleted", StoreKind::kDeleted, ColumnKind::kKey, summary_.deleted);
  }
  if (options.admission) {
    add("pending_keys", StoreKind::kPending, ColumnKind::kKey, summary_.pending);
    add("pending_counts", StoreKind::kPending, ColumnKind::kFrequency, summary_.pending);
    add("pending_versions", StoreKind::kPending, ColumnKind::kVersion, summary_.pending);
  }
  stage_ = std::make_unique<CutStage>(&table_->layout(), counts_.rows, counts_.read_once,
                                      table_->stage());
  gatherer_ = std::make_unique<CutGatherer>(table_, stage_.get());
  progress_ = std::make_unique<CutProgress>(table_, columns_, gatherer_.get());
}

Status TableCutImpl::Prepare() {
  try {
    PlanColumns();
    for (const ColumnSpec& column : columns_) {
      const std::span<const std::uint32_t> counts = column.store == StoreKind::kRows ? counts_.rows
                                                    : column.store == StoreKind::kDeleted
                                                        ? counts_.deleted
                                                        : counts_.pending;
      sources_.push_back(
          std::make_unique<ColumnSource>(table_, &column, counts, progress_.get(), &error_));
    }
    if (request_.compress_keys) return CompressKeys();
  } catch (const std::bad_alloc&) {
    return ResourceExhaustedError("table \"" + table_->options().name + "\": no memory for a cut");
  }
  return Status::Ok();
}

Status TableCutImpl::CompressKeys() {
  std::vector<std::int64_t> keys(summary_.rows);
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    if (columns_[i].name != "keys") continue;
    RETURN_IF_ERROR(sources_[i]->Fill(0, std::as_writable_bytes(std::span(keys))));
  }
  ASSIGN_OR_RETURN(compressed_keys_, EncodeKeyColumn(keys));
  return Status::Ok();
}

std::vector<Tensor> TableCutImpl::Tensors() {
  const std::string prefix = summary_.name + "/";
  std::vector<Tensor> tensors;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    Tensor tensor;
    tensor.group = TensorGroup::kTable;
    tensor.name = prefix + columns_[i].name;
    if (columns_[i].name == "keys" && request_.compress_keys) {
      tensor.name = prefix + std::string(kCompressedKeys);
      tensor.dtype = DType::kU8;
      tensor.shape = {compressed_keys_.size()};
      tensor.data = compressed_keys_.data();
    } else {
      tensor.dtype = columns_[i].dtype;
      tensor.shape = columns_[i].shape;
      tensor.source = sources_[i].get();
    }
    tensors.push_back(std::move(tensor));
  }
  Tensor offsets;
  offsets.group = TensorGroup::kTable;
  offsets.name = prefix + "shard_offsets";
  offsets.dtype = DType::kI64;
  offsets.shape = {offsets_.size()};
  offsets.data = offsets_.data();
  tensors.push_back(std::move(offsets));
  return tensors;
}

void TableCutImpl::End(bool committed) {
  if (!open_) return;
  open_ = false;
  if (gatherer_ != nullptr) gatherer_->Stop();
  table_->EndCut(scope_, committed);
}

void TableCutImpl::Committed() { End(true); }
void TableCutImpl::Failed() { End(false); }

}  // namespace cairn::table
