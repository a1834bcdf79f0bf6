#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <utility>

#include <cairn/table.h>

#include "base/status_macros.h"
#include "format/key_column.h"
#include "format/row_quantization.h"
#include "table/table_cut.h"
#include "table/table_impl.h"

namespace cairn::table {
namespace {

std::string ShapeText(const StoredColumn& column) {
  return fmt::format("{} [{}]", DTypeName(column.dtype), fmt::join(column.shape, ","));
}

/// How a column of weights or slots is stored.
struct StoredPayload {
  std::uint32_t width = 0;
  std::size_t row_bytes = 0;
  bool quantized = false;
};

/// Compares the columns of a part with what the table needs.
class SchemaCheck {
 public:
  SchemaCheck(const TableImpl* table, const std::vector<StoredColumn>& columns) : table_(table) {
    for (const StoredColumn& column : columns) columns_[column.name] = &column;
  }

  Result<std::vector<StoredPayload>> Run(std::uint64_t rows) {
    rows_ = rows;
    std::vector<StoredPayload> payload;
    payload.push_back(Payload("values", table_->layout().dim(), table_->layout().dtype()));
    for (const SlotSpec& slot : table_->slots()) {
      payload.push_back(Payload("slot/" + slot.name, slot.width, DType::kF32));
    }
    if (!columns_.contains(std::string(kCompressedKeys))) Want("keys", DType::kI64, {rows});
    Want("frequency", DType::kI64, {rows});
    Want("version", DType::kI64, {rows});
    Want("shard_offsets", DType::kI64, {kTableShards + 1});
    for (const auto& [name, column] : columns_) {
      if (name.starts_with("slot/") && !known_.contains(name)) {
        problems_.push_back(fmt::format("{}: stored, but the optimizer {} has no such slot", name,
                                        table_->options().optimizer->name()));
      }
    }
    if (!problems_.empty()) {
      return MismatchError(fmt::format("table \"{}\" does not fit what is stored: {}",
                                       table_->options().name, fmt::join(problems_, "; ")));
    }
    return payload;
  }

 private:
  StoredPayload Payload(const std::string& name, std::uint32_t width, DType dtype) {
    StoredPayload payload;
    payload.width = width;
    const auto it = columns_.find(name);
    const std::string scale = name + std::string(kScaleSuffix);
    if (it != columns_.end() && it->second->dtype == DType::kI8 && columns_.contains(scale)) {
      payload.quantized = true;
      payload.row_bytes = width;
      Want(name, DType::kI8, {rows_, width});
      Want(scale, DType::kF32, {rows_});
      return payload;
    }
    payload.row_bytes = std::size_t{width} * static_cast<std::size_t>(DTypeBits(dtype)) / 8;
    Want(name, dtype, {rows_, width});
    return payload;
  }

  void Want(const std::string& name, DType dtype, std::vector<std::uint64_t> shape) {
    known_[name] = true;
    const StoredColumn wanted{name, dtype, std::move(shape)};
    const auto it = columns_.find(name);
    if (it == columns_.end()) {
      problems_.push_back(fmt::format("{}: not stored, wanted {}", name, ShapeText(wanted)));
    } else if (it->second->dtype != dtype || it->second->shape != wanted.shape) {
      problems_.push_back(
          fmt::format("{}: stored {}, wanted {}", name, ShapeText(*it->second), ShapeText(wanted)));
    }
  }

  const TableImpl* table_;
  std::map<std::string, const StoredColumn*> columns_;
  std::map<std::string, bool> known_;
  std::vector<std::string> problems_;
  std::uint64_t rows_ = 0;
};

Status CheckOffsets(const std::string& table, std::span<const std::int64_t> offsets) {
  const auto damaged = [&](const std::string& what) {
    return CorruptionError("table \"" + table + "\": shard_offsets: " + what);
  };
  if (offsets.size() != kTableShards + 1) {
    return damaged(fmt::format("has {} entries, not {}", offsets.size(), kTableShards + 1));
  }
  if (offsets[0] != 0) return damaged("does not begin with 0");
  for (std::uint32_t s = 0; s < kTableShards; ++s) {
    if (offsets[s + 1] < offsets[s]) {
      return damaged(fmt::format("falls from {} to {} at shard {}", offsets[s], offsets[s + 1], s));
    }
    constexpr std::int64_t kMaxRows = 0xFFFFFFFF;
    if (offsets[s + 1] - offsets[s] > kMaxRows) {
      return damaged(fmt::format("shard {} has more than {} rows", s, kMaxRows));
    }
  }
  return Status::Ok();
}

class LoaderPart final : public TableLoader::Part {
 public:
  LoaderPart(TableImpl* table, std::vector<StoredPayload> payload,
             std::span<const std::int64_t> offsets, bool no_key_twice, std::atomic<bool>* failed)
      : table_(table),
        payload_(std::move(payload)),
        offsets_(offsets.begin(), offsets.end()),
        no_key_twice_(no_key_twice),
        failed_(failed) {
    const ShardRange owned = table->options().shards;
    const auto first = static_cast<std::uint64_t>(offsets_[owned.begin]);
    const auto last = static_cast<std::uint64_t>(offsets_[owned.end]);
    if (last > first) rows_.push_back({first, last - first});
  }

