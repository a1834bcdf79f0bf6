#pragma once

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <cairn/dtype.h>
#include <cairn/status.h>
#include <cairn/storage_options.h>
#include <cairn/table_rows.h>
#include <cairn/value.h>

/// Checkpoints that survive anything. A CheckpointManager owns a repository (a directory of
/// checkpoints), saves the variables of a training job into it and brings them back:
///
///   auto manager = cairn::CheckpointManager::Open({.directory = "runs/a"}).value();
///   auto restored = manager->Restore({.into = tensors});          // nothing there: nullopt
///   for (int64_t step = next; step < steps; ++step) {
///     Train(step);
///     manager->Save({.step = step, .tensors = views}).value();   // returns after the copy
///   }
///   manager->Close();                                             // waits, reports failures
namespace cairn {

/// Gives a tensor's bytes piece by piece, for tensors that do not fit into memory twice.
class TensorSource {
 public:
  virtual ~TensorSource() = default;
  /// Fills `into` with the tensor's bytes from `offset`. Called from one background thread, each
  /// byte once, in order.
  virtual Status Fill(std::uint64_t offset, std::span<std::byte> into) = 0;
  /// The save has failed: nothing more is read. Called by the thread that fills, before the handle
  /// tells, so that whatever the source holds back for the save (memory, waiting threads) is let go
  /// although nobody may ask the handle for long.
  virtual void Abandoned() {}
};

/// Where a piece stands in a distributed array: the rectangle of the tensor's own shape at
/// `offset`.
struct ShardSpec {
  std::vector<std::uint64_t> global_shape;
  std::vector<std::uint64_t> offset;
};

/// Which part of the checkpoint a tensor belongs to.
enum class TensorGroup : std::uint8_t {
  kModel,  // __model__/: the variables of the model
  kState,  // <participant>/state.safetensors: this participant's own (RNG, data position)
  kTable,  // __lookup_table__/<participant>.safetensors: rows of sparse tables
};

/// A tensor to save: contiguous, row-major.
struct Tensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::uint64_t> shape;
  const void* data = nullptr;      // borrowed until Save returned (lazy, stream: until Guard did)
  TensorSource* source = nullptr;  // instead of data; borrowed until the save is done
  std::optional<ShardSpec> shard;  // a piece of a distributed array
  bool replicated = false;         // all ranks hold the same bytes: written once, by one of them
  TensorGroup group = TensorGroup::kModel;
};

/// A tensor to fill.
struct MutableTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::uint64_t> shape;
  void* data = nullptr;
  std::optional<ShardSpec> shard;
  TensorGroup group = TensorGroup::kModel;
};

/// A tensor that a restore allocated (64-byte aligned).
struct OwnedTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::uint64_t> shape;
  TensorGroup group = TensorGroup::kModel;
  std::uint64_t bytes = 0;
  std::shared_ptr<std::byte> data;  // shared: bindings hand the memory on to arrays
};

/// A file of the user's own, stored as files/<name>: from a local file, or from bytes in memory.
struct UserFile {
  std::string name;
  std::string path;   // read in the background; must not change until the save is done
  std::string bytes;  // used when path is empty
};

/// What a checkpoint holds. Dense variables are whole in each; rows of tables in a full one are all
/// of them, in an increment those that changed.
enum class SaveKind : std::uint8_t {
  kFull,
  kCumulative,   // an increment: changed since its base, the newest full one of the branch
  kConsecutive,  // an increment: changed since its parent, the checkpoint before it on the branch
};

struct CheckpointInfo {
  std::string id;
  std::int64_t step = 0;
  std::string kind;   // "full" or "increment"
  std::string chain;  // of an increment: "cumulative" or "consecutive"
  std::string path;   // of the checkpoint's directory; a URL on a bucket
  std::uint64_t bytes = 0;
  Value metrics;
  Value metadata;
  Value counters;
  std::int64_t time = 0;  // nanoseconds since 1970
  std::string parent;
  std::string base;  // of an increment: id of the full checkpoint it builds on
  std::vector<TableFacts> tables;
  std::uint64_t generation = 0;
  std::uint64_t sequence = 0;
  bool pinned = false;
  bool foreign = false;  // another job's: listed, never chosen
};

