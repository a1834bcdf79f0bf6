#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/table.h>

#include "table/column_source.h"
#include "table/cut_gatherer.h"
#include "table/cut_member.h"
#include "table/cut_stage.h"
#include "table/table_impl.h"

namespace cairn::table {

/// "values_scale", "slot/accumulator_scale".
inline constexpr std::string_view kScaleSuffix = "_scale";
/// Instead of "keys".
inline constexpr std::string_view kCompressedKeys = "keys_zstd";

/// A cut: the counts of the instant, and a source for each column. Flip is called while the gate is
/// closed; the rest by the thread that saves.
class TableCutImpl final : public CutMember {
 public:
  TableCutImpl(TableImpl* table, const CutRequest& request);
  ~TableCutImpl() override;

  CutGate* gate() const override { return table_->gate(); }
  const std::string& name() const override { return table_->options().name; }
  Status Open() override { return table_->OpenCut(request_.kind); }
  void Cancel() override { table_->CancelCut(); }
  void Flip() override;
  Status Prepare() override;

  CutKind kind() const override { return request_.kind; }
  const TableSummary& summary() const override { return summary_; }
  std::vector<Tensor> Tensors() override;
  void Committed() override;
  void Failed() override;
  Error QuantizationError() const override { return error_; }

 private:
  /// They are read twice, or after the keys.
  bool StagesWeights() const { return request_.quantize || request_.compress_keys; }
  void PlanColumns();
  void AddColumns(std::string name, ColumnKind kind, std::size_t payload);
  Status CompressKeys();
  void End(bool committed);

  TableImpl* const table_;
  const CutRequest request_;
  std::uint64_t stage_rows_ = 0;  // as many as are gathered at most
  bool open_ = false;
  CutScope scope_;
  TableImpl::CutCounts counts_;
  TableSummary summary_;
  std::vector<std::int64_t> offsets_;
  std::vector<ColumnSpec> columns_;
  std::unique_ptr<CutStage> stage_;
  std::unique_ptr<CutGatherer> gatherer_;
  std::unique_ptr<CutProgress> progress_;
  std::vector<std::unique_ptr<ColumnSource>> sources_;
  std::vector<std::byte> compressed_keys_;
  Error error_;
};

}  // namespace cairn::table