  const std::vector<RowRange>& rows() const override { return rows_; }

  Status AddRows(const RowBlock& block) override {
    Status added;
    try {
      added = Add(block);
    } catch (const std::bad_alloc&) {
      added = ResourceExhaustedError("table \"" + table_->options().name +
                                     "\": no memory to load it into");
    }
    if (!added.ok()) failed_->store(true, std::memory_order_relaxed);
    return added;
  }

 private:
  Status Damaged(std::string what) const {
    return CorruptionError("table \"" + table_->options().name + "\": " + std::move(what));
  }
  Status Add(const RowBlock& block);
  Status CheckBlock(const RowBlock& block) const;
  Status AddShard(const RowBlock& block, std::uint32_t shard, std::size_t begin, std::size_t end);
  void Store(const RowBlock& block, std::size_t i, RowHeader* row,
             std::vector<float>* floats) const;

  TableImpl* const table_;
  const std::vector<StoredPayload> payload_;
  const std::vector<std::int64_t> offsets_;
  const bool no_key_twice_;
  std::atomic<bool>* const failed_;
  std::vector<RowRange> rows_;
};

Status LoaderPart::CheckBlock(const RowBlock& block) const {
  const std::size_t n = block.keys.size();
  const auto wrong = [&](std::string_view column) {
    return InvalidArgumentError(
        fmt::format("table \"{}\": a block of {} rows: column {} has "
                    "another length",
                    table_->options().name, n, column));
  };
  if (rows_.empty()
          ? n > 0
          : block.first < rows_[0].first || block.first - rows_[0].first > rows_[0].count ||
                n > rows_[0].count - (block.first - rows_[0].first)) {
    return InvalidArgumentError(fmt::format("table \"{}\": rows [{}, {}) are not of this part",
                                            table_->options().name, block.first, block.first + n));
  }
  if (block.frequency.size() != n) return wrong("frequency");
  if (block.version.size() != n) return wrong("version");
  if (block.slots.size() + 1 != payload_.size()) {
    return InvalidArgumentError(fmt::format("table \"{}\": a block with {} slots, not {}",
                                            table_->options().name, block.slots.size(),
                                            payload_.size() - 1));
  }
  for (std::size_t c = 0; c < payload_.size(); ++c) {
    const std::span<const std::byte> bytes = c == 0 ? block.values : block.slots[c - 1];
    const std::string name = c == 0 ? "values" : "slot/" + table_->slots()[c - 1].name;
    if (bytes.size() != n * payload_[c].row_bytes) return wrong(name);
    if (!payload_[c].quantized) continue;
    const std::size_t scales = c == 0                            ? block.value_scale.size()
                               : c - 1 < block.slot_scale.size() ? block.slot_scale[c - 1].size()
                                                                 : 0;
    if (scales != n) return wrong(name + std::string(kScaleSuffix));
  }
  return Status::Ok();
}

Status LoaderPart::Add(const RowBlock& block) {
  RETURN_IF_ERROR(CheckBlock(block));
  const auto first = static_cast<std::int64_t>(block.first);
  // The shard of the first row: the last that begins at or before it.
  auto shard = static_cast<std::uint32_t>(
      std::upper_bound(offsets_.begin(), offsets_.end(), first) - offsets_.begin() - 1);
  std::size_t at = 0;
  while (at < block.keys.size()) {
    const auto row = first + static_cast<std::int64_t>(at);
    while (offsets_[shard + 1] <= row) ++shard;
    const std::size_t end =
        std::min(block.keys.size(), static_cast<std::size_t>(offsets_[shard + 1] - first));
    RETURN_IF_ERROR(AddShard(block, shard, at, end));
    at = end;
  }
  return Status::Ok();
}

Status LoaderPart::AddShard(const RowBlock& block, std::uint32_t shard, std::size_t begin,
                            std::size_t end) {
  for (std::size_t i = begin; i < end; ++i) {
    if (ShardOf(block.keys[i]) != shard) {
      return Damaged(fmt::format("row {}: key {} belongs to shard {} and stands in shard {}",
                                 block.first + i, block.keys[i], ShardOf(block.keys[i]), shard));
    }
    if (block.frequency[i] < 0) {
      return Damaged(fmt::format("row {}: a frequency of {}", block.first + i, block.frequency[i]));
    }
  }
  std::vector<float> floats;
  Stripe* stripe = table_->StripeOf(shard);
  const MutexLock lock(&stripe->mu);
  Shard* target = table_->MakeShard(stripe, shard);
  if (no_key_twice_) {
    target->rows.Reserve(target->rows.size() +
                         static_cast<std::size_t>(offsets_[shard + 1] - offsets_[shard]));
  }
  constexpr std::size_t kAhead = 8;
  for (std::size_t i = begin; i < end; ++i) {
    if (i + kAhead < end) target->rows.PrefetchIndex(IndexHash(block.keys[i + kAhead]));
    bool existed = false;
    RowHeader* row = table_->LoadRow(stripe, target, block.keys[i], &existed);
    if (existed && no_key_twice_) return Damaged(fmt::format("key {} is there twice", row->key));
    Store(block, i, row, &floats);
  }
  return Status::Ok();
}

void LoaderPart::Store(const RowBlock& block, std::size_t i, RowHeader* row,
                       std::vector<float>* floats) const {
  row->version = block.version[i];
  row->frequency = static_cast<std::uint32_t>(
      std::min<std::int64_t>(block.frequency[i], std::int64_t{kMaxFrequency}));
  const RowLayout& layout = table_->layout();
  for (std::size_t c = 0; c < payload_.size(); ++c) {
    const StoredPayload& payload = payload_[c];
    const std::byte* from =
        (c == 0 ? block.values : block.slots[c - 1]).data() + i * payload.row_bytes;
    std::byte* to = RowLayout::Bytes(row) + layout.columns()[c].offset;
    if (!payload.quantized) {
      std::memcpy(to, from, payload.row_bytes);
      continue;
    }
    floats->resize(payload.width);
    DequantizeRow(reinterpret_cast<const std::int8_t*>(from),
                  c == 0 ? block.value_scale[i] : block.slot_scale[c - 1][i], *floats);
    if (c == 0) {
      layout.WriteStored(floats->data(), to);
    } else {
      std::memcpy(to, floats->data(), payload.width * sizeof(float));
    }
  }
}

class LoaderImpl final : public TableLoader {
 public:
  LoaderImpl(TableImpl* table, const Options& options) : table_(table), options_(options) {}
  ~LoaderImpl() override {
    if (loading_) table_->EndLoad(/*keep=*/false, /*based=*/false);
  }

