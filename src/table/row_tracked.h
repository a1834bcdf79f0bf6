#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include <cairn/row_tracked.h>

#include "base/thread_annotations.h"
#include "table/row_store.h"
#include "table/side_buffer.h"

namespace cairn::table {

/// Dense arrays by row. The same rules as in RowStore: a row's epoch is that of its last change,
/// the first touch in an epoch lists it, a cut puts the lists aside, and rows touched while its
/// columns are read keep their earlier bytes. Rows are never made or removed, so they are numbers.
/// Locks: stripes of neighbouring rows.
class RowTrackedImpl final : public RowTracked {
 public:
  static constexpr std::uint32_t kStripes = 64;

  explicit RowTrackedImpl(RowTrackedOptions options);

  Status Touch(std::span<const std::int64_t> rows) override;
  const RowTrackedOptions& options() const override { return options_; }
  bool has_base() const override;
  std::uint64_t settled_count() const override;
  std::uint64_t ChangedRows(CutKind kind) const override;
  Status Restored() override;
  Status ApplyIncrement(std::span<const std::int64_t> keys,
                        const std::vector<std::span<const std::byte>>& columns) override;

  CutGate* gate() const { return gate_.get(); }
  std::size_t RowBytes(std::size_t array) const { return row_bytes_[array]; }

  // For cuts, as TableImpl has them.
  Status OpenCut(CutKind kind) EXCLUDES(cut_mu_);
  void CancelCut() EXCLUDES(cut_mu_);
  CutScope FlipEpoch(CutKind kind, std::array<std::uint64_t, kStripes>* counts);
  void EndCut(const CutScope& scope, bool committed) EXCLUDES(cut_mu_);

  /// The numbers of a stripe's rows that belong to the cut of an increment, in rising order. Before
  /// the stripe's EndCopy.
  std::vector<std::uint32_t> CutRows(std::uint32_t stripe);
  /// Copies an array's rows as they were at the cut.
  void ReadCut(std::uint32_t stripe, std::span<const std::uint32_t> rows, std::size_t array,
               std::byte* out);
  /// All columns of the stripe were read.
  void EndCopy(std::uint32_t stripe);
  /// Rows [begin, end) of a stripe.
  std::pair<std::uint64_t, std::uint64_t> RowsOf(std::uint32_t stripe) const;

 private:
  struct alignas(64) Stripe {
    Mutex mu;
    std::vector<std::uint32_t> current GUARDED_BY(mu);
    std::vector<std::uint32_t> closed GUARDED_BY(mu);
    std::vector<std::uint32_t> earlier GUARDED_BY(mu);
    std::uint64_t since_parent GUARDED_BY(mu) = 0;
    std::uint64_t since_base GUARDED_BY(mu) = 0;
    DurableEpochs durable GUARDED_BY(mu);
    bool cutting GUARDED_BY(mu) = false;
    CutScope scope GUARDED_BY(mu);
    struct Kept {
      std::uint32_t epoch;
      std::unique_ptr<std::byte[]> bytes;
    };
    std::unordered_map<std::uint32_t, Kept> kept GUARDED_BY(mu);  // by row
  };

  std::uint32_t StripeOf(std::uint64_t row) const {
    return static_cast<std::uint32_t>(row / rows_per_stripe_);
  }
  std::byte* Row(std::size_t array, std::uint64_t row) const {
    return static_cast<std::byte*>(options_.arrays[array].data) + row * row_bytes_[array];
  }
  bool TouchLocked(Stripe* stripe, std::uint32_t row) REQUIRES(stripe->mu);
  bool KeepForCut(Stripe* stripe, std::uint32_t row) REQUIRES(stripe->mu);

  const RowTrackedOptions options_;
  const std::shared_ptr<CutGate> gate_;  // shared: tables pass through it too
  std::vector<std::size_t> row_bytes_;   // by array
  std::size_t all_bytes_ = 0;            // of a row in all arrays
  const std::uint64_t rows_per_stripe_;
  SideBuffer side_;
  std::vector<std::uint32_t> epochs_;  // by row, under its stripe's lock
  std::unique_ptr<Stripe[]> stripes_;
  Epoch epoch_;  // guarded by the gate

  mutable Mutex cut_mu_;
  bool cut_open_ GUARDED_BY(cut_mu_) = false;
  bool has_base_ GUARDED_BY(cut_mu_) = false;
  std::uint64_t settled_count_ GUARDED_BY(cut_mu_) = 0;
  DurableEpochs durable_ GUARDED_BY(cut_mu_);
};

}  // namespace cairn::table
