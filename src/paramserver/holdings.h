#pragma once

#include <atomic>
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
#include "paramserver/job_file.h"
#include "paramserver/leaving_clock.h"
#include "paramserver/payload.h"
#include "paramserver/update_log.h"
#include "train/session_schedule.h"

namespace cairn::ps {

/// Whom a connection belongs to, as it introduced itself.
struct Peer {
  std::uint32_t trainer = kObserver;
  std::string incarnation;
};

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
/// push is on its way anywhere when the last server cuts. Who waits at a barrier, or has left, has
/// nothing on its way either. Markers belong to a generation: their numbers begin anew with it.
///
/// Recovery partial and log: nobody goes back when the generation is left. The process hands what
/// it holds to the next generation (Keep), and only a server that was lost restores; trainers go on
/// with what was not answered. With the log, each change is in the log before it is made, so that
/// at a cut, when no change is under way, the log's end is the cut's place in it.
class Holdings {
  struct TableEntry {
    TableSpec spec;
    std::unique_ptr<Table> table;
  };
  struct DenseEntry {
    std::unique_ptr<DenseVariable> variable;
  };
  struct PendingRows {
    std::uint64_t sequence = 0;
    std::uint32_t table = 0;
    Rows rows;
  };
  struct PendingDense {
    std::uint64_t sequence = 0;
    std::uint32_t id = 0;
    std::vector<float> gradient;
  };
  struct PendingEviction {
    std::uint64_t sequence = 0;
    std::uint32_t table = 0;
    std::int64_t step = 0;
  };
  struct PendingRate {
    std::uint64_t sequence = 0;
    std::uint32_t table = 0;
    float rate = 0;
  };
  struct Trainer {
    std::string incarnation;  // "": none came yet
    std::string former;       // before the job went on after its end: may come back, or be replaced
    std::vector<std::string> replaced;  // incarnations before it: refused for ever
    bool left = false;
    std::uint64_t sequence = 0;       // of the last change
    std::uint64_t step_sequence = 0;  // of the last change before the end of its last step
    std::int64_t step = 0;            // steps completed
    bool arrived = false;             // sync: it ended the step under way
    Marker carried;
    std::uint64_t barrier = 0;
    bool at_barrier = false;  // waits there, and not all have come
    std::optional<std::string> state;
    std::vector<PendingRows> rows;           // sync: of the step under way
    std::vector<PendingDense> dense;         // likewise
    std::vector<PendingEviction> evictions;  // likewise
    std::vector<PendingRate> rates;          // likewise
    /// Held for the whole of a change: the same change may come again over a new connection while
    /// it is still being made. Taken before mu_.
    std::unique_ptr<Mutex> changing = std::make_unique<Mutex>();
  };

 public:
  /// What a server's process takes from one generation to the next.
  struct Kept {
    std::vector<Trainer> trainers;
    bool content = false;  // also all of this; otherwise the next generation restores
    std::int64_t step = 0;
    std::deque<TableEntry> tables;
    std::deque<DenseEntry> dense;
    std::shared_ptr<CutGate> gate;  // shared: the tables hold it
    std::unique_ptr<UpdateLog> log;
    std::string log_name;
    std::uint64_t barriers = 0;
    std::uint64_t unsaved = 0;
    bool save_asked = false;
    bool full_asked = false;
    std::uint64_t lost = 0;
    std::uint64_t replayed = 0;
    std::optional<SessionSchedule> schedule;
  };

  /// What tests put in.
  struct Seams {
    /// Where the update log goes, in the place of OpenStore.
    std::function<Result<std::shared_ptr<Store>>(const std::string& where)> open_log_store;
    /// Called when a change, declaration or end of a step was found to be new, before it goes into
    /// the log, where there is one, and is made.
    std::function<void()> taken;
  };

  /// Meets the other servers through the repository, then restores what all of them chose, or goes
  /// on with what `*kept` has, which is empty then. `opened` is called between the two. Cancelled
  /// or DeadlineExceeded when the clock was left.
  static Result<std::unique_ptr<Holdings>> Open(const ServerOptions& options,
                                                std::shared_ptr<LeavingClock> clock,
                                                std::unique_ptr<Kept>* kept,
                                                const std::function<void()>& opened,
                                                Seams seams = {});
  /// After Leave, when no call is under way. Gives up the save in flight.
  ~Holdings();
  Holdings(const Holdings&) = delete;
  Holdings& operator=(const Holdings&) = delete;

  std::uint64_t generation() const { return manager_->generation(); }
  /// Ends all waiting calls, now and later.
  void Leave() EXCLUDES(mu_);
  /// After Leave, when no call is under way; only the destructor may follow.
  std::unique_ptr<Kept> Keep() EXCLUDES(mu_);