  Status Begin() {
    RETURN_IF_ERROR(table_->BeginLoad(options_.merge));
    loading_ = true;
    return Status::Ok();
  }

  Status BeginCheckpoint(CutKind kind) override {
    RETURN_IF_ERROR(CheckLoading());
    if (kind == CutKind::kFull && checkpoints_ > 0) {
      return FailedPreconditionError("a full checkpoint comes first, before its increments");
    }
    if (kind != CutKind::kFull && checkpoints_ == 0 && !options_.merge) {
      return FailedPreconditionError("table \"" + table_->options().name +
                                     "\": an increment cannot be loaded without its base");
    }
    ++checkpoints_;
    full_ = kind == CutKind::kFull;
    table_->BeginLoadedCheckpoint(full_);
    return Status::Ok();
  }

  Result<std::unique_ptr<Part>> BeginPart(const std::vector<StoredColumn>& columns,
                                          std::span<const std::int64_t> shard_offsets) override {
    RETURN_IF_ERROR(CheckInCheckpoint());
    RETURN_IF_ERROR(CheckOffsets(table_->options().name, shard_offsets));
    SchemaCheck check(table_, columns);
    ASSIGN_OR_RETURN(std::vector<StoredPayload> payload,
                     check.Run(static_cast<std::uint64_t>(shard_offsets.back())));
    return std::unique_ptr<Part>(std::make_unique<LoaderPart>(
        table_, std::move(payload), shard_offsets, full_ && !options_.merge, &failed_));
  }

