#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <cairn/table.h>

#include "base/thread_annotations.h"
#include "table/batch_plan.h"
#include "table/row_store.h"
#include "table/stripe_lock.h"

namespace cairn::table {

/// A logical shard: its rows, counts of keys that are not admitted yet, and keys that were removed.
/// The latter two are records without weights, tracked and cut like rows.
struct Shard {
  Shard(const RowLayout* layout, const RowStore::Memory& memory) : rows(layout, memory) {}

  RowStore rows;
  std::unique_ptr<RowStore> pending;
  std::unique_ptr<RowStore> deleted;
};

/// Neighbouring shards under one lock.
struct alignas(64) Stripe {
  Mutex mu;
  std::atomic<std::uint64_t> rows{0};  // changed under the lock, read without
  std::atomic<std::uint64_t> pending{0};
  // Made under the lock when a key first needs one, and never unmade while the table lives.
  std::array<std::atomic<Shard*>, kShardsPerStripe> shards{};
};

/// Whether a change could be made.
enum class Change : std::uint8_t {
  kDone,
  kRefused,  // the key is not admitted yet
  kFull,     // the side buffer is: nothing was changed, wait and try again
};

/// The table. Locks: stripes, one at a time, within the gate; `cut_mu_` before any of them. The
/// epoch changes only while the gate is closed.
class TableImpl final : public Table {
 public:
  explicit TableImpl(TableOptions options);
  ~TableImpl() override;

  Status Lookup(std::span<const std::int64_t> ids, std::span<float> out, Missing missing) override;
  Status ApplyGradients(std::span<const std::int64_t> ids,
                        std::span<const float> gradients) override;
  Status Assign(std::span<const std::int64_t> ids, std::span<const float> values) override;
  Result<std::uint64_t> Erase(std::span<const std::int64_t> ids) override;
  Result<EvictReport> Evict(std::int64_t step) override;
  Status Clear() override;
  Status ForEach(const std::function<Status(const RowView&)>& fn) override;
  std::uint64_t size() const override;
  std::uint64_t pending_size() const override;
  TableMemory memory() const override;
  const TableOptions& options() const override { return options_; }
  const std::vector<SlotSpec>& slots() const override { return layout_.slots(); }
  std::int64_t step() const override { return step_.load(std::memory_order_relaxed); }
  void set_step(std::int64_t step) override { step_.store(step, std::memory_order_relaxed); }
  float learning_rate() const override { return rate_.load(std::memory_order_relaxed); }
  void set_learning_rate(float rate) override { rate_.store(rate, std::memory_order_relaxed); }
  bool has_base() const override;
  std::uint64_t settled_count() const override;
  std::uint64_t ChangedRows(CutKind kind) const override;

  const RowLayout& layout() const { return layout_; }
  Shard* FindShard(std::uint32_t shard) const {
    return stripes_[shard / kShardsPerStripe].shards[shard % kShardsPerStripe].load(
        std::memory_order_acquire);
  }
  Mutex* LockOf(std::uint32_t shard) const { return &stripes_[shard / kShardsPerStripe].mu; }
  SideBuffer* side_buffer() { return &side_; }
  /// For the columns of the cut that is open.
  Slab* stage() { return &stage_; }
  CutGate* gate() const { return gate_.get(); }

  // For cuts. A cut is opened before the gate closes, flipped within it, and ended once.
  Status OpenCut(CutKind kind) EXCLUDES(cut_mu_);
  void CancelCut() EXCLUDES(cut_mu_);
  /// Rows, deleted and pending keys of each shard that belong to the cut.
  struct CutCounts {
    std::array<std::uint32_t, kTableShards> rows{};
    std::array<std::uint32_t, kTableShards> deleted{};
    std::array<std::uint32_t, kTableShards> pending{};
    std::uint32_t read_once = 0;  // so many of the first shards
  };
  /// `once`: the first shards, with at most so many rows of the cut together, are read once.
  CutScope FlipEpoch(CutKind kind, std::uint64_t once, CutCounts* counts);
  void EndCut(const CutScope& scope, bool committed) EXCLUDES(cut_mu_);
  /// Nothing is read any more from the cut, which has still to end: its rows are no longer kept
  /// aside, and who waits for room there goes on.
  void EndCopies();