  /// A trainer (or observer) introduces itself. `*lost` becomes true, and the answer is
  /// Unavailable, when an earlier process of this trainer was lost in the middle and all have to
  /// go back (recovery exact, sync). A process that another one took the place of is refused.
  Result<HelloReply> Hello(const HelloRequest& hello, bool* lost) EXCLUDES(mu_);
  /// Observers find tables; only trainers make them.
  Result<std::uint32_t> DeclareTable(const Peer& peer, const Request& request) EXCLUDES(mu_);
  Result<std::uint32_t> DeclareDense(const Peer& peer, const Request& request) EXCLUDES(mu_);

  /// Lives as long as this. NotFound, naming the id.
  Result<Table*> FindTable(std::uint32_t id) EXCLUDES(mu_);
  /// The same for a peer that is still who it was.
  Result<Table*> FindTable(const Peer& peer, std::uint32_t id) EXCLUDES(mu_);
  /// Weights of the keys. With a sequence in the head it counts keys for admission, once.
  Status Pull(const Peer& peer, const Request& request, Table* table,
              std::span<const std::int64_t> keys, std::span<float> out) EXCLUDES(mu_);
  /// kPush, kAssign, kErase, kEvict, kSetRate, kDensePush: once for each sequence. The answer's
  /// body.
  Result<std::string> Change(const Peer& peer, const Request& request) EXCLUDES(mu_);
  Result<ExportedRows> Export(std::uint32_t table, std::uint32_t shard) EXCLUDES(mu_);
  /// Shows the values, which do not change meanwhile.
  Status PullDense(std::uint32_t id, const std::function<void(std::span<const float>)>& show)
      EXCLUDES(mu_);
  /// The values, then the slots.
  Result<std::vector<float>> ExportDense(std::uint32_t id) EXCLUDES(mu_);

  Result<EndStepReply> EndStep(const Peer& peer, const Request& request) EXCLUDES(mu_);
  /// Returns when all trainers called it with that number.
  Status Barrier(const Peer& peer, std::uint64_t number) EXCLUDES(mu_);
  /// The lead: there will be a checkpoint at the next occasion.
  Status RequestSave(bool full) EXCLUDES(mu_);
  /// Cuts now: for jobs whose trainers have all left. FailedPrecondition otherwise.
  Status CutNow(const Marker& marker) EXCLUDES(mu_);
  /// The trainer is done.
  Status TrainerLeft(const Peer& peer) EXCLUDES(mu_);
  /// The same, said by somebody who knows that its process has ended, also one that this server
  /// never saw.
  Status TrainerEnded(std::uint32_t trainer) EXCLUDES(mu_);
  /// Recovery partial: trainers that this server has not seen since it was lost. They may have left
  /// meanwhile, which only the other servers know then.
  std::vector<std::uint32_t> UnseenTrainers() EXCLUDES(mu_);

  Value Describe() EXCLUDES(mu_);
  std::string Metrics() EXCLUDES(mu_);
  /// Not OK when this server can no longer take part and all have to leave the generation.
  Status Broken() EXCLUDES(mu_);
  bool is_broken() const { return is_broken_; }

 private:
  Holdings(const ServerOptions& options, std::shared_ptr<LeavingClock> clock, Seams seams);

  // holdings.cc: opening and restoring.
  Status OpenManager(const std::function<void()>& opened);
  Status Restore(JobFile* job, std::string* checkpoint) EXCLUDES(mu_);
  Status Load(const std::string& given) REQUIRES(mu_);
  Status MakeAll(const JobFile& job) REQUIRES(mu_);
  void Adopt(const JobFile& job, const Restored& restored) REQUIRES(mu_);
  void Adopt(Kept* kept) EXCLUDES(mu_);
  /// Continues the log that the checkpoint names, or begins one, and replays what is in it.
  Status OpenLog(const JobFile& job, const std::string& checkpoint) EXCLUDES(mu_);
  /// Logs in the repository that earlier generations left. Called before anybody could begin a
  /// newer one: what is listed later might be that of a generation that has overtaken this one.
  Status FindOldLogs() EXCLUDES(mu_);
  void RemoveOldLogs() REQUIRES(mu_);
  void RenewCheckpoints() REQUIRES(mu_);
  std::vector<class Table*> TablePointers() const REQUIRES(mu_);
  Result<std::unique_ptr<class Table>> MakeTable(const TableSpec& spec) const;

