#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <cairn/checkpoint_manager.h>
#include <cairn/status.h>
#include <cairn/value.h>

/// The Core API: what a training program needs to be run, watched, paused and resumed.
///
///   auto ctx = cairn::core::Init().value();
///   std::int64_t start = 0;
///   if (ctx->latest_checkpoint()) {
///     ctx->RestorePath(*ctx->latest_checkpoint(), [&](const std::string& path) { … });
///   }
///   for (std::int64_t step = start; step < steps; ++step) {
///     …
///     ctx->ReportTrainingMetrics(step + 1, cairn::Value::Object{{"loss", loss}});
///     ctx->StorePath(cairn::Value::Object{{"steps_completed", step + 1}},
///                    [&](const std::string& path) { … });
///     if (ctx->ShouldPreempt()) break;
///   }
///   return ctx->Close().ok() ? 0 : 1;
///
/// Started by a master (or any trial engine), the program reports there. Without one it works
/// alone: checkpoints go to a local directory, SIGTERM, SIGUSR1 and Ctrl-C ask it to stop, and the
/// same command started again goes on from the last checkpoint. Started by hand with
/// CAIRN_TRIAL_URL and CAIRN_JOIN_TOKEN it joins the engine as a detached run.
///
/// Several processes (ranks) of one trial find each other by the variables of Cairn's launcher, of
/// torchrun or of MPI. Ranks in C++ and in Python may be mixed.
namespace cairn::core {

/// About the trial that this process is a run of.
struct TrialInfo {
  std::string trial_id;  // the same after a pause, a restart, a resume
  std::string experiment_id;
  std::uint64_t run_id = 0;  // which start of the trial this is, from 1
  Value hparams = Value::Object{};
  std::string resume_mode;  // "fresh", "resume" or "continue"
  /// For the script's generators, in [0, 2^31): the same in all runs and ranks of the trial. A
  /// function of the experiment's seed and the trial's number; of their ids where nobody gave one.
  std::uint32_t trial_seed = 0;
};

struct ClusterInfo {
  std::string master_url;
  std::optional<std::string> latest_checkpoint;
  std::string storage;
  TrialInfo trial;
};

/// nullopt when nobody manages this process. InvalidArgument: the variables of the run are damaged.
Result<std::optional<ClusterInfo>> GetClusterInfo();

struct DistributedOptions {
  int rank = 0;
  int size = 1;
  int local_rank = -1;  // among those on this machine; -1: rank
  int local_size = -1;  // -1: size
  /// Where rank 0 is met: "host:port", or "file:PATH", where it writes its address.
  std::string chief;
  /// A secret that the ranks share; without one only ranks of this machine can meet.
  std::string token;
  /// For all ranks to come, and for each word of another rank.
  std::chrono::nanoseconds timeout = std::chrono::seconds(600);
};

/// The ranks of a trial. Rank 0 is the chief.
///
/// All of these are called by every rank, in the same order; a rank that calls another one
/// (FailedPrecondition), or is gone (Unavailable), or does not come (DeadlineExceeded) is named.
/// A call that failed leaves the ranks out of step: end the process. One call at a time.
///
/// Text that is not UTF-8 is sent as bytes. Of what Python ranks send, tuples and sets arrive as
/// lists, bytes as text, arrays of numbers as lists of lists.
class DistributedContext {
 public:
  /// Waits until all ranks have come.
  static Result<std::unique_ptr<DistributedContext>> Open(DistributedOptions options);
  /// By the variables of Cairn's launcher, of torchrun or of MPI, in that order; alone without any.
  static Result<std::unique_ptr<DistributedContext>> FromEnv(
      std::chrono::nanoseconds timeout = std::chrono::seconds(600));
  virtual ~DistributedContext() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int local_rank() const = 0;
  virtual int local_size() const = 0;
  virtual int cross_rank() const = 0;  // of this machine among the machines
  virtual int cross_size() const = 0;
  bool is_chief() const { return rank() == 0; }