struct SaveRequest {
  std::int64_t step = 0;
  /// An increment is refused (FailedPrecondition) unless the branch it goes on with has a committed
  /// full checkpoint: one that this manager saved, or restored from.
  SaveKind kind = SaveKind::kFull;
  std::vector<Tensor> tensors;
  /// The tables that this participant's tensors of TensorGroup::kTable belong to.
  std::vector<TableFacts> tables;
  /// Of an increment, where not empty: the checkpoint since which its rows are counted. The save is
  /// refused when the engine would take another one for the base (cumulative) or the parent
  /// (consecutive), because a chain with a gap restores to a state that never was.
  std::string since;
  Value counters = Value::Object{};
  Value metrics = Value::Object{};
  Value metadata = Value::Object{};
  Value lineage = Value::Object{};
  std::vector<UserFile> files;
  /// Small files of this participant: <participant>/<name> (state.json, epoch_id …).
  std::map<std::string, std::string> state_files;
  bool blocking = false;  // return when it is durable
  bool lazy = false;      // return at once; copy behind the caller's next computation (Guard)
  /// Return at once and make no copy: the tensors are read while they are written. They must not
  /// change until Guard returned, which takes as long as writing them. What blocking does, without
  /// the wait.
  bool stream = false;
};

/// A save under way. Copies share it; may be used from any thread.
class SaveHandle {
 public:
  SaveHandle() = default;

  /// Waits until the save is durable or has failed. Cancelled: it was skipped (on_busy = kSkip).
  Result<CheckpointInfo> Wait() const;
  bool Done() const;
  /// What Wait gives, without the wait: nullopt before the save is over. For observers: a failure
  /// seen here still counts as unreported.
  std::optional<Result<CheckpointInfo>> Outcome() const;
  /// Waits until the tensors may be changed again; at once unless the save is lazy or streams. An
  /// error is the save's own, as from Wait.
  Status Guard() const;
  /// The same waits with an end: false when it was not over in time.
  bool WaitFor(std::chrono::nanoseconds timeout) const;
  bool GuardFor(std::chrono::nanoseconds timeout) const;
  /// Time that the caller of Save (and of Guard) was held up.
  double StallSeconds() const;
  double DurableSeconds() const;       // from Save to durable; 0 before
  std::uint64_t BytesWritten() const;  // by this participant, so far
  std::uint64_t BytesShared() const;   // linked or referred to instead of written

  class State;
  explicit SaveHandle(std::shared_ptr<State> state) : state_(std::move(state)) {}

 private:
  std::shared_ptr<State> state_;  // shared: the caller and the background thread outlive each other
};

/// The names that did not fit, when a restore is refused.
struct MismatchReport {
  std::vector<std::string> missing;     // asked for, not in the checkpoint
  std::vector<std::string> unexpected;  // in the checkpoint, not asked for
  std::vector<std::string> mismatched;  // "name: stored F32 [2,3], wanted F32 [3,2]"
};

/// Called now and then during long work with (done, total) bytes, on the thread that asked for it.
/// May return a bool: false ends the work with Cancelled.
class Progress {
 public:
  Progress() = default;
  template <typename Fn>
    requires std::invocable<const Fn&, std::uint64_t, std::uint64_t> &&
             (!std::same_as<Fn, Progress>)
  Progress(Fn fn)  // NOLINT: a lambda stands where progress is wanted
      : call_([fn = std::move(fn)](std::uint64_t done, std::uint64_t total) {
          if constexpr (std::same_as<decltype(fn(done, total)), bool>) return fn(done, total);
          fn(done, total);
          return true;
        }) {}
  explicit operator bool() const { return call_ != nullptr; }
  /// True: go on. Nobody to be told: go on.
  bool operator()(std::uint64_t done, std::uint64_t total) const {
    return call_ == nullptr || call_(done, total);
  }

