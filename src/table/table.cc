#include <cairn/table.h>

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "base/checksum.h"
#include "base/status_macros.h"
#include "table/random_stream.h"
#include "table/table_impl.h"

namespace cairn {

std::uint32_t TableShardOf(std::int64_t key) { return table::ShardOf(key); }

Status TableOptions::Validate() const {
  if (name.empty()) return InvalidArgumentError("a table needs a name");
  for (const char c : name) {
    if (static_cast<unsigned char>(c) < 0x20) {
      return InvalidArgumentError("a table's name may not hold control characters");
    }
  }
  const std::string where = "table \"" + name + "\": ";
  constexpr std::uint32_t kMaxDim = 65536;
  if (dim == 0 || dim > kMaxDim) {
    return InvalidArgumentError(
        fmt::format("{}a row has 1 to {} weights, not {}", where, kMaxDim, dim));
  }
  if (dtype != DType::kF32 && dtype != DType::kF16 && dtype != DType::kBF16) {
    return InvalidArgumentError(
        fmt::format("{}rows are F32, F16 or BF16, not {}", where, DTypeName(dtype)));
  }
  if (optimizer == nullptr) return InvalidArgumentError(where + "no optimizer is given");
  if (initializer == nullptr) return InvalidArgumentError(where + "no initializer is given");
  if (admission && admission->min_count == 0) {
    return InvalidArgumentError(where + "admission needs a count of at least 1");
  }
  if (eviction && eviction->steps_to_live && *eviction->steps_to_live < 0) {
    return InvalidArgumentError(where + "steps_to_live is negative");
  }
  if (eviction && eviction->min_l2_norm &&
      (!std::isfinite(*eviction->min_l2_norm) || *eviction->min_l2_norm < 0)) {
    return InvalidArgumentError(where + "min_l2_norm must be a number of at least 0");
  }
  if (shards.begin >= shards.end || shards.end > kTableShards) {
    return InvalidArgumentError(fmt::format("{}shards [{}, {}) are not a part of [0, {})", where,
                                            shards.begin, shards.end, kTableShards));
  }
  constexpr std::size_t kMaxSlots = 60;  // a bit for each column
  constexpr std::uint64_t kMaxRowFloats = 1u << 20;
  const std::vector<SlotSpec> specs = optimizer->Slots(dim);
  std::uint64_t floats = dim;
  for (const SlotSpec& slot : specs) floats += slot.width;
  if (specs.size() > kMaxSlots || floats > kMaxRowFloats) {
    return InvalidArgumentError(where + "the optimizer keeps too much for each row");
  }
  return Status::Ok();
}

Result<std::unique_ptr<Table>> Table::Make(TableOptions options) {
  RETURN_IF_ERROR(options.Validate());
  return std::unique_ptr<Table>(std::make_unique<table::TableImpl>(std::move(options)));
}

namespace table {

TableImpl::TableImpl(TableOptions options)
    : options_(std::move(options)),
      gate_(options_.gate != nullptr ? options_.gate : CutGate::Process()),
      layout_(options_.dim, options_.dtype, options_.optimizer->Slots(options_.dim)),
      bare_layout_(0, DType::kF32, {}),
      stream_(TableStream(options_.seed, Xxh3(options_.name))),
      rate_(options_.optimizer->learning_rate()),
      side_(options_.side_buffer_bytes),
      kept_rows_(layout_.stride()),
      stripes_(std::make_unique<Stripe[]>(kStripes)) {}

TableImpl::~TableImpl() {
  for (std::uint32_t s = 0; s < kTableShards; ++s) delete FindShard(s);
}

Shard* TableImpl::MakeShard(Stripe* stripe, std::uint32_t shard) {
  std::atomic<Shard*>& place = stripe->shards[shard % kShardsPerStripe];
  Shard* made = place.load(std::memory_order_relaxed);
  if (made == nullptr) {
    made = new Shard(&layout_, memory_of_shards());
    place.store(made, std::memory_order_release);
  }
  return made;
}

RowStore* TableImpl::MakePending(Shard* shard) {
  if (shard->pending == nullptr) {
    shard->pending = std::make_unique<RowStore>(&bare_layout_, memory_of_shards());
  }
  return shard->pending.get();
}

RowStore* TableImpl::MakeDeleted(Shard* shard) {
  if (shard->deleted == nullptr) {
    shard->deleted = std::make_unique<RowStore>(&bare_layout_, memory_of_shards());
  }
  return shard->deleted.get();
}

Status TableImpl::CheckUsable() const {
  if (!loading_.load(std::memory_order_acquire)) return Status::Ok();
  return FailedPreconditionError("table \"" + options_.name +
                                 "\" is being loaded: wait until that is over");
}

Status TableImpl::CheckBatch(std::span<const std::int64_t> ids) const {
  RETURN_IF_ERROR(CheckUsable());
  constexpr std::size_t kMaxBatch = std::size_t{1} << 31;
  if (ids.size() > kMaxBatch) {
    return InvalidArgumentError(
        fmt::format("table \"{}\": a batch of {} ids; at most {} go at once", options_.name,
                    ids.size(), kMaxBatch));
  }
  if (options_.shards == ShardRange{}) return Status::Ok();
  for (const std::int64_t id : ids) {
    if (!options_.shards.Contains(ShardOf(id))) {
      return InvalidArgumentError(
          fmt::format("table \"{}\": key {} is of shard {}; this part holds shards [{}, {}) "
                      "(TableShardOf, in Python cairn.table.shards_of, tells whose a key is)",
                      options_.name, id, ShardOf(id), options_.shards.begin, options_.shards.end));
    }
  }
  return Status::Ok();
}

std::uint64_t TableImpl::size() const {
  std::uint64_t rows = 0;
  for (std::uint32_t s = 0; s < kStripes; ++s) {
    rows += stripes_[s].rows.load(std::memory_order_relaxed);
  }
  return rows;
}

std::uint64_t TableImpl::pending_size() const {
  std::uint64_t keys = 0;
  for (std::uint32_t s = 0; s < kStripes; ++s) {
    keys += stripes_[s].pending.load(std::memory_order_relaxed);
  }
  return keys;
}

}  // namespace table
}  // namespace cairn