  /// The values of all ranks, in their order, at the chief; none elsewhere.
  virtual Result<std::vector<Value>> Gather(const Value& value) = 0;
  /// The chief's value, at all ranks; what others give is not used.
  virtual Result<Value> Broadcast(const Value& value) = 0;
  /// The values of all ranks, in their order, at every rank.
  virtual Result<std::vector<Value>> AllGather(const Value& value) = 0;
  /// The same among the ranks of each machine, whose first rank takes the chief's place. All ranks
  /// call them.
  virtual Result<std::vector<Value>> GatherLocal(const Value& value) = 0;
  virtual Result<Value> BroadcastLocal(const Value& value) = 0;
  virtual Result<std::vector<Value>> AllGatherLocal(const Value& value) = 0;
  /// Returns when every rank has called it.
  virtual Status Barrier() = 0;
  /// Hangs up; others that wait for this rank are told that it is gone.
  virtual void Close() = 0;
};

/// Who asks whether the trial is to stop.
enum class PreemptMode : std::uint8_t {
  kWorkersAskChief,   // every rank, at the same points; all get the chief's answer
  kChiefOnly,         // only the chief, which tells the others in its own way
  kWorkersAskMaster,  // each rank for itself; answers may differ for a moment
};

/// Who fetches a checkpoint when several ranks want it.
enum class DownloadMode : std::uint8_t {
  kLocalWorkersShareDownload,  // all ranks call; the first of each machine fetches for the others
  kNoSharedDownload,           // the rank that calls fetches for itself
};

struct InitOptions {
  /// Directory or URL of the checkpoints. "": CAIRN_STORAGE, or ./cairn-<program's name>. Under a
  /// trial engine the experiment decides.
  std::string storage;
  Retention retention;  // without a trial engine, which otherwise decides
  /// While the context lives, SIGTERM, SIGUSR1 and Ctrl-C set a flag and nothing else (a second
  /// Ctrl-C ends the process). False leaves the signals alone.
  bool watch_signals = true;
  /// How a process that was started by hand and reports to an engine (CAIRN_TRIAL_URL and
  /// CAIRN_JOIN_TOKEN) calls its trial: the same name again is the same trial. "":
  /// CAIRN_EXTERNAL_ID, or one made of host, directory and command line.
  std::string external_id;
  /// Of such a process: what it writes to std::cout, std::cerr and std::clog while the context
  /// lives goes to the engine as its log, too (printf's lines do not). Nothing waits for that; of
  /// an engine that is away for long, lines get lost, and the log says how many.
  bool send_output = true;
  /// The ranks; borrowed, and not closed. Null: DistributedContext::FromEnv().
  DistributedContext* distributed = nullptr;
  PreemptMode preempt_mode = PreemptMode::kWorkersAskChief;
};

struct StoreOptions {
  /// All ranks call it and give their own files, which become one checkpoint together. The same
  /// name with the same content is stored once; with other content it is refused, with the ranks
  /// (InvalidArgument at all of them). Metadata may be given in parts; what several ranks give must
  /// be equal. False: only the chief calls it.
  bool shard = false;
  /// A validation of this step will still be reported: until it comes, or the run ends, a trial
  /// engine's rules do not judge the checkpoint by its score. Without an engine it means nothing.
  bool awaits_score = false;
};

/// Called with a directory; its error is the outcome of the call that got it.
using PathBody = std::function<Status(const std::string& path)>;
/// Called with a file's name; false leaves it out.
using Selector = std::function<bool(const std::string& name)>;

/// What Init gives. May be called from any thread, one call at a time; ShouldPreempt at any time
/// unless it asks the chief. A report or a checkpoint is durable when its call returned OK. Errors
/// as the trial protocol, CheckpointManager and DistributedContext have them; Aborted: this run was
/// replaced, stop. Where all ranks take part in a call, one rank's error is everybody's: it is
/// named to the others (FailedPrecondition). Only the chief reports and deletes. Closed, it still
/// reads files; to store, report and delete is refused (FailedPrecondition).
class Context {
 public:
  virtual ~Context() = default;

