#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <cairn/checkpoint_manager.h>

#include "checkpoint/test_table.h"
#include "storage/store.h"

namespace cairn::crash {

/// A variable of the job: float32, `rows` × `columns`.
struct Variable {
  enum class Kind {
    kReplicated,  // the same on all ranks
    kSharded,     // by rows; their number is a multiple of the number of ranks
    kOwn,         // each rank's own state
  };
  std::string name;
  Kind kind = Kind::kReplicated;
  std::uint64_t rows = 1;
  std::uint64_t columns = 1;
  int period = 1;  // its value changes every so many saves; 0: never
};

/// A save ready to be made, with the memory it borrows until its handle was waited for.
struct PreparedSave {
  std::deque<std::string> memory;  // a deque: moving it moves no string
  SaveRequest request;
};

/// A deterministic training job. A save is known by its serial number, which stands in the
/// checkpoint's counters; every byte of the state is a function of (seed, serial). Immutable, for
/// any number of threads.
class Job {
 public:
  Job() = default;
  /// `table_keys`: of the keys that a sparse table may have; 0: the job has none.
  Job(std::uint64_t seed, std::vector<Variable> variables, bool user_files, int table_keys = 0)
      : seed_(seed),
        variables_(std::move(variables)),
        user_files_(user_files),
        table_keys_(table_keys) {}

  /// `since`: of an increment, the save that its rows are counted from.
  PreparedSave Prepare(int serial, std::int64_t step, int rank = 0, int world_size = 1,
                       SaveKind kind = SaveKind::kFull, int since = 0) const;

  /// The save that a checkpoint says it is; 0 when it does not say.
  static int SerialOf(const Value& counters);
  /// "" when `restored` (with allocate) holds exactly the state of that save as `rank` sees it.
  std::string Compare(const Restored& restored, int serial, int rank) const;
  /// "" when the rows are exactly those of that save, of all ranks together.
  std::string CompareTable(const TestTableSink& sink, int serial) const;
  bool has_table() const { return table_keys_ > 0; }
  /// "" when the user's files of that save stand in the checkpoint's directory.
  std::string CompareUserFiles(Store* store, const std::string& directory, int serial) const;

 private:
  std::string Bytes(const Variable& variable, int serial, int rank) const;
  std::map<std::string, std::string> UserFiles(int serial) const;
  TestTable TableOf(int serial, int rank, int world_size) const;

  std::uint64_t seed_ = 1;
  std::vector<Variable> variables_;
  bool user_files_ = false;
  int table_keys_ = 0;
};

}  // namespace cairn::crash