  Status AddDeleted(std::span<const std::int64_t> keys) override {
    RETURN_IF_ERROR(CheckInCheckpoint());
    return Guarded([&] {
      for (const std::int64_t key : keys) {
        if (table_->options().shards.Contains(ShardOf(key))) table_->LoadDeleted(key);
      }
    });
  }

  Status AddPending(std::span<const std::int64_t> keys, std::span<const std::int64_t> counts,
                    std::span<const std::int64_t> versions) override {
    RETURN_IF_ERROR(CheckInCheckpoint());
    const std::string where = "table \"" + table_->options().name + "\": ";
    if (counts.size() != keys.size() || (!versions.empty() && versions.size() != keys.size())) {
      failed_.store(true, std::memory_order_relaxed);
      return CorruptionError(where + "pending keys, counts and versions differ in length");
    }
    for (const std::int64_t count : counts) {
      if (count >= 1 && count <= std::int64_t{kMaxFrequency}) continue;
      failed_.store(true, std::memory_order_relaxed);
      return CorruptionError(fmt::format("{}a pending key has the count {}", where, count));
    }
    return Guarded([&] {
      for (std::size_t i = 0; i < keys.size(); ++i) {
        if (!table_->options().shards.Contains(ShardOf(keys[i]))) continue;
        table_->LoadPending(keys[i], static_cast<std::uint32_t>(counts[i]),
                            versions.empty() ? 0 : versions[i]);
      }
    });
  }

  Status Finish() override {
    RETURN_IF_ERROR(CheckLoading());
    loading_ = false;
    const bool keep = !failed_.load(std::memory_order_relaxed);
    table_->EndLoad(keep, !options_.merge && checkpoints_ > 0);
    if (keep) return Status::Ok();
    return FailedPreconditionError("table \"" + table_->options().name +
                                   "\": loading failed before; the table is empty");
  }

 private:
  Status CheckLoading() const {
    if (loading_) return Status::Ok();
    return FailedPreconditionError("this load is over");
  }
  Status CheckInCheckpoint() const {
    RETURN_IF_ERROR(CheckLoading());
    if (checkpoints_ > 0) return Status::Ok();
    return FailedPreconditionError("BeginCheckpoint comes first");
  }
  template <typename Fn>
  Status Guarded(const Fn& fn) {
    try {
      fn();
    } catch (const std::bad_alloc&) {
      failed_.store(true, std::memory_order_relaxed);
      return ResourceExhaustedError("table \"" + table_->options().name +
                                    "\": no memory to load it into");
    }
    return Status::Ok();
  }

