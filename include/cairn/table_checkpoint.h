#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <cairn/checkpoint_manager.h>
#include <cairn/row_tracked.h>
#include <cairn/status.h>
#include <cairn/table.h>
#include <cairn/table_rows.h>

/// Tables in the checkpoints of a CheckpointManager, together with everything else:
///
///   cairn::TableCheckpoints checkpoints(manager.get(), {users.get(), items.get()});
///   auto restored = checkpoints.Restore({.into = dense}).value();
///   checkpoints.Save({.step = 10, .tensors = dense}).value();       // a full one
///   checkpoints.Save({.step = 11, .kind = SaveKind::kCumulative, .tensors = dense}).value();
///   checkpoints.Wait();
///
/// Dense arrays that are tracked by row (row_tracked.h) go the same way.
namespace cairn {

namespace table {
class ArrayFiller;
class JoinedPieces;
}  // namespace table

/// InvalidArgument, naming it, for a table that is null or there twice, and for arrays that do not
/// go together (CheckPieces) or are called like a table.
Status CheckTables(const std::vector<Table*>& tables, const std::vector<RowTracked*>& arrays);

/// InvalidArgument, naming it, for a dense variable that is called like a table or tracked array:
/// tools that show a checkpoint, and servers that find variables by their names, could not tell
/// them apart.
Status CheckDenseNames(std::span<const std::string_view> dense, const std::vector<Table*>& tables,
                       const std::vector<RowTracked*>& arrays);

/// Fills tables and tracked arrays from a restore point; for RestoreRequest::tables. Start refuses,
/// before anything changes, tables that do not fit and (unless told not to be strict) tables that
/// only one side has. The restore done, Finish gives the tables back to their users; without it, or
/// when it failed, tables that were begun are left empty, and arrays filled in part. One use.
class TableFiller final : public TableSink {
 public:
  struct Options {
    bool strict = true;
    bool merge = false;  // rows that the tables have stay, where none is loaded
  };
  /// Arrays of one name are pieces of one variable (CheckPieces).
  TableFiller(std::vector<Table*> tables, std::vector<RowTracked*> arrays, Options options);
  TableFiller(std::vector<Table*> tables, Options options)
      : TableFiller(std::move(tables), {}, options) {}
  explicit TableFiller(std::vector<Table*> tables) : TableFiller(std::move(tables), Options{}) {}
  ~TableFiller() override;

  Status Start(std::vector<TablePart>* parts) override;
  Status Begin(const TablePart& part) override;
  Status Block(const TablePart& part, const TableBlock& block) override;
  Status Finish();

  /// Tables that the restore point has and nobody asked for, the other way round, and those of
  /// other rows than the stored ones. Unless strict, these are left as they are.
  const MismatchReport& mismatch() const { return mismatch_; }
  /// The last of these, with why.
  const std::map<std::string, std::string, std::less<>>& passed_over() const {
    return passed_over_;
  }

 private:
  struct Target;
  /// What fits what; fills mismatch_. An error is no mismatch.
  Status Compare(const std::vector<TablePart>& parts);
  Target* Find(const std::string& table);
  table::ArrayFiller* FindArray(const std::string& name);
  Status AddRows(Target* target, const TablePart& part, const TableBlock& block);

  const Options options_;
  std::vector<std::unique_ptr<Target>> targets_;
  std::vector<std::unique_ptr<table::ArrayFiller>> arrays_;
  MismatchReport mismatch_;
  std::map<std::string, std::string, std::less<>> passed_over_;  // do not fit: name → why
};

/// Saves and restores tables, and arrays that are tracked by row, through a manager. Rows leave the
/// set of changed ones when the checkpoint that has them is durable, and not before. For one thread
/// at a time; the tables may be used by others meanwhile. Manager, tables and arrays are borrowed.
class TableCheckpoints {
 public:
  struct Options {
    bool quantize = false;       // see CutRequest; increments only
    bool compress_keys = false;  // likewise
  };
  TableCheckpoints(CheckpointManager* manager, std::vector<Table*> tables,
                   std::vector<RowTracked*> arrays, Options options);
  TableCheckpoints(CheckpointManager* manager, std::vector<Table*> tables, Options options)
      : TableCheckpoints(manager, std::move(tables), {}, options) {}
  TableCheckpoints(CheckpointManager* manager, std::vector<Table*> tables)
      : TableCheckpoints(manager, std::move(tables), Options{}) {}
  /// Waits for the save in flight, whose rows are released or kept.
  ~TableCheckpoints();
  TableCheckpoints(const TableCheckpoints&) = delete;
  TableCheckpoints& operator=(const TableCheckpoints&) = delete;

  /// As CheckpointManager::Save, with the rows of all tables at this instant: nobody updates a
  /// table, or is inside of a batch of its gate, while it is cut and the other tensors are copied.
  /// That takes as long as their copy, however many rows there are. With compress_keys the tensors
  /// are copied once more: keys are compressed when the gate is open again, and by the caller.
  /// Pieces of one variable become one table. Refused: a tensor that is called like a table
  /// (CheckDenseNames). An increment is refused when there is nothing that it
  /// could build on (see CanIncrement). A save that is skipped (OnBusy::kSkip) cuts nothing.
  Result<SaveHandle> Save(SaveRequest request);
  /// Whether an increment can be saved: this object saved or restored the checkpoint before it, and
  /// nobody else saved, restored or cleared one of the tables since.
  bool CanIncrement() const;
  /// Looks whether the last save is over, and releases or keeps its rows. Quick.
  void Settle();
  /// The same, and waits for it. The outcome is the handle's to tell.
  void Wait();

  /// As CheckpointManager::Restore; the tables get the stored rows instead of theirs, or (merge)
  /// besides theirs: increments then need a new full one first. Strict: the same tables must be
  /// there as are asked for.
  Result<std::optional<Restored>> Restore(RestoreRequest request,
                                          const TableFiller::Options& options);
  Result<std::optional<Restored>> Restore(RestoreRequest request) {
    const bool strict = request.strict;
    return Restore(std::move(request), {.strict = strict});
  }

  /// Of the last restore: tables that were left as they are, or were not asked for, with why. They
  /// are also among Restored::skipped.
  const std::vector<std::pair<std::string, std::string>>& skipped() const { return skipped_; }

  /// From the next save on.
  void set_options(const Options& options) { options_ = options; }

  /// Of the last save with quantized rows.
  TableCut::Error quantization_error() const { return quantization_error_; }

 private:
  /// `also`: called where the tables are cut. `begun`: when the caller began to wait.
  Status CutAndSave(SaveRequest* request, const std::function<Status()>& also,
                    std::chrono::steady_clock::time_point begun, SaveHandle* handle);
  CutGate* gate() const;
  void DropCuts();
  void Resolve(const Result<CheckpointInfo>& outcome);
  std::vector<std::uint64_t> SettledCounts() const;

  CheckpointManager* const manager_;
  const std::vector<Table*> tables_;
  const std::vector<RowTracked*> arrays_;
  Options options_;
  std::vector<std::unique_ptr<TableCut>> cuts_;  // of the save in flight: tables, then arrays
  std::vector<std::unique_ptr<table::JoinedPieces>> joined_;  // borrow from cuts_
  SaveHandle in_flight_;
  SaveKind kind_in_flight_ = SaveKind::kFull;
  std::string base_;  // ids of what increments build on; "" for nothing
  std::string parent_;
  std::vector<std::uint64_t> settled_;  // counts of tables and arrays when parent_ was new
  TableCut::Error quantization_error_;
  std::vector<std::pair<std::string, std::string>> skipped_;
};

}  // namespace cairn
