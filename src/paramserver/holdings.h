#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <cairn/checkpoint_manager.h>
#include <cairn/ps.h>
#include <cairn/status.h>
#include <cairn/table.h>
#include <cairn/table_checkpoint.h>
#include <cairn/value.h>

#include "base/thread_annotations.h"
#include "paramserver/dense_variable.h"
#include "paramserver/leaving_clock.h"
#include "paramserver/payload.h"
#include "train/session_schedule.h"

namespace cairn::ps {

/// What one server holds during one generation of the job's repository: tables, blocks of dense
/// variables, what the trainers did, and its part in the checkpoints. All servers of a job are in
/// the same generation, or on their way there; to go back to the last checkpoint is to leave it and
/// to open the next. All calls from any thread; a call that waits ends with Aborted when the
/// generation is left.
///
/// The cut. The lead server (index 0) decides that there will be a checkpoint and says so in its
/// answers to the end of a step; every trainer carries that marker to all servers at the end of its
/// next step. Sync: all trainers got the same answer, so all servers cut after the same step.
/// Async: a trainer that sent the marker waits until the server has it from all of them, so that no
/// push is on its way anywhere when the last server cuts.
class Holdings {
 public:
  /// Meets the other servers through the repository, then restores what all of them chose.
  /// `opened` is called between the two. Cancelled or DeadlineExceeded when the clock was left.
  static Result<std::unique_ptr<Holdings>> Open(const ServerOptions& options,
                                                std::shared_ptr<LeavingClock> clock,
                                                const std::function<void()>& opened);
  /// After Leave, when no call is under way. Gives up the save in flight.
  ~Holdings();
  Holdings(const Holdings&) = delete;
  Holdings& operator=(const Holdings&) = delete;

  std::uint64_t generation() const { return manager_->generation(); }
  /// Ends all waiting calls, now and later.
  void Leave() EXCLUDES(mu_);

  /// A trainer (or observer) introduces itself. `*lost` becomes true, and the answer is
  /// Unavailable, when an earlier process of this trainer was lost in the middle: then all have to
  /// go back (recovery exact).
  Result<HelloReply> Hello(const HelloRequest& hello, bool* lost) EXCLUDES(mu_);
  Result<std::uint32_t> DeclareTable(const TableSpec& spec) EXCLUDES(mu_);
  /// `values`: of this server's blocks; they count when the variable is new.
  Result<std::uint32_t> DeclareDense(const DenseSpec& spec, std::span<const float> values)
      EXCLUDES(mu_);

  /// Lives as long as this. NotFound, naming the id.
  Result<Table*> FindTable(std::uint32_t id) EXCLUDES(mu_);
  Status Push(std::uint32_t trainer, std::uint64_t sequence, std::uint32_t table, Rows rows)
      EXCLUDES(mu_);
  Status Assign(std::uint32_t trainer, std::uint64_t sequence, std::uint32_t table,
                const Rows& rows) EXCLUDES(mu_);
  Result<std::uint64_t> Erase(std::uint32_t trainer, std::uint64_t sequence, std::uint32_t table,
                              std::span<const std::int64_t> keys) EXCLUDES(mu_);
  Result<ExportedRows> Export(std::uint32_t table, std::uint32_t shard) EXCLUDES(mu_);
  Result<std::vector<float>> PullDense(std::uint32_t id) EXCLUDES(mu_);
  Status PushDense(std::uint32_t trainer, std::uint64_t sequence, std::uint32_t id,
                   std::vector<float> gradient) EXCLUDES(mu_);

  Result<EndStepReply> EndStep(std::uint32_t trainer, const EndStepRequest& request) EXCLUDES(mu_);
  /// Returns when all trainers called it with that number.
  Status Barrier(std::uint32_t trainer, std::uint64_t number) EXCLUDES(mu_);
  /// The lead: there will be a checkpoint at the next occasion.
  Status RequestSave(bool full) EXCLUDES(mu_);
  /// Cuts now: for jobs whose trainers have all left. FailedPrecondition otherwise.
  Status CutNow(const Marker& marker) EXCLUDES(mu_);
  /// The trainer is done.
  void TrainerLeft(std::uint32_t trainer) EXCLUDES(mu_);

  Value Describe() EXCLUDES(mu_);
  std::string Metrics() EXCLUDES(mu_);
  /// Not OK when this server can no longer take part and all have to go back.
  Status Broken() EXCLUDES(mu_);