 private:
  std::function<bool(std::uint64_t, std::uint64_t)> call_;
};

struct Restored;

struct RestoreRequest {
  std::vector<MutableTensor> into;
  bool allocate = false;                 // give back new tensors for all (further) stored ones …
  std::set<std::string> allocate_names;  // … or, when not empty, for these (also when in `into`)
  std::optional<std::int64_t> step;      // the newest of that step, instead of the latest
  std::string id;
  std::string path;      // a checkpoint's directory, anywhere, or its URL
  bool strict = true;    // every stored tensor wanted, every wanted one stored
  bool partial = false;  // with strict: stored tensors that nobody wants are skipped, not refused
  std::map<std::string, std::string>
      rename;                          // stored name → target name; misspelt ones are refused
  std::set<std::string> skip;          // stored or target names to leave alone; likewise
  bool atomic = false;                 // verify everything before the first byte changes
  TableSink* tables = nullptr;         // takes the rows of tables; borrowed
  MismatchReport* mismatch = nullptr;  // filled when the restore is refused for mismatches
  /// Called for each checkpoint that is tried (the latest, then older ones when it is damaged),
  /// when its records and state files were read and before any tensor is. May change the tensors
  /// asked for (into, allocate, strict, rename, skip): what they are may depend on what was stored.
  /// An error ends the restore with nothing changed.
  std::function<Status(const Restored& head, RestoreRequest* request)> prepare;
  /// With `prepare`: the stored tensors are listed on another thread while it runs. For a `prepare`
  /// that takes long, and mostly asks for tensors.
  bool list_ahead = false;
  Progress progress;
  /// Asked from any thread while tensors are read; true ends the restore with Cancelled.
  std::function<bool()> cancelled;
};

struct Restored {
  CheckpointInfo info;
  std::int64_t step = 0;
  Value counters;
  Value metrics;
  Value metadata;
  std::vector<OwnedTensor> tensors;                // with allocate
  std::map<std::string, std::string> state_files;  // this participant's
  std::vector<std::string> restored;               // target names, in order
  std::uint64_t bytes = 0;
  std::vector<std::pair<std::string, std::string>> skipped;  // (name, reason)
  std::vector<std::string> fallbacks;  // newer checkpoints that were damaged, and how
};

/// Which checkpoints stay. All rules add up: one that any rule keeps stays. The latest always does.
/// Each checkpoint is a restore point, an increment as well as a full one, and the rules count them
/// alike. What a kept increment builds on stays with it and is not counted.
struct Retention {
  std::optional<std::uint64_t> keep_last = 3;  // nullopt: all
  std::optional<std::uint64_t> keep_fulls;     // the newest so many full ones, whatever came since
  std::optional<std::uint64_t> keep_best;      // best by `score`
  std::string score;                           // a metric; "a/b" reaches into nested ones
  bool maximize = true;
  std::optional<std::int64_t> keep_every;  // steps that are multiples of this
};

enum class Naming : std::uint8_t { kStep, kSerial };
enum class OnBusy : std::uint8_t { kWait, kSkip };
enum class DiskWrites : std::uint8_t { kAuto, kDirect, kBuffered };

struct ManagerOptions {
  /// A path, file:///path, s3://bucket/prefix or hdfs://host:port/path; a local directory is made
  /// when missing (unless read_only).
  std::string directory;
  StorageOptions storage;  // for buckets and clusters
  std::string job;         // "" adopts the directory's job, or makes a new one in a fresh one
  std::uint64_t run =
      0;  // a supervisor's run number: a lower one is refused once a higher was seen
  Retention retention;
  int rank = 0;
  int world_size = 1;
  std::string participant = "rank";  // participants are called <participant>_<rank>
  Naming naming = Naming::kStep;
  OnBusy on_busy = OnBusy::kWait;  // a save while one is in flight waits for it, or is skipped
  std::chrono::nanoseconds deadline = std::chrono::seconds(600);  // for all ranks' parts
  std::chrono::nanoseconds join_deadline = std::chrono::seconds(30);
  bool low_memory = false;  // no arena: stream through 96 MiB; Save returns when it is written
  bool read_only = false;
  bool private_parts = false;  // each rank has a directory of its own; `cairn checkpoint merge`
  bool takeover = false;       // do not wait for a living writer's lock: fence it out
  DiskWrites disk_writes = DiskWrites::kAuto;    // O_DIRECT or fsync; kAuto measures as it begins
  int copy_threads = 0;                          // 0: all cores; at most 1024
  std::uint64_t pool_bytes = ~std::uint64_t{0};  // of removed files kept for overwriting; 0: none
  /// Asked now and then while Open waits for other ranks; true ends it with Cancelled.
  std::function<bool()> cancelled;
};

