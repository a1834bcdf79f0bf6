#pragma once

#include <cairn/table.h>

namespace cairn::table {

/// What several things of one cut have in common, while it is made: a table's or an array's.
class CutMember : public TableCut {
 public:
  virtual CutGate* gate() const = 0;
  virtual const std::string& name() const = 0;
  /// Says that a cut begins, or why it cannot.
  virtual Status Open() = 0;
  /// Undoes Open, when others could not.
  virtual void Cancel() = 0;
  /// While the gate is closed. Cannot fail.
  virtual void Flip() = 0;
  /// After the gate was opened again.
  virtual Status Prepare() = 0;
};

}  // namespace cairn::table