  // saving.cc: cuts and what is told about them.
  std::string EncodeJob(const SessionSchedule::Age& since_full) const REQUIRES(mu_);
  void Cut(const Marker& marker) REQUIRES(mu_);
  void Settle() REQUIRES(mu_);
  void Decide() REQUIRES(mu_);
  /// Increments have outgrown their base, as far as this server's share of the rows tells.
  bool WantsNewBase() const REQUIRES(mu_);
  /// Changes that no checkpoint of this server has.
  std::uint64_t Unsaved() const REQUIRES(mu_) { return changes_ - changes_saved_; }
  /// Steps of all trainers together; sync: of the job.
  std::int64_t GlobalStep() const REQUIRES(mu_);

  // changes.cc: what trainers change, live and replayed.
  /// In sync mode gradients, evictions and learning rates count when their step ends, and not
  /// before.
  bool CountsAtOnce(Kind kind) const {
    return !sync_ || (kind != Kind::kPush && kind != Kind::kDensePush && kind != Kind::kEvict &&
                      kind != Kind::kSetRate);
  }
  Result<DenseEntry*> FindDense(std::uint32_t id) REQUIRES(mu_);
  /// For a change that is under way: also while the generation is being left. Who leaves waits for
  /// it, and it is in the log.
  Result<Table*> TableOfChange(std::uint32_t id) REQUIRES(mu_);
  Result<DenseEntry*> DenseOfChange(std::uint32_t id) REQUIRES(mu_);
  Status CheckKeys(const Table& table, std::span<const std::int64_t> keys) const;
  /// Into the log, where there is one. Unavailable: this server is broken then.
  Status Log(const LogRecord& record) EXCLUDES(mu_);
  /// The same for what has to take effect where it stands in the log, with no cut between: who
  /// comes and goes. The others wait for the disk meanwhile.
  Status LogHeld(const LogRecord& record) REQUIRES(mu_);
  Status LogBroke(const Status& why) REQUIRES(mu_);
  Status Replayed(const LogRecord& record) EXCLUDES(mu_);
  /// Runs `change` once for that sequence number, one change of a trainer at a time. `*repeated`:
  /// it was made before.
  Status Once(const Peer& peer, const Request& request, const std::function<Status()>& change,
              bool* repeated) EXCLUDES(mu_);
  Result<std::string> MakeChange(std::uint32_t trainer, Kind kind, std::uint32_t id,
                                 std::uint64_t sequence, std::span<const std::byte> body)
      EXCLUDES(mu_);
  /// The id of what is declared: with the lock held, `known` looks for it and `make` makes it. What
  /// is new passes `check` and goes into the log first; one declaration at a time.
  Result<std::uint32_t> DeclareOnce(
      const Peer& peer, const Request& request,
      const std::function<Result<std::optional<std::uint32_t>>()>& known,
      const std::function<Status()>& check, const std::function<Result<std::uint32_t>()>& make)
      EXCLUDES(mu_);
  Result<std::uint32_t> MakeDeclaredTable(const TableSpec& spec) REQUIRES(mu_);
  Result<std::uint32_t> MakeDeclaredDense(const DenseSpec& spec, std::span<const float> values)
      REQUIRES(mu_);
  /// The variable of that name; nothing: there is none. Mismatch when it is another one.
  Result<std::optional<std::uint32_t>> DeclaredTable(const TableSpec& spec) const REQUIRES(mu_);
  Result<std::optional<std::uint32_t>> DeclaredDense(const DenseSpec& spec) const REQUIRES(mu_);

  // rounds.cc: who is there, steps and barriers.
  Status CheckTrainer(const Peer& peer) const REQUIRES(mu_);
  Status CheckLiving() const REQUIRES(mu_);
  /// All calls end with that: Unavailable where trainers should wait for what comes next.
  void Break(Status why) REQUIRES(mu_);
  Status Introduce(const HelloRequest& hello, Trainer* trainer, bool* lost) REQUIRES(mu_);
  Status Reconcile(const HelloRequest& hello, Trainer* trainer) REQUIRES(mu_);
  /// A trainer that had left is there again.
  void ComeBack(std::uint32_t trainer) REQUIRES(mu_);
  /// Recovery partial: the others are further than this server.
  void JumpTo(std::int64_t step) REQUIRES(mu_);
  bool RoundComplete() const REQUIRES(mu_);
  void FinishRound() REQUIRES(mu_);
  Status ApplyRound() REQUIRES(mu_);
  /// Those of the step that ends, of which its gradients are applied with the last trainer's last.
  void SetRatesOfRound() REQUIRES(mu_);
  /// What was asked for in the step: once for each table, however many trainers asked, at the
  /// greatest of their steps. So it makes no difference which of them did, or came first.
  Status EvictAfterRound() REQUIRES(mu_);
  /// What a trainer pushed of the step under way.
  static void ForgetPending(Trainer* trainer);
  /// Whether the request ends a step that this server has not seen ended.
  Result<bool> EndsNewStep(std::uint32_t trainer, const EndStepRequest& request) REQUIRES(mu_);
  /// Whether it tells the end of the trainer's last step once more, with another state.
  bool Restates(const Trainer& trainer, const EndStepRequest& request) const REQUIRES(mu_);
  void TakeState(std::uint32_t trainer, const EndStepRequest& request) REQUIRES(mu_);
  void TakeEnd(std::uint32_t trainer, const EndStepRequest& request, std::uint64_t sequence)
      REQUIRES(mu_);
  void TakeLeaving(std::uint32_t trainer) REQUIRES(mu_);
  bool BarrierComplete(std::uint64_t number) const REQUIRES(mu_);
  void ReleaseBarriers() REQUIRES(mu_);
  void CutWhenAllMarked() REQUIRES(mu_);

