// Which changes are durable: opening, flipping and ending cuts.
#include "base/status_macros.h"
#include "table/table_impl.h"

namespace cairn::table {

bool TableImpl::has_base() const {
  const MutexLock lock(&cut_mu_);
  return has_base_;
}

std::uint64_t TableImpl::settled_count() const {
  const MutexLock lock(&cut_mu_);
  return settled_count_;
}

std::uint64_t TableImpl::ChangedRows(CutKind kind) const {
  if (kind == CutKind::kFull) return size();
  std::uint64_t changed = 0;
  for (std::uint32_t s = 0; s < kTableShards; ++s) {
    const Shard* shard = FindShard(s);
    if (shard == nullptr) continue;
    const MutexLock lock(LockOf(s));
    for (const RowStore* store :
         {&shard->rows, static_cast<const RowStore*>(shard->deleted.get())}) {
      if (store == nullptr) continue;
      changed +=
          kind == CutKind::kCumulative ? store->ChangedSinceBase() : store->ChangedSinceParent();
    }
  }
  return changed;
}

Status TableImpl::OpenCut(CutKind kind) {
  RETURN_IF_ERROR(CheckUsable());
  const MutexLock lock(&cut_mu_);
  if (cut_open_) {
    return FailedPreconditionError("table \"" + options_.name +
                                   "\" has a cut that is still being saved: wait for that save, "
                                   "then say Committed or Failed");
  }
  if (kind != CutKind::kFull && !has_base_) {
    return FailedPreconditionError("table \"" + options_.name +
                                   "\" has no full checkpoint yet that an increment could stand "
                                   "on: save a full one first");
  }
  cut_open_ = true;
  return Status::Ok();
}

void TableImpl::CancelCut() {
  const MutexLock lock(&cut_mu_);
  cut_open_ = false;
}

CutScope TableImpl::FlipEpoch(CutKind kind, std::uint64_t once, CutCounts* counts) {
  CutScope scope;
  scope.epoch = epoch_.number;
  scope.full = kind == CutKind::kFull;
  scope.cumulative = kind == CutKind::kCumulative;
  const DurableEpochs durable = durable_.Get();
  scope.parent = durable.parent;
  scope.from = scope.cumulative ? durable.base : durable.parent;
  ++epoch_.number;
  epoch_.tracking = true;
  const auto prefetch = [&](std::uint32_t stripe) {
    if (stripe >= kStripes) return;
    for (const std::atomic<Shard*>& place : stripes_[stripe].shards) {
      const auto* shard = reinterpret_cast<const std::byte*>(place.load(std::memory_order_acquire));
      if (shard == nullptr) continue;
      for (std::size_t at = 0; at < sizeof(Shard); at += 64) __builtin_prefetch(shard + at, 1);
    }
  };
  prefetch(0);
  for (std::uint32_t s = 0; s < kStripes; ++s) {
    prefetch(s + 1);
    // Not against updates, which the gate keeps out, but against those who look on.
    const MutexLock lock(&stripes_[s].mu);
    for (std::uint32_t i = 0; i < kShardsPerStripe; ++i) {
      Shard* shard = stripes_[s].shards[i].load(std::memory_order_relaxed);
      const std::uint32_t number = s * kShardsPerStripe + i;
      if (shard != nullptr) {
        counts->rows[number] = static_cast<std::uint32_t>(shard->rows.BeginCut(scope));
      }
      if (!scope.full && counts->read_once == number && counts->rows[number] <= once) {
        once -= counts->rows[number];
        counts->read_once = number + 1;
        if (shard != nullptr) shard->rows.ReadCutOnce(&kept_rows_);
      }
      if (shard == nullptr) continue;
      if (shard->pending != nullptr) {
        counts->pending[number] = static_cast<std::uint32_t>(shard->pending->BeginCut(scope));
      }
      if (shard->deleted != nullptr) {
        const auto deleted = static_cast<std::uint32_t>(shard->deleted->BeginCut(scope));
        if (scope.full) {
          shard->deleted->EndCopy();  // a full has no use for them
        } else {
          counts->deleted[number] = deleted;
        }
      }
    }
  }
  return scope;
}

void TableImpl::EndCopies() {
  for (std::uint32_t s = 0; s < kTableShards; ++s) {
    Shard* shard = FindShard(s);
    if (shard == nullptr) continue;
    const MutexLock lock(LockOf(s));
    for (RowStore* store : {&shard->rows, shard->pending.get(), shard->deleted.get()}) {
      if (store != nullptr) store->EndCopy();
    }
  }
}

void TableImpl::EndCut(const CutScope& scope, bool committed) {
  DurableEpochs durable = durable_.Get();
  if (committed) durable.parent = scope.epoch;
  if (committed && scope.full) durable.base = scope.epoch;
  // First here: an update that comes between counts a row that its shard forgets in a moment.
  durable_.Set(durable);
  for (std::uint32_t s = 0; s < kTableShards; ++s) {
    Shard* shard = FindShard(s);
    if (shard == nullptr) continue;
    shard->rows.CompactLists();
    const MutexLock lock(LockOf(s));
    for (RowStore* store : {&shard->rows, shard->pending.get(), shard->deleted.get()}) {
      if (store == nullptr) continue;
      store->EndCopy();
      store->EndCut(committed);
      if (store != &shard->rows) store->CompactLists();
    }
    if (committed && scope.full && shard->deleted != nullptr) shard->deleted->Forget(scope.epoch);
  }
  if (!scope.full) {
    kept_rows_.Trim();
    stage_.Rewind();
  }
  const MutexLock lock(&cut_mu_);
  if (committed && scope.full) has_base_ = true;
  if (committed) ++settled_count_;
  cut_open_ = false;
}

}  // namespace cairn::table
