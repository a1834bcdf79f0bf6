// What a batch does to a table: lookups, gradients, assignments, removals. Each sorts its keys by
// stripe, and works through a stripe's keys under its lock: first all are found in the index, and
// their records requested from memory, then each is used. A stripe that another thread holds is
// left for later.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <optional>
#include <vector>

#include "base/status_macros.h"
#include "table/random_stream.h"
#include "table/table_impl.h"

namespace cairn::table {
namespace {

// Keys whose records are requested at the same time.
constexpr std::size_t kBlock = 64;
constexpr std::size_t kLine = 64;

/// Memory that batches of a thread use one after the other.
struct Scratch {
  BatchPlan plan;
  Duplicates duplicates;
  std::vector<float> sum;
  std::vector<float> weights;
};
Scratch& ThreadScratch() {
  thread_local Scratch scratch;
  return scratch;
}

Status NoMemory(const TableOptions& options) {
  return ResourceExhaustedError("table \"" + options.name +
                                "\": no memory for further rows; a part of the batch was applied");
}

Status CheckRows(const TableOptions& options, std::size_t ids, std::size_t floats,
                 std::string_view what) {
  if (floats == ids * options.dim) return Status::Ok();
  return InvalidArgumentError(fmt::format("table \"{}\": {} ids of {} weights need {} {}, not {}",
                                          options.name, ids, options.dim, ids * options.dim, what,
                                          floats));
}

}  // namespace

void TableImpl::PrefetchIndexes(const Stripe& stripe, std::span<const BatchItem> items) const {
  // The first of a very long run: fetching more would push out what was fetched.
  constexpr std::size_t kMost = 4 * kBlock;
  for (const BatchItem& item : items.first(std::min(items.size(), kMost))) {
    const Shard* shard =
        stripe.shards[item.shard % kShardsPerStripe].load(std::memory_order_acquire);
    if (shard != nullptr) shard->rows.PrefetchIndex(item.hash);
  }
}

template <typename Work>
void TableImpl::ForStripes(const BatchPlan& plan, const Work& work) {
  std::array<std::uint32_t, kStripes> busy;
  std::size_t busy_count = 0;
  const auto run = [&](std::uint32_t s, std::unique_lock<Mutex>* lock) {
    std::uint32_t done = 0;
    while (work(&stripes_[s], plan.stripe(s), &done) == Change::kFull) {
      // Once more after looking at the count, so that no release goes unseen.
      const std::uint64_t seen = side_.releases();
      if (work(&stripes_[s], plan.stripe(s), &done) != Change::kFull) break;
      lock->unlock();
      side_.Await(seen);
      lock->lock();
    }
  };
  PrefetchIndexes(stripes_[0], plan.stripe(0));
  for (std::uint32_t s = 0; s < kStripes; ++s) {
    if (s + 1 < kStripes) PrefetchIndexes(stripes_[s + 1], plan.stripe(s + 1));
    if (plan.stripe(s).empty()) continue;
    std::unique_lock<Mutex> lock(stripes_[s].mu, std::try_to_lock);
    if (lock.owns_lock()) {
      run(s, &lock);
    } else {
      busy[busy_count++] = s;
    }
  }
  for (std::size_t i = 0; i < busy_count; ++i) {
    LockSoon(&stripes_[busy[i]].mu);
    std::unique_lock<Mutex> lock(stripes_[busy[i]].mu, std::adopt_lock);
    run(busy[i], &lock);
  }
}

void TableImpl::FindRows(const Stripe& stripe, std::span<const BatchItem> items,
                         std::size_t row_bytes, std::span<RowHeader*> rows) const {
  for (std::size_t i = 0; i < items.size(); ++i) {
    const Shard* shard =
        stripe.shards[items[i].shard % kShardsPerStripe].load(std::memory_order_relaxed);
    rows[i] = shard == nullptr ? nullptr : shard->rows.Candidate(items[i].hash);
    if (rows[i] == nullptr) continue;
    const std::byte* record = RowLayout::Bytes(rows[i]);
    for (std::size_t at = 0; at < row_bytes; at += kLine) __builtin_prefetch(record + at);
    __builtin_prefetch(record + row_bytes - 1);
  }
}

RowHeader* TableImpl::Confirm(const Stripe& stripe, const BatchItem& item, RowHeader* candidate) {
  if (candidate != nullptr && candidate->key == item.key) return candidate;
  // Another key of the same tag, or the row was made by this batch since.
  const Shard* shard = stripe.shards[item.shard % kShardsPerStripe].load(std::memory_order_relaxed);
  return shard == nullptr ? nullptr : shard->rows.Find(item.key, item.hash);
}

void TableImpl::InitialValue(std::int64_t key, float* out) const {
  options_.initializer->Fill(RowStream(stream_, key), {out, options_.dim});
}

void TableImpl::InitializeRow(RowHeader* row) {
  row->version = step();
  layout_.InitializeSlots(row);
  if (options_.dtype == DType::kF32) {
    InitialValue(row->key, layout_.Weights(row));
    return;
  }
  std::vector<float>& weights = ThreadScratch().weights;
  weights.resize(options_.dim);
  InitialValue(row->key, weights.data());
  layout_.WriteWeights(row, weights.data());
}

Change TableImpl::Admit(Stripe* stripe, Shard* shard, const BatchItem& item, bool count,
                        RowHeader** row) {
  RowHeader* pending =
      shard->pending != nullptr ? shard->pending->Find(item.key, item.hash) : nullptr;
  if (pending != nullptr && !shard->pending->Touch(pending, epoch_, durable_)) {
    return Change::kFull;
  }
  if (count) {
    const std::uint32_t seen = pending != nullptr ? pending->frequency + 1 : 1;
    if (seen < options_.admission->min_count) {
      if (pending == nullptr) {
        pending = MakePending(shard)->Insert(item.key, item.hash, epoch_);
        stripe->pending.fetch_add(1, std::memory_order_relaxed);
      }
      pending->frequency = seen;
      pending->version = step();
      return Change::kRefused;
    }
  }
  if (shard->deleted != nullptr) {
    RowHeader* grave = shard->deleted->Find(item.key, item.hash);
    if (grave != nullptr && !shard->deleted->Erase(grave, item.hash, epoch_, durable_)) {
      return Change::kFull;
    }
  }
  if (pending != nullptr) {
    // Touched above: it cannot fail.
    (void)shard->pending->Erase(pending, item.hash, epoch_, durable_);
    stripe->pending.fetch_sub(1, std::memory_order_relaxed);
  }
  *row = shard->rows.Insert(item.key, item.hash, epoch_);
  stripe->rows.fetch_add(1, std::memory_order_relaxed);
  InitializeRow(*row);
  return Change::kDone;
}

Status TableImpl::Lookup(std::span<const std::int64_t> ids, std::span<float> out, Missing missing) {
  RETURN_IF_ERROR(CheckRows(options_, ids.size(), out.size(), "places"));
  // Looking up changes nothing when rows are not made: it passes beside the gate.
  std::optional<CutGate::Batch> batch;
  if (missing == Missing::kCreate) batch.emplace(gate_.get());
  RETURN_IF_ERROR(CheckBatch(ids));
  BatchPlan& plan = ThreadScratch().plan;
  const std::size_t row_bytes = layout_.columns()[0].offset + layout_.columns()[0].bytes;
  const bool count = options_.admission.has_value();
  const auto work = [&](Stripe* stripe, std::span<const BatchItem> items, std::uint32_t* done) {
    std::array<RowHeader*, kBlock> rows;
    while (*done < items.size()) {
      const auto block = items.subspan(*done, std::min(kBlock, items.size() - *done));
      FindRows(*stripe, block, row_bytes, rows);
      for (std::size_t i = 0; i < block.size(); ++i, ++*done) {
        const BatchItem& item = block[i];
        float* to = out.data() + std::size_t{item.position} * options_.dim;
        RowHeader* row = Confirm(*stripe, item, rows[i]);
        if (row == nullptr && missing == Missing::kCreate) {
          const Change made = Admit(stripe, MakeShard(stripe, item.shard), item, count, &row);
          if (made == Change::kFull) return Change::kFull;
        }
        if (row != nullptr) {
          layout_.ReadWeights(row, to);
        } else {
          InitialValue(item.key, to);
        }
      }
    }
    return Change::kDone;
  };
  try {
    plan.Build(ids);
    ForStripes(plan, work);
  } catch (const std::bad_alloc&) {
    return NoMemory(options_);
  }
  return Status::Ok();
}

void TableImpl::Update(RowHeader* row, const float* gradient, std::uint32_t occurrences, float rate,
                       std::int64_t step, float* scratch) {
  row->frequency =
      row->frequency > kMaxFrequency - occurrences ? kMaxFrequency : row->frequency + occurrences;
  row->version = step;
  if (options_.dtype == DType::kF32) {
    options_.optimizer->Apply(layout_.Weights(row), layout_.Slots(row), gradient, options_.dim,
                              rate);
    return;
  }
  layout_.ReadWeights(row, scratch);
  options_.optimizer->Apply(scratch, layout_.Slots(row), gradient, options_.dim, rate);
  layout_.WriteWeights(row, scratch);
}

Status TableImpl::ApplyGradients(std::span<const std::int64_t> ids,
                                 std::span<const float> gradients) {
  RETURN_IF_ERROR(CheckRows(options_, ids.size(), gradients.size(), "gradients"));
  const CutGate::Batch batch(gate_.get());
  RETURN_IF_ERROR(CheckBatch(ids));
  const std::size_t dim = options_.dim;
  const float rate = learning_rate();
  const std::int64_t now = step();
  Scratch& scratch = ThreadScratch();
  Duplicates& duplicates = scratch.duplicates;
  const auto gradient_of = [&](const BatchItem& item) {
    return gradients.data() + item.position * dim;
  };
  const auto work = [&](Stripe* stripe, std::span<const BatchItem> items, std::uint32_t* done) {
    std::array<RowHeader*, kBlock> rows;
    duplicates.Build(items);
    while (*done < items.size()) {
      const auto block = items.subspan(*done, std::min(kBlock, items.size() - *done));
      FindRows(*stripe, block, layout_.stride(), rows);
      for (std::size_t i = 0; i < block.size(); ++i, ++*done) {
        if (!duplicates.IsFirst(*done)) continue;
        const BatchItem& item = block[i];
        RowHeader* row = Confirm(*stripe, item, rows[i]);
        if (row == nullptr) {
          if (options_.admission) continue;  // only lookups admit
          const Change made = Admit(stripe, MakeShard(stripe, item.shard), item, false, &row);
          if (made == Change::kFull) return Change::kFull;
        }
        Shard* shard =
            stripe->shards[item.shard % kShardsPerStripe].load(std::memory_order_relaxed);
        if (!shard->rows.Touch(row, epoch_, durable_)) return Change::kFull;
        const float* gradient = gradient_of(item);
        std::uint32_t occurrences = 1;
        for (std::uint32_t next = duplicates.Next(*done); next != Duplicates::kNone;
             next = duplicates.Next(next)) {
          if (++occurrences == 2) scratch.sum.assign(gradient, gradient + dim);
          const float* more = gradient_of(items[next]);
          for (std::size_t j = 0; j < dim; ++j) scratch.sum[j] += more[j];
        }
        Update(row, occurrences == 1 ? gradient : scratch.sum.data(), occurrences, rate, now,
               scratch.weights.data());
      }
    }
    return Change::kDone;
  };
  try {
    scratch.weights.resize(dim);
    scratch.plan.Build(ids);
    ForStripes(scratch.plan, work);
  } catch (const std::bad_alloc&) {
    return NoMemory(options_);
  }
  return Status::Ok();
}

Status TableImpl::Assign(std::span<const std::int64_t> ids, std::span<const float> values) {
  RETURN_IF_ERROR(CheckRows(options_, ids.size(), values.size(), "values"));
  const CutGate::Batch batch(gate_.get());
  RETURN_IF_ERROR(CheckBatch(ids));
  const auto work = [&](Stripe* stripe, std::span<const BatchItem> items, std::uint32_t* done) {
    for (; *done < items.size(); ++*done) {
      const BatchItem& item = items[*done];
      Shard* shard = MakeShard(stripe, item.shard);
      RowHeader* row = shard->rows.Find(item.key, item.hash);
      if (row == nullptr && Admit(stripe, shard, item, false, &row) == Change::kFull) {
        return Change::kFull;
      }
      if (!shard->rows.Touch(row, epoch_, durable_)) return Change::kFull;
      row->version = step();
      layout_.WriteWeights(row, values.data() + std::size_t{item.position} * options_.dim);
    }
    return Change::kDone;
  };
  BatchPlan& plan = ThreadScratch().plan;
  try {
    plan.Build(ids);
    ForStripes(plan, work);
  } catch (const std::bad_alloc&) {
    return NoMemory(options_);
  }
  return Status::Ok();
}

bool TableImpl::Bury(Shard* shard, std::int64_t key, std::uint64_t hash) {
  // Before the first full nobody needs to know.
  if (!kTracking || !epoch_.tracking) return true;
  RowStore* deleted = MakeDeleted(shard);
  RowHeader* grave = deleted->Find(key, hash);
  if (grave != nullptr) return deleted->Touch(grave, epoch_, durable_);
  deleted->Insert(key, hash, epoch_);
  return true;
}

Change TableImpl::EraseRow(Stripe* stripe, Shard* shard, RowHeader* row, std::uint64_t hash) {
  const std::int64_t key = row->key;
  if (!shard->rows.Touch(row, epoch_, durable_)) return Change::kFull;
  if (!Bury(shard, key, hash)) return Change::kFull;
  (void)shard->rows.Erase(row, hash, epoch_, durable_);  // touched: it cannot fail
  stripe->rows.fetch_sub(1, std::memory_order_relaxed);
  return Change::kDone;
}

Change TableImpl::ErasePending(Stripe* stripe, Shard* shard, RowHeader* row, std::uint64_t hash) {
  const std::int64_t key = row->key;
  if (!shard->pending->Touch(row, epoch_, durable_)) return Change::kFull;
  if (!Bury(shard, key, hash)) return Change::kFull;
  (void)shard->pending->Erase(row, hash, epoch_, durable_);
  stripe->pending.fetch_sub(1, std::memory_order_relaxed);
  return Change::kDone;
}

Result<std::uint64_t> TableImpl::Erase(std::span<const std::int64_t> ids) {
  const CutGate::Batch batch(gate_.get());
  RETURN_IF_ERROR(CheckBatch(ids));
  std::uint64_t erased = 0;
  const auto work = [&](Stripe* stripe, std::span<const BatchItem> items, std::uint32_t* done) {
    for (; *done < items.size(); ++*done) {
      const BatchItem& item = items[*done];
      Shard* shard = stripe->shards[item.shard % kShardsPerStripe].load(std::memory_order_relaxed);
      if (shard == nullptr) continue;
      if (RowHeader* row = shard->rows.Find(item.key, item.hash)) {
        if (EraseRow(stripe, shard, row, item.hash) == Change::kFull) return Change::kFull;
        ++erased;
      }
      RowHeader* pending =
          shard->pending != nullptr ? shard->pending->Find(item.key, item.hash) : nullptr;
      if (pending != nullptr && ErasePending(stripe, shard, pending, item.hash) == Change::kFull) {
        return Change::kFull;
      }
    }
    return Change::kDone;
  };
  BatchPlan& plan = ThreadScratch().plan;
  try {
    plan.Build(ids);
    ForStripes(plan, work);
  } catch (const std::bad_alloc&) {
    return NoMemory(options_);
  }
  return erased;
}

}  // namespace cairn::table