  TableImpl* const table_;
  const Options options_;
  bool loading_ = false;
  int checkpoints_ = 0;
  bool full_ = false;
  std::atomic<bool> failed_{false};
};

}  // namespace

Status TableImpl::BeginLoad(bool merge) {
  return gate_->Exclusive([&]() -> Status {
    RETURN_IF_ERROR(CheckUsable());
    const MutexLock lock(&cut_mu_);
    if (cut_open_) {
      return FailedPreconditionError("table \"" + options_.name +
                                     "\" cannot be loaded while a cut of it is being saved");
    }
    loading_.store(true, std::memory_order_release);
    if (!merge) ResetShards();
    has_base_ = false;
    ++settled_count_;
    load_base_ = epoch_.number;
    epoch_.tracking = false;
    return Status::Ok();
  });
}

void TableImpl::BeginLoadedCheckpoint(bool full) {
  epoch_.number = full ? load_base_ : load_base_ + 1;
  epoch_.tracking = !full;
}

RowHeader* TableImpl::LoadRow(Stripe* stripe, Shard* shard, std::int64_t key, bool* existed) {
  const std::uint64_t hash = IndexHash(key);
  RowHeader* row = shard->rows.Find(key, hash);
  *existed = row != nullptr;
  if (row != nullptr) {
    (void)shard->rows.Touch(row, epoch_, durable_);  // no cut is open: it cannot fail
    return row;
  }
  if (shard->deleted != nullptr) {
    if (RowHeader* grave = shard->deleted->Find(key, hash)) {
      (void)shard->deleted->Erase(grave, hash, epoch_, durable_);
    }
  }
  if (shard->pending != nullptr) {
    if (RowHeader* pending = shard->pending->Find(key, hash)) {
      (void)shard->pending->Erase(pending, hash, epoch_, durable_);
      stripe->pending.fetch_sub(1, std::memory_order_relaxed);
    }
  }
  row = shard->rows.Insert(key, hash, epoch_);
  stripe->rows.fetch_add(1, std::memory_order_relaxed);
  return row;
}

void TableImpl::LoadDeleted(std::int64_t key) {
  const std::uint32_t number = ShardOf(key);
  const std::uint64_t hash = IndexHash(key);
  Stripe* stripe = StripeOf(number);
  const MutexLock lock(&stripe->mu);
  Shard* shard = MakeShard(stripe, number);
  if (RowHeader* row = shard->rows.Find(key, hash)) {
    (void)EraseRow(stripe, shard, row, hash);
  } else {
    (void)Bury(shard, key, hash);
  }
  if (shard->pending == nullptr) return;
  if (RowHeader* pending = shard->pending->Find(key, hash)) {
    (void)ErasePending(stripe, shard, pending, hash);
  }
}

void TableImpl::LoadPending(std::int64_t key, std::uint32_t count, std::int64_t version) {
  const std::uint32_t number = ShardOf(key);
  const std::uint64_t hash = IndexHash(key);
  Stripe* stripe = StripeOf(number);
  const MutexLock lock(&stripe->mu);
  Shard* shard = MakeShard(stripe, number);
  // Merged into a table that has the row, or one that admits every key.
  if (shard->rows.Find(key, hash) != nullptr || !options_.admission) return;
  RowStore* store = MakePending(shard);
  RowHeader* pending = store->Find(key, hash);
  if (pending == nullptr) {
    pending = store->Insert(key, hash, epoch_);
    stripe->pending.fetch_add(1, std::memory_order_relaxed);
  } else {
    (void)store->Touch(pending, epoch_, durable_);
  }
  pending->frequency = count;
  pending->version = version;
}

void TableImpl::EndLoadOfShards(bool based) {
  durable_.Set(based ? DurableEpochs{load_base_, load_base_ + 1} : DurableEpochs{});
  for (std::uint32_t s = 0; s < kTableShards; ++s) {
    Shard* shard = FindShard(s);
    if (shard == nullptr) continue;
    const MutexLock lock(LockOf(s));
    for (RowStore* store : {&shard->rows, shard->pending.get(), shard->deleted.get()}) {
      if (store != nullptr) store->EndLoad();
    }
  }
}

void TableImpl::EndLoad(bool keep, bool based) {
  based = based && keep;
  if (keep) {
    EndLoadOfShards(based);
  } else {
    ResetShards();
  }
  epoch_.number = load_base_ + 2;
  epoch_.tracking = based;
  {
    const MutexLock lock(&cut_mu_);
    has_base_ = based;
  }
  loading_.store(false, std::memory_order_release);
}

}  // namespace cairn::table

namespace cairn {

Result<std::unique_ptr<TableLoader>> TableLoader::Begin(Table* table, const Options& options) {
  auto* target = dynamic_cast<table::TableImpl*>(table);
  if (target == nullptr) {
    return InvalidArgumentError("only tables made by Table::Make can be loaded");
  }
  auto loader = std::make_unique<table::LoaderImpl>(target, options);
  RETURN_IF_ERROR(loader->Begin());
  return std::unique_ptr<TableLoader>(std::move(loader));
}

Status TableLoader::Fits(const Table& table, const std::vector<StoredColumn>& columns,
                         std::span<const std::int64_t> shard_offsets) {
  const auto* target = dynamic_cast<const table::TableImpl*>(&table);
  if (target == nullptr) {
    return InvalidArgumentError("only tables made by Table::Make can be loaded");
  }
  RETURN_IF_ERROR(table::CheckOffsets(table.options().name, shard_offsets));
  return table::SchemaCheck(target, columns)
      .Run(static_cast<std::uint64_t>(shard_offsets.back()))
      .status();
}

Result<std::vector<std::int64_t>> DecodeTableKeys(std::span<const std::byte> stored,
                                                  std::uint64_t rows) {
  return DecodeKeyColumn(stored, rows);
}

}  // namespace cairn
