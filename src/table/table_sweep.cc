// What walks over all rows: eviction, iteration, clearing, memory.
#include <array>
#include <cmath>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "table/table_impl.h"

namespace cairn::table {
namespace {

// Rows looked at under one lock: some ten microseconds.
constexpr std::size_t kPiece = 256;

}  // namespace

bool TableImpl::Stale(const RowHeader* row, std::int64_t step, float* scratch) const {
  const EvictionOptions& eviction = *options_.eviction;
  if (eviction.steps_to_live && step - row->version > *eviction.steps_to_live) return true;
  if (!eviction.min_l2_norm || scratch == nullptr) return false;
  layout_.ReadWeights(row, scratch);
  double square = 0;
  for (std::uint32_t i = 0; i < options_.dim; ++i) {
    square += static_cast<double>(scratch[i]) * static_cast<double>(scratch[i]);
  }
  return std::sqrt(square) < static_cast<double>(*eviction.min_l2_norm);
}

std::uint64_t TableImpl::EvictSome(Stripe* stripe, Shard* shard, RowStore* store,
                                   RowStore::Cursor* cursor, std::int64_t step, bool* done) {
  const bool pending = store != &shard->rows;
  std::vector<float> scratch(options_.dim);
  std::uint64_t evicted = 0;
  const CutGate::Batch batch(gate_.get());
  std::unique_lock<Mutex> lock(stripe->mu);
  for (std::size_t i = 0; i < kPiece; ++i) {
    RowHeader* row = store->Next(cursor);
    if (row == nullptr) {
      *done = true;
      return evicted;
    }
    while (Stale(row, step, pending ? nullptr : scratch.data())) {
      const std::int64_t key = row->key;
      const std::uint64_t hash = IndexHash(key);
      const auto erase = [&] {
        return pending ? ErasePending(stripe, shard, row, hash)
                       : EraseRow(stripe, shard, row, hash);
      };
      if (erase() == Change::kDone) {
        ++evicted;
        break;
      }
      const std::uint64_t seen = side_.releases();
      if (erase() == Change::kDone) {
        ++evicted;
        break;
      }
      lock.unlock();
      side_.Await(seen);
      lock.lock();
      if (store->Find(key, hash) != row) break;  // somebody else removed it meanwhile
    }
  }
  return evicted;
}

Result<EvictReport> TableImpl::Evict(std::int64_t step) {
  if (!options_.eviction ||
      (!options_.eviction->steps_to_live && !options_.eviction->min_l2_norm)) {
    return FailedPreconditionError("table \"" + options_.name +
                                   "\" was made without eviction options: there is nothing to "
                                   "evict by");
  }
  RETURN_IF_ERROR(CheckUsable());
  EvictReport report;
  try {
    for (std::uint32_t s = 0; s < kTableShards; ++s) {
      Shard* shard = FindShard(s);
      if (shard == nullptr) continue;
      const auto sweep = [&](RowStore* store) {
        std::uint64_t evicted = 0;
        RowStore::Cursor cursor;
        for (bool done = store == nullptr; !done;) {
          evicted += EvictSome(StripeOf(s), shard, store, &cursor, step, &done);
        }
        return evicted;
      };
      report.rows += sweep(&shard->rows);
      RowStore* pending = nullptr;
      {
        const MutexLock lock(LockOf(s));
        pending = shard->pending.get();
      }
      report.pending += sweep(pending);
    }
  } catch (const std::bad_alloc&) {
    return ResourceExhaustedError("table \"" + options_.name +
                                  "\": no memory to evict rows; a part of them is gone");
  }
  return report;
}

Status TableImpl::ForEach(const std::function<Status(const RowView&)>& fn) {
  RETURN_IF_ERROR(CheckUsable());
  const std::size_t dim = options_.dim;
  const std::size_t slots = layout_.slot_floats();
  std::vector<RowHeader> headers;
  std::vector<float> floats(kPiece * (dim + slots));
  for (std::uint32_t s = 0; s < kTableShards; ++s) {
    const Shard* shard = FindShard(s);
    RowStore::Cursor cursor;
    for (bool done = shard == nullptr; !done;) {
      headers.clear();
      {
        const MutexLock lock(LockOf(s));
        while (headers.size() < kPiece) {
          const RowHeader* row = shard->rows.Next(&cursor);
          done = row == nullptr;
          if (done) break;
          float* to = floats.data() + headers.size() * (dim + slots);
          layout_.ReadWeights(row, to);
          std::copy_n(layout_.Slots(row), slots, to + dim);
          headers.push_back(*row);
        }
      }
      for (std::size_t i = 0; i < headers.size(); ++i) {
        const float* at = floats.data() + i * (dim + slots);
        RETURN_IF_ERROR(fn({.key = headers[i].key,
                            .frequency = headers[i].frequency,
                            .version = headers[i].version,
                            .weights = {at, dim},
                            .slots = {at + dim, slots}}));
      }
    }
  }
  return Status::Ok();
}

void TableImpl::ResetShards() {
  for (std::uint32_t s = 0; s < kTableShards; ++s) {
    Shard* shard = FindShard(s);
    if (shard == nullptr) continue;
    const MutexLock lock(LockOf(s));
    shard->rows.Reset();
    // Emptied, not unmade: an eviction under way may be between two pieces of one.
    if (shard->pending != nullptr) shard->pending->Reset();
    if (shard->deleted != nullptr) shard->deleted->Reset();
  }
  for (std::uint32_t s = 0; s < kStripes; ++s) {
    stripes_[s].rows.store(0, std::memory_order_relaxed);
    stripes_[s].pending.store(0, std::memory_order_relaxed);
  }
  durable_.Set({});
  // Nothing points there any more: lookups find rows only through the indexes.
  slab_.Reset();
  row_lists_.Reset();
  stage_.Reset();
}

Status TableImpl::Clear() {
  RETURN_IF_ERROR(CheckUsable());
  return gate_->Exclusive([&]() -> Status {
    const MutexLock lock(&cut_mu_);
    if (cut_open_) {
      return FailedPreconditionError("table \"" + options_.name +
                                     "\" cannot be cleared while a cut of it is being saved: wait "
                                     "for that save, or erase its rows");
    }
    ResetShards();
    has_base_ = false;
    ++settled_count_;
    epoch_.tracking = false;
    return Status::Ok();
  });
}

TableMemory TableImpl::memory() const {
  TableMemory memory;
  std::uint64_t used = 0;
  for (std::uint32_t s = 0; s < kTableShards; ++s) {
    const Shard* shard = FindShard(s);
    if (shard == nullptr) continue;
    const MutexLock lock(LockOf(s));
    memory.rows += shard->rows.row_bytes();
    memory.index += shard->rows.index_bytes();
    memory.tracking += shard->rows.tracking_bytes();
    used += shard->rows.row_bytes();
    if (shard->pending != nullptr) {
      used += shard->pending->row_bytes();
      memory.pending += shard->pending->row_bytes() + shard->pending->index_bytes() +
                        shard->pending->tracking_bytes();
    }
    if (shard->deleted != nullptr) {
      used += shard->deleted->row_bytes();
      memory.tracking += shard->deleted->row_bytes() + shard->deleted->index_bytes() +
                         shard->deleted->tracking_bytes();
    }
  }
  // What the slab has and no shard uses yet.
  const std::uint64_t slab = slab_.bytes();
  memory.rows += slab > used ? slab - used : 0;
  memory.tracking += row_lists_.bytes() + stage_.bytes() + kept_rows_.spare_bytes();
  memory.side_buffer = side_.used();
  return memory;
}

}  // namespace cairn::table