/// Saves and restores the checkpoints of one job. One Save at a time may be called (from any
/// thread); List, Latest, Pin and the like may run beside it. A failed background save is reported
/// by the next Save, by WaitAll and by Close: the first of them that comes. A failure leaves the
/// repository as it was before that save. That retention could not remove a checkpoint is logged,
/// and reported by WaitAll and by Close; saves go on.
class CheckpointManager {
 public:
  static Result<std::unique_ptr<CheckpointManager>> Open(ManagerOptions options);
  virtual ~CheckpointManager() = default;

  virtual Result<SaveHandle> Save(SaveRequest request) = 0;
  /// nullopt only if nothing was ever committed. Without step, id and path: the latest, or the
  /// newest older one that is not damaged (see Restored::fallbacks).
  virtual Result<std::optional<Restored>> Restore(RestoreRequest request) = 0;

  virtual Result<std::vector<CheckpointInfo>> List() = 0;  // oldest first
  virtual Result<std::optional<CheckpointInfo>> Latest() = 0;
  virtual Status WaitAll() = 0;
  virtual Status Pin(const std::string& id) = 0;
  virtual Status Unpin(const std::string& id) = 0;
  /// Adds metrics to a committed checkpoint (a validation that came later) and applies retention. A
  /// read-only manager may do it beside a living writer, which looks before it removes; Aborted
  /// when the checkpoint is gone by then.
  virtual Status AddMetrics(const std::string& id, Value metrics) = 0;
  /// FailedPrecondition, naming them, while increments build on it: those go first.
  virtual Status Delete(const std::string& id) = 0;
  /// Waits for the save in flight, reports its failure, gives up ownership. Further calls fail.
  virtual Status Close() = 0;

  virtual std::uint64_t generation() const = 0;
  virtual const std::string& job() const = 0;
};

/// Restores the checkpoint in the directory request.path, wherever it lies; no repository and no
/// ownership are needed. What an increment builds on is looked for in the directories beside it.
/// `participant`: whose own state is read.
Result<Restored> LoadCheckpoint(const RestoreRequest& request,
                                const std::string& participant = "rank_0");

struct VerifyProblem {
  std::string checkpoint;  // directory name, or a record's name
  std::string what;
};
struct VerifyReport {
  std::vector<CheckpointInfo> checkpoints;
  std::vector<VerifyProblem> problems;
  std::uint64_t files = 0;
  std::uint64_t bytes = 0;  // read and compared
  bool ok() const { return problems.empty(); }
};
/// Fast: records, manifests, files present with their sizes. Deep: every checksum too.
Result<VerifyReport> Verify(const std::string& directory, bool deep, const Progress& progress = {});

struct TensorDifference {
  std::string name;
  std::string what;            // "changed", "added", "removed", "shape", "dtype"; "rows": a table
  double max_abs = 0;          // of changed ones, where numbers can be subtracted
  std::uint64_t elements = 0;  // that differ; of a table: rows
  std::uint64_t rows_added = 0;
  std::uint64_t rows_removed = 0;
  std::uint64_t rows_changed = 0;
};
/// Compares two checkpoints (their directories): b against a. Tables are compared row by row, those
/// of increments with what they build on.
Result<std::vector<TensorDifference>> Diff(const std::string& a, const std::string& b,
                                           const Progress& progress = {});

}  // namespace cairn
