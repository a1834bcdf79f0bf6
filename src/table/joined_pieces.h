#pragma once

#include <memory>
#include <vector>

#include <cairn/checkpoint_manager.h>
#include <cairn/table.h>

namespace cairn::table {

/// The cuts of the pieces of one variable as one table: each column of the first, then that of the
/// next, …. One participant has one column of a name.
class JoinedPieces {
 public:
  /// Of CutTablesAndArrays; those of one name were checked (CheckPieces). Borrowed.
  explicit JoinedPieces(std::vector<TableCut*> pieces);
  ~JoinedPieces();

  TableFacts facts() const;
  /// Borrowed from this object.
  std::vector<Tensor> Tensors();

 private:
  class Source;
  std::vector<TableCut*> pieces_;
  std::vector<std::unique_ptr<Source>> sources_;
};

/// What the manifest says of a cut.
TableFacts FactsOf(const TableSummary& summary);

}  // namespace cairn::table