 private:
  struct TableEntry {
    TableSpec spec;
    std::unique_ptr<Table> table;
  };
  struct DenseEntry {
    std::unique_ptr<DenseVariable> variable;
  };
  struct PendingRows {
    std::uint32_t table = 0;
    Rows rows;
  };
  struct PendingDense {
    std::uint32_t id = 0;
    std::vector<float> gradient;
  };
  struct Trainer {
    std::string incarnation;  // "": none came yet
    bool left = false;
    std::uint64_t sequence = 0;  // of the last change
    std::int64_t step = 0;       // steps completed
    bool arrived = false;        // sync: it ended the step under way
    Marker carried;
    std::uint64_t barrier = 0;
    bool at_barrier = false;  // waits there
    std::optional<std::string> state;
    std::vector<PendingRows> rows;    // sync: of the step under way
    std::vector<PendingDense> dense;  // likewise
    /// Held for the whole of a change: the same change may come again over a new connection while
    /// it is still being made.
    std::unique_ptr<Mutex> changing = std::make_unique<Mutex>();
  };
  struct Job;  // what job.json says

  Holdings(const ServerOptions& options, std::shared_ptr<LeavingClock> clock);

  // holdings.cc: opening, restoring, saving.
  Status OpenManager(const std::function<void()>& opened);
  Status Restore();
  Status Load(const std::string& path) REQUIRES(mu_);
  Status MakeAll(const Job& job) REQUIRES(mu_);
  void Adopt(const Job& job, const Restored& restored) REQUIRES(mu_);
  std::string EncodeJob() const REQUIRES(mu_);
  void RenewCheckpoints() REQUIRES(mu_);
  std::vector<class Table*> TablePointers() const REQUIRES(mu_);
  Result<std::unique_ptr<class Table>> MakeTable(const TableSpec& spec) const;
  void Cut(const Marker& marker) REQUIRES(mu_);
  void Settle() REQUIRES(mu_);
  void Decide() REQUIRES(mu_);

  // rounds.cc: what trainers do.
  Status CheckTrainer(std::uint32_t trainer) const REQUIRES(mu_);
  Status CheckLiving() const REQUIRES(mu_);
  Result<DenseEntry*> FindDense(std::uint32_t id) REQUIRES(mu_);
  Status CheckKeys(const Table& table, std::span<const std::int64_t> keys) const;
  /// Runs `change` once for that sequence number, one change of a trainer at a time.
  Status Once(std::uint32_t trainer, std::uint64_t sequence, const std::function<Status()>& change)
      EXCLUDES(mu_);
  bool RoundComplete() const REQUIRES(mu_);
  void FinishRound() REQUIRES(mu_);
  Status ApplyRound() REQUIRES(mu_);
  Result<EndStepReply> EndSyncStep(std::uint32_t trainer, const EndStepRequest& request)
      REQUIRES(mu_);
  Result<EndStepReply> EndAsyncStep(std::uint32_t trainer, const EndStepRequest& request)
      REQUIRES(mu_);
  void CutWhenAllMarked() REQUIRES(mu_);

  const ServerOptions options_;
  const std::shared_ptr<LeavingClock> clock_;  // shared with the server, which leaves it
  const bool sync_;
  const bool lead_;
  const std::shared_ptr<CutGate> gate_ = std::make_shared<CutGate>();  // shared: tables hold it
  std::unique_ptr<CheckpointManager> manager_;

  Mutex mu_;
  CondVar changed_;
  bool leaving_ GUARDED_BY(mu_) = false;
  Status broken_ GUARDED_BY(mu_);
  std::int64_t step_ GUARDED_BY(mu_) = 0;          // sync: completed by all
  std::deque<TableEntry> tables_ GUARDED_BY(mu_);  // entries stay where they are
  std::deque<DenseEntry> dense_ GUARDED_BY(mu_);
  std::vector<Trainer> trainers_ GUARDED_BY(mu_);

  std::unique_ptr<TableCheckpoints> checkpoints_ GUARDED_BY(mu_);
  std::optional<SessionSchedule> schedule_ GUARDED_BY(mu_);
  Marker next_ GUARDED_BY(mu_);  // lead: announced and not cut yet
  std::uint64_t last_cut_ GUARDED_BY(mu_) = 0;
  bool save_asked_ GUARDED_BY(mu_) = false;
  bool full_asked_ GUARDED_BY(mu_) = false;
  bool declared_since_full_ GUARDED_BY(mu_) = false;  // a table that no full checkpoint has
  std::optional<SaveHandle> in_flight_ GUARDED_BY(mu_);
  std::optional<std::int64_t> saved_step_ GUARDED_BY(mu_);
  std::optional<std::int64_t> restored_step_ GUARDED_BY(mu_);
  std::uint64_t saves_ GUARDED_BY(mu_) = 0;
  std::uint64_t failed_saves_ GUARDED_BY(mu_) = 0;
  std::uint64_t pushes_ GUARDED_BY(mu_) = 0;
  std::uint64_t repeated_ GUARDED_BY(mu_) = 0;  // pushes that came again and were not applied
  double restore_seconds_ GUARDED_BY(mu_) = 0;
};

}  // namespace cairn::ps
