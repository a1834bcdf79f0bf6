#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <cairn/checkpoint_manager.h>
#include <cairn/row_tracked.h>
#include <cairn/status.h>
#include <cairn/table.h>

/// Training steps with full and incremental checkpoints of tables and dense variables, in the
/// background; the newest is restored when a session opens:
///
///   auto session = cairn::TrainingSession::Open({.checkpoint_dir = "runs/a",
///                                                .save_checkpoint_secs = 600,
///                                                .save_incremental_checkpoint_secs = 10,
///                                                .tables = {users.get()}}).value();
///   while (session->global_step() < steps) {
///     session->Run([&](std::int64_t step) { return Train(step); });
///   }
///   session->Close();
namespace cairn {

class Scope;

/// A dense variable of a session: contiguous memory that is saved whole with each checkpoint.
struct SessionVariable {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::uint64_t> shape;
  void* data = nullptr;  // borrowed
};

struct SessionOptions {
  std::string checkpoint_dir;  // a directory or URL; "" saves nothing
  /// Between full checkpoints, whichever comes first; 0 or nothing: not by it.
  std::optional<double> save_checkpoint_secs = 600;
  std::optional<std::int64_t> save_checkpoint_steps;
  /// Between increments, which hold the rows that changed. 0 or nothing: no increments. When both
  /// kinds are due it is a full one.
  std::optional<double> save_incremental_checkpoint_secs;
  std::optional<std::int64_t> save_incremental_checkpoint_steps;
  bool consecutive = false;    // increments since the save before, not since the full one
  bool quantize = false;       // rows of increments with 8 bits a number: see quantization_error
  bool compress_keys = false;  // the tables' keys as zstd
  std::optional<std::uint64_t> max_to_keep = 5;  // full checkpoints; nullopt: all
  /// Others restore, and save nothing. They wait for the chief's first checkpoint, so long at most:
  /// then Open fails with DeadlineExceeded.
  bool is_chief = true;
  double max_wait_secs = 7200;
  bool takeover = false;            // of the chief: as in ManagerOptions
  std::vector<Table*> tables;       // borrowed
  std::vector<RowTracked*> arrays;  // dense, with row increments; borrowed
  std::vector<SessionVariable> variables;
  /// Variables by role (scope.h), besides `variables`: its persistables are saved and restored
  /// likewise, and count as loaded then; its temporaries are destroyed after each step. Declare all
  /// before Open; borrowed.
  Scope* scope = nullptr;
  /// A trainer's own small state (generators, data position), as named texts. Asked for at each
  /// save, given back when a checkpoint was restored.
  std::function<std::map<std::string, std::string>()> save_state;
  std::function<Status(const std::map<std::string, std::string>&)> restore_state;
  /// Told when a checkpoint was acknowledged, by the thread that writes: quick, and without calls
  /// of the session. For who follows the repository beside it (serving::Model::Notify).
  std::function<void()> on_saved;
  /// Nanoseconds of a clock that never goes back; empty: the system's.
  std::function<std::chrono::nanoseconds()> now;

  Status Validate() const;
};

/// For one thread at a time; the tables may be updated by others. A step that fails is not counted.
/// A failed save is reported by the next Run that saves, or by Close; its rows are in the next one.
class TrainingSession {
 public:
  /// Restores the newest checkpoint, with what it builds on. A fresh start begins to write a full
  /// one at step 0.
  static Result<std::unique_ptr<TrainingSession>> Open(SessionOptions options);
  /// Without Close: nothing more is saved; the save in flight is waited for.
  virtual ~TrainingSession() = default;

  /// Calls `step` with the number of steps done before, counts it, and saves what is due.
  virtual Status Run(const std::function<Status(std::int64_t global_step)>& step) = 0;
  /// Saves now; a full one, or an increment where that is possible.
  virtual Result<SaveHandle> Save(SaveKind kind) = 0;
  /// Saves what was not saved yet, and waits for it.
  virtual Status Close() = 0;

  virtual std::int64_t global_step() const = 0;
  /// What Open restored; nullopt after a fresh start.
  virtual const std::optional<Restored>& restored() const = 0;
  /// Of the last save that is over, if it was an increment whose rows were quantized.
  virtual TableCut::Error quantization_error() const = 0;
  virtual void RequestStop() = 0;
  virtual bool ShouldStop() const = 0;
};

}  // namespace cairn