  const ServerOptions options_;
  const std::shared_ptr<LeavingClock> clock_;  // shared with the server, which leaves it
  const Seams seams_;
  const bool sync_;
  const bool lead_;
  const bool exact_;
  std::shared_ptr<CutGate> gate_ = std::make_shared<CutGate>();  // shared: tables hold it
  std::unique_ptr<CheckpointManager> manager_;
  std::unique_ptr<UpdateLog> log_;  // set before anybody calls
  std::string log_name_;
  std::atomic<bool> is_broken_{false};

  Mutex declaring_;  // one declaration at a time; taken before mu_
  Mutex mu_;
  CondVar changed_;
  bool leaving_ GUARDED_BY(mu_) = false;
  bool replaying_ GUARDED_BY(mu_) = false;  // no cuts then
  Status broken_ GUARDED_BY(mu_);
  std::int64_t step_ GUARDED_BY(mu_) = 0;          // sync: completed by all
  std::deque<TableEntry> tables_ GUARDED_BY(mu_);  // entries stay where they are
  std::deque<DenseEntry> dense_ GUARDED_BY(mu_);
  std::vector<Trainer> trainers_ GUARDED_BY(mu_);
  std::uint64_t barriers_ GUARDED_BY(mu_) = 0;  // the last that all passed
  int ends_under_way_ GUARDED_BY(mu_) = 0;      // of steps: in the log, and not taken yet
  CondVar ends_taken_;

  std::unique_ptr<TableCheckpoints> checkpoints_ GUARDED_BY(mu_);
  std::optional<SessionSchedule> schedule_ GUARDED_BY(mu_);
  Marker next_ GUARDED_BY(mu_);                  // lead: announced and not cut yet
  std::uint64_t first_cut_ GUARDED_BY(mu_) = 0;  // number of the generation's first
  std::uint64_t last_cut_ GUARDED_BY(mu_) = 0;
  bool save_asked_ GUARDED_BY(mu_) = false;
  bool full_asked_ GUARDED_BY(mu_) = false;
  bool declared_since_full_ GUARDED_BY(mu_) = false;  // a table that no full checkpoint has
  std::optional<SaveHandle> in_flight_ GUARDED_BY(mu_);
  std::vector<std::string> old_logs_ GUARDED_BY(mu_);  // their directories
  std::uint64_t log_at_cut_ GUARDED_BY(mu_) = 0;       // the log's next record when that was cut …
  std::uint64_t log_at_saved_ GUARDED_BY(mu_) = 0;     // … and of the newest checkpoint
  /// What changed what a checkpoint holds, and what was in the one that was cut last, and in the
  /// newest: steps, in sync mode with the gradients of all; changes that count at once;
  /// declarations.
  std::uint64_t changes_ GUARDED_BY(mu_) = 0;
  std::uint64_t changes_at_cut_ GUARDED_BY(mu_) = 0;
  std::uint64_t changes_saved_ GUARDED_BY(mu_) = 0;
  std::optional<std::int64_t> saved_step_ GUARDED_BY(mu_);
  std::optional<std::int64_t> restored_step_ GUARDED_BY(mu_);
  std::uint64_t saves_ GUARDED_BY(mu_) = 0;
  std::uint64_t saved_increments_ GUARDED_BY(mu_) = 0;  // of these
  std::uint64_t failed_saves_ GUARDED_BY(mu_) = 0;
  std::uint64_t pushes_ GUARDED_BY(mu_) = 0;
  std::uint64_t repeated_ GUARDED_BY(mu_) = 0;  // pushes that came again and were not applied
  std::uint64_t replayed_ GUARDED_BY(mu_) = 0;  // records
  std::uint64_t evicted_ GUARDED_BY(mu_) = 0;   // rows
  std::uint64_t lost_ GUARDED_BY(mu_) = 0;      // recovery partial: changes that were acknowledged
  double restore_seconds_ GUARDED_BY(mu_) = 0;
  TableCut::Error quantization_error_ GUARDED_BY(mu_);  // of the last increment that is over
};

}  // namespace cairn::ps
