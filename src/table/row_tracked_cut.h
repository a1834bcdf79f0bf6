#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "table/cut_member.h"
#include "table/row_tracked.h"

namespace cairn::table {

/// "column/weights": what a tracked array is called in its table.
inline constexpr std::string_view kArrayColumnPrefix = "column/";

class RowNumbersSource;
class TrackedRowsSource;

/// A cut of tracked arrays: the row numbers of each stripe, and a source for each array. Which rows
/// they are is found out when they are written; whoever changes rows waits for the flip alone.
class RowTrackedCut final : public CutMember {
 public:
  RowTrackedCut(RowTrackedImpl* arrays, const CutRequest& request);
  ~RowTrackedCut() override;

  CutGate* gate() const override { return arrays_->gate(); }
  const std::string& name() const override { return arrays_->options().name; }
  Status Open() override { return arrays_->OpenCut(request_.kind); }
  void Cancel() override { arrays_->CancelCut(); }
  void Flip() override;
  Status Prepare() override;

  CutKind kind() const override { return request_.kind; }
  const TableSummary& summary() const override { return summary_; }
  std::vector<Tensor> Tensors() override;
  void Committed() override { End(true); }
  void Failed() override { End(false); }
  Error QuantizationError() const override { return {}; }

  // For the sources, in the thread that writes.

  std::size_t RowsIn(std::uint32_t stripe) const { return counts_[stripe]; }
  /// The numbers of a stripe's rows from the `at`-th on, as many as fit into `scratch`, where they
  /// are put unless they are listed anyway. There are so many.
  Result<std::span<const std::uint32_t>> Numbers(std::uint32_t stripe, std::size_t at,
                                                 std::span<std::uint32_t> scratch);
  /// An array was read to the end of a stripe.
  void Passed(std::uint32_t stripe);

 private:
  void End(bool committed);
  Status List(std::uint32_t stripe);

  RowTrackedImpl* const arrays_;
  const CutRequest request_;
  bool open_ = false;
  CutScope scope_;
  std::array<std::uint64_t, RowTrackedImpl::kStripes> counts_{};
  std::array<std::vector<std::uint32_t>, RowTrackedImpl::kStripes> rows_;  // of an increment
  std::array<std::size_t, RowTrackedImpl::kStripes> passed_{};
  std::unique_ptr<RowNumbersSource> keys_;
  std::vector<std::unique_ptr<TrackedRowsSource>> sources_;
  TableSummary summary_;
};

}  // namespace cairn::table