  // For the loader, which has the table to itself. Rows of a full belong to the epoch `base`, what
  // increments changed to the one after it; so the next increment stands on the same base.
  Status BeginLoad(bool merge) EXCLUDES(cut_mu_);
  void BeginLoadedCheckpoint(bool full);
  /// `keep` false: the load failed, and the table is emptied. `based`: a whole chain was loaded, on
  /// which increments can stand.
  void EndLoad(bool keep, bool based) EXCLUDES(cut_mu_);
  /// The record for a stored row, with the lock of its stripe held; `existed`: it was there.
  RowHeader* LoadRow(Stripe* stripe, Shard* shard, std::int64_t key, bool* existed);
  void LoadDeleted(std::int64_t key);
  void LoadPending(std::int64_t key, std::uint32_t count, std::int64_t version);
  Stripe* StripeOf(std::uint32_t shard) { return &stripes_[shard / kShardsPerStripe]; }
  Shard* MakeShard(Stripe* stripe, std::uint32_t shard);

 private:
  /// Calls work(stripe, items, &done) for each stripe's items with its lock held: it begins with
  /// item number `done`, and says kFull when it cannot go on before the side buffer has room.
  template <typename Work>
  void ForStripes(const BatchPlan& plan, const Work& work) NO_THREAD_SAFETY_ANALYSIS;
  /// Finds rows of items and fetches them from memory.
  void FindRows(const Stripe& stripe, std::span<const BatchItem> items, std::size_t row_bytes,
                std::span<RowHeader*> rows) const;
  static RowHeader* Confirm(const Stripe& stripe, const BatchItem& item, RowHeader* candidate);
  void PrefetchIndexes(const Stripe& stripe, std::span<const BatchItem> items) const;

  Status CheckBatch(std::span<const std::int64_t> ids) const;
  Status CheckUsable() const;
  RowStore::Memory memory_of_shards() {
    return {.rows = &slab_, .lists = &row_lists_, .side = &side_};
  }
  RowStore* MakePending(Shard* shard);
  RowStore* MakeDeleted(Shard* shard);
  /// Counts a key that has no row, or makes its row when it is admitted (`row`).
  Change Admit(Stripe* stripe, Shard* shard, const BatchItem& item, bool count, RowHeader** row);
  Change EraseRow(Stripe* stripe, Shard* shard, RowHeader* row, std::uint64_t hash);
  Change ErasePending(Stripe* stripe, Shard* shard, RowHeader* row, std::uint64_t hash);
  bool Bury(Shard* shard, std::int64_t key, std::uint64_t hash);
  void InitialValue(std::int64_t key, float* out) const;
  void InitializeRow(RowHeader* row);
  void Update(RowHeader* row, const float* gradient, std::uint32_t occurrences, float rate,
              std::int64_t step, float* scratch);
  bool Stale(const RowHeader* row, std::int64_t step, float* scratch) const;
  std::uint64_t EvictSome(Stripe* stripe, Shard* shard, RowStore* store, RowStore::Cursor* cursor,
                          std::int64_t step, bool* done);
  void ResetShards();
  void EndLoadOfShards(bool based);

  const TableOptions options_;
  const std::shared_ptr<CutGate> gate_;  // shared: other tables pass through it
  const RowLayout layout_;
  const RowLayout bare_layout_;  // of records without weights
  const std::uint64_t stream_;   // of seed and name

  std::atomic<std::int64_t> step_{0};
  std::atomic<float> rate_;
  std::atomic<bool> loading_{false};

  Slab slab_;
  RowListPool row_lists_;
  SideBuffer side_;
  KeptRowPool kept_rows_;
  Slab stage_;  // of the cut that is open
  std::unique_ptr<Stripe[]> stripes_;

  Epoch epoch_;                  // guarded by the gate
  std::uint32_t load_base_ = 0;  // of the load under way

  mutable Mutex cut_mu_;
  bool cut_open_ GUARDED_BY(cut_mu_) = false;
  bool has_base_ GUARDED_BY(cut_mu_) = false;
  std::uint64_t settled_count_ GUARDED_BY(cut_mu_) = 0;
  SharedDurableEpochs durable_;
};

}  // namespace cairn::table
