#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include <cairn/status.h>
#include <cairn/table.h>
#include <cairn/table_rows.h>

/// Between tables and the engine: rows of a restore point into tables.
namespace cairn {

/// Takes the rows of a restore into tables, each only what its shards own:
///
///   TableRestore sink({users.get(), items.get()});
///   request.tables = &sink;
///   auto restored = manager->Restore(request);
///   if (restored.ok() && *restored) sink.Finish();
///
/// What does not fit (a table that is not stored, one that is stored and not given, other dims,
/// dtypes or slots) is refused before anything changes. When the restore fails after it began to
/// read, or Finish is not called, the tables are left empty. Used by one thread.
class TableRestore final : public TableSink {
 public:
  struct Options {
    bool merge = false;          // as TableLoader::Options
    bool ignore_others = false;  // stored tables that are not given are passed over
  };
  explicit TableRestore(std::vector<Table*> tables);
  TableRestore(std::vector<Table*> tables, const Options& options);
  ~TableRestore() override;
  TableRestore(const TableRestore&) = delete;
  TableRestore& operator=(const TableRestore&) = delete;

  Status Start(std::vector<TablePart>* parts) override;
  Status Begin(const TablePart& part) override;
  Status Block(const TablePart& part, const TableBlock& block) override;
  Status End(const TablePart& part) override;
  /// The restore succeeded: the tables may be used, and increments stand on what was restored.
  Status Finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// What a manifest says of a table's part.
TableFacts FactsOf(const TableCut& cut);

}  // namespace cairn