  /// nullopt without a trial engine.
  virtual const std::optional<ClusterInfo>& info() const = 0;
  /// The id of the checkpoint to begin with: with a trial engine what it says, without one the last
  /// that was stored.
  virtual const std::optional<std::string>& latest_checkpoint() const = 0;
  virtual const std::string& storage() const = 0;  // the repository of the checkpoints
  virtual DistributedContext& distributed() = 0;

  Status ReportTrainingMetrics(std::int64_t steps_completed, const Value& metrics) {
    return ReportMetrics("training", steps_completed, metrics);
  }
  /// They count as the score of the checkpoint of that step.
  Status ReportValidationMetrics(std::int64_t steps_completed, const Value& metrics) {
    return ReportMetrics("validation", steps_completed, metrics);
  }
  virtual Status ReportMetrics(const std::string& group, std::int64_t steps_completed,
                               const Value& metrics) = 0;
  virtual Status ReportProgress(double progress) = 0;  // 0 to 1
  virtual Status SetStatus(const std::string& status) = 0;

  /// Calls `body` with a directory to write files into; when it returned OK they are a checkpoint,
  /// whose id is returned. Otherwise nothing is kept. `metadata` must hold "steps_completed":
  /// refused (InvalidArgument) before anything is done. Empty directories are kept.
  virtual Result<std::string> StorePath(const Value& metadata, const PathBody& body,
                                        const StoreOptions& options = {}) = 0;
  /// The files of a directory as a checkpoint. With shard, "": this rank has none.
  virtual Result<std::string> Upload(const std::string& directory, const Value& metadata,
                                     const Selector& selector = {},
                                     const StoreOptions& options = {}) = 0;
  /// Tensors (and files) as a checkpoint: returns after a copy, files that did not change are
  /// shared. request.metadata must hold "steps_completed", which becomes the step. The id;
  /// WaitSaved waits. With several ranks all of them call it, and Tensor::shard says which piece of
  /// an array a rank has.
  virtual Result<std::string> Save(SaveRequest request, const StoreOptions& options = {}) = 0;
  /// Waits until everything that was saved is durable and reported. The first failure.
  virtual Status WaitSaved() = 0;

  /// Calls `body` with a directory that has the checkpoint's files, compared with their checksums
  /// (Corruption). Only read there.
  virtual Status RestorePath(const std::string& id, const PathBody& body,
                             const Selector& selector = {},
                             DownloadMode mode = DownloadMode::kLocalWorkersShareDownload) = 0;
  /// Copies the checkpoint's files into a directory, which is made when missing.
  virtual Status Download(const std::string& id, const std::string& directory,
                          const Selector& selector = {},
                          DownloadMode mode = DownloadMode::kLocalWorkersShareDownload) = 0;
  /// Tensors that Save stored; request.id, or the latest.
  virtual Result<std::optional<Restored>> Restore(RestoreRequest request) = 0;
  virtual Result<Value> GetMetadata(const std::string& id) = 0;
  /// The trial's checkpoints, oldest first.
  virtual Result<std::vector<CheckpointInfo>> List() = 0;
  virtual Status Delete(const std::string& id) = 0;

  /// True when the program is to save and exit with 0. Reads a flag that the background sets; among
  /// several ranks in kWorkersAskChief the chief's, which costs a message to each rank. The first
  /// time it also tells the engine that the process was told, unless `acknowledge` is false.
  /// A question that could not be asked (a rank is gone; in kChiefOnly another rank than the chief
  /// asks) is answered with true, so that the program ends, and Close says why.
  virtual bool ShouldPreempt(bool acknowledge = true) = 0;
  /// Tells the engine that this process was told, will save, and exit with 0. OK when nothing was
  /// asked for.
  virtual Status AcknowledgePreemption() = 0;

  /// Waits for saves, gives everything back. `code`: what the process is going to exit with.
  /// Cancelled, under a trial engine: a signal asked the process to stop, and no preemption was
  /// acknowledged; an exit with 0 would say that the trial is complete.
  virtual Status Close(int code = 0) = 0;
};

Result<std::unique_ptr<Context>> Init(InitOptions options = {});

}  // namespace cairn::core
