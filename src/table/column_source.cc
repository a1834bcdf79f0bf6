#include "table/column_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>

#include "base/status_macros.h"
#include "format/row_quantization.h"

namespace cairn::table {
namespace {

// Rows copied under one lock. They were fetched before it was taken: two pieces, the one that is
// copied and the one that is fetched meanwhile, stay in the first-level cache.
constexpr std::size_t kPiece = 32;

bool IsPayload(const ColumnSpec& column) {
  return column.kind == ColumnKind::kPayload || column.kind == ColumnKind::kQuantized ||
         column.kind == ColumnKind::kScale;
}

RowStore* StoreIn(Shard* shard, StoreKind kind) {
  switch (kind) {
    case StoreKind::kRows:
      return &shard->rows;
    case StoreKind::kDeleted:
      return shard->deleted.get();
    case StoreKind::kPending:
      return shard->pending.get();
  }
  return nullptr;
}

}  // namespace

CutProgress::CutProgress(TableImpl* table, const std::vector<ColumnSpec>& columns,
                         CutGatherer* gatherer)
    : table_(table),
      gatherer_(gatherer),
      readers_(table->layout().columns().size()),
      payload_passed_(table->layout().columns().size()) {
  for (const ColumnSpec& column : columns) {
    ++columns_[static_cast<std::size_t>(column.store)];
    if (IsPayload(column)) ++readers_[column.payload];
  }
  for (auto& passed : passed_) passed.resize(kTableShards);
  for (auto& passed : payload_passed_) passed.resize(kTableShards);
}

void CutProgress::Passed(const ColumnSpec& column, std::uint32_t shard) {
  const auto store_kind = static_cast<std::size_t>(column.store);
  const bool last = ++passed_[store_kind][shard] == columns_[store_kind];
  const bool drop =
      IsPayload(column) && ++payload_passed_[column.payload][shard] == readers_[column.payload];
  if (!last && !drop) return;
  const StripeLock lock(table_->LockOf(shard));
  RowStore* store = StoreIn(table_->FindShard(shard), column.store);
  if (last) {
    store->EndCopy();
  } else {
    store->DropCutColumn(column.payload);
  }
}

ColumnSource::ColumnSource(TableImpl* table, const ColumnSpec* spec,
                           std::span<const std::uint32_t> counts, CutProgress* progress,
                           TableCut::Error* error)
    : table_(table),
      spec_(spec),
      counts_(counts),
      progress_(progress),
      error_(error),
      weights_(spec->store == StoreKind::kRows && spec->kind == ColumnKind::kPayload &&
               spec->payload == 0) {
  if (IsPayload(*spec)) {
    const RowLayout::Column& column = table->layout().columns()[spec->payload];
    wanted_ = {.begin = column.offset, .end = column.offset + column.bytes};
  }
  if (spec->kind == ColumnKind::kQuantized || spec->kind == ColumnKind::kScale) {
    floats_.resize(spec->payload == 0 ? table->layout().dim()
                                      : table->layout().slots()[spec->payload - 1].width);
  }
}

void ColumnSource::Abandoned() {
  progress_->gatherer()->Stop();
  table_->EndCopies();
}

RowStore* ColumnSource::StoreOf(Shard* shard) const { return StoreIn(shard, spec_->store); }

Status ColumnSource::Fill(std::uint64_t offset, std::span<std::byte> into) {
  if (offset != next_) {
    return InternalError(
        fmt::format("column {} of table \"{}\" was asked for byte {} after byte {}", spec_->name,
                    table_->options().name, offset, next_));
  }
  next_ += into.size();
  while (!into.empty()) {
    if (carried_ < carry_.size()) {
      const std::size_t n = std::min(into.size(), carry_.size() - carried_);
      std::memcpy(into.data(), carry_.data() + carried_, n);
      carried_ += n;
      into = into.subspan(n);
      continue;
    }
    if (into.size() < spec_->row_bytes) {
      carry_.resize(spec_->row_bytes);
      carried_ = 0;
      RETURN_IF_ERROR(Produce(carry_).status());
      continue;
    }
    ASSIGN_OR_RETURN(const std::size_t rows, Produce(into));
    into = into.subspan(rows * spec_->row_bytes);
  }
  return Status::Ok();
}

Result<std::size_t> ColumnSource::Produce(std::span<std::byte> out) {
  while (shard_ < kTableShards && done_in_shard_ == counts_[shard_]) {
    ++shard_;
    done_in_shard_ = 0;
    cursor_ = {};
  }
  if (shard_ == kTableShards) {
    return InternalError(fmt::format("column {} of table \"{}\" has no further rows", spec_->name,
                                     table_->options().name));
  }
  if (spec_->store == StoreKind::kRows && progress_->gatherer()->stage().Gathers(shard_)) {
    return ReadStaged(out);
  }
  std::array<RowStore::CutRow, kPiece> rows;
  const std::size_t want = std::min<std::size_t>(
      {kPiece, out.size() / spec_->row_bytes, counts_[shard_] - done_in_shard_});
  std::size_t found = 0;
  RowStore* const store = StoreOf(table_->FindShard(shard_));
  RETURN_IF_ERROR(BeginWalk(store));
  store->FetchCutRows(&cursor_, 2 * kPiece, wanted_);
  {
    const StripeLock lock(table_->LockOf(shard_));
    found = store->NextCutRows(&cursor_, std::span(rows).first(want));
    for (std::size_t i = 0; i < found; ++i) {
      Write(*store, rows[i], out.data() + i * spec_->row_bytes);
    }
  }
  if (found < want) return MissingRows(want - found);
  done_in_shard_ += static_cast<std::uint32_t>(found);
  if (done_in_shard_ == counts_[shard_]) {
    store->EndWalk();
    progress_->Passed(*spec_, shard_);
  }
  return found;
}

Status ColumnSource::BeginWalk(RowStore* store) const {
  try {
    store->BeginWalk();
  } catch (const std::bad_alloc&) {
    return ResourceExhaustedError(fmt::format(
        "table \"{}\": no memory to sort the rows of an increment", table_->options().name));
  }
  return Status::Ok();
}

Result<std::size_t> ColumnSource::ReadStaged(std::span<std::byte> out) {
  RETURN_IF_ERROR(progress_->gatherer()->Await(shard_, weights_));
  const std::size_t rows =
      std::min<std::size_t>(out.size() / spec_->row_bytes, counts_[shard_] - done_in_shard_);
  WriteStaged(done_in_shard_, rows, out.data());
  done_in_shard_ += static_cast<std::uint32_t>(rows);
  if (weights_ && done_in_shard_ == counts_[shard_]) progress_->gatherer()->WeightsRead(shard_);
  return rows;
}

Status ColumnSource::MissingRows(std::size_t rows) const {
  return InternalError(fmt::format("shard {} of table \"{}\" has {} rows fewer than at the cut",
                                   shard_, table_->options().name, rows));
}

void ColumnSource::Write(const RowStore& store, const RowStore::CutRow& row, std::byte* out) {
  std::int64_t number = 0;
  switch (spec_->kind) {
    case ColumnKind::kKey:
      number = row.header->key;
      break;
    case ColumnKind::kFrequency:
      number = row.header->frequency;
      break;
    case ColumnKind::kVersion:
      number = row.header->version;
      break;
    case ColumnKind::kPayload:
      std::memcpy(out, store.CutColumn(row, spec_->payload), spec_->row_bytes);
      return;
    case ColumnKind::kQuantized:
    case ColumnKind::kScale:
      WriteQuantized(store.CutColumn(row, spec_->payload), out);
      return;
  }
  std::memcpy(out, &number, sizeof number);
}

void ColumnSource::WriteStaged(std::uint32_t first, std::size_t rows, std::byte* out) {
  const CutStage& stage = progress_->gatherer()->stage();
  const auto copy = [&](const void* from) {
    std::memcpy(out, static_cast<const std::byte*>(from) + first * spec_->row_bytes,
                rows * spec_->row_bytes);
  };
  switch (spec_->kind) {
    case ColumnKind::kKey:
      return copy(stage.Keys(shard_));
    case ColumnKind::kFrequency:
      return copy(stage.Frequencies(shard_));
    case ColumnKind::kVersion:
      return copy(stage.Versions(shard_));
    case ColumnKind::kPayload:
      return copy(stage.Payload(shard_, spec_->payload));
    case ColumnKind::kQuantized:
    case ColumnKind::kScale: {
      const std::size_t width = table_->layout().columns()[spec_->payload].bytes;
      const std::byte* stored = stage.Payload(shard_, spec_->payload) + first * width;
      for (std::size_t i = 0; i < rows; ++i) {
        WriteQuantized(stored + i * width, out + i * spec_->row_bytes);
      }
    }
  }
}

void ColumnSource::WriteQuantized(const std::byte* stored, std::byte* out) {
  if (spec_->payload == 0) {
    table_->layout().ReadStored(stored, floats_.data());
  } else {
    std::memcpy(floats_.data(), stored, floats_.size() * sizeof(float));
  }
  const float scale = RowScale(floats_);
  if (spec_->kind == ColumnKind::kScale) {
    std::memcpy(out, &scale, sizeof scale);
    return;
  }
  auto* integers = reinterpret_cast<std::int8_t*>(out);
  const bool keep_small =
      spec_->payload > 0 &&
      table_->layout().slots()[spec_->payload - 1].rounding == SlotRounding::kNeverToZero;
  QuantizeRow(floats_, scale, integers, keep_small);
  for (std::size_t i = 0; i < floats_.size(); ++i) {
    const double error = std::fabs(static_cast<double>(floats_[i]) -
                                   static_cast<double>(integers[i]) * static_cast<double>(scale));
    if (!(error > 0)) continue;
    error_->max_abs = std::max(error_->max_abs, error);
    if (scale > 0) {
      error_->max_relative =
          std::max(error_->max_relative, error / (static_cast<double>(scale) * 127.0));
    }
  }
}

}  // namespace cairn::table
