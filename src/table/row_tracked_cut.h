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

/// A cut of tracked arrays: the row numbers of each stripe, and a source for each array.
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

  /// An array was read to the end of a stripe.
  void Passed(std::uint32_t stripe);

 private:
  void End(bool committed);

  RowTrackedImpl* const arrays_;
  const CutRequest request_;
  bool open_ = false;
  CutScope scope_;
  std::array<std::uint64_t, RowTrackedImpl::kStripes> counts_{};
  std::array<std::vector<std::uint32_t>, RowTrackedImpl::kStripes> rows_;
  std::array<std::size_t, RowTrackedImpl::kStripes> passed_{};
  std::unique_ptr<RowNumbersSource> keys_;
  std::vector<std::unique_ptr<TrackedRowsSource>> sources_;
  TableSummary summary_;
};

}  // namespace cairn::table
