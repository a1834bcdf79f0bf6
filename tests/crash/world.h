#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <cairn/checkpoint_manager.h>
#include <cairn/status.h>

#include "base/ids.h"
#include "base/thread_annotations.h"
#include "checkpoint/environment.h"
#include "checkpoint/layout.h"
#include "storage/memory/memory_store.h"
#include "storage/sim/sim_fs.h"

/// The world of the crash suites: a small training job whose every byte is known beforehand, an
/// oracle that keeps what the engine promised, and machines that lose power at any operation.
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
  Job(std::uint64_t seed, std::vector<Variable> variables, bool user_files)
      : seed_(seed), variables_(std::move(variables)), user_files_(user_files) {}

  PreparedSave Prepare(int serial, std::int64_t step, int rank = 0, int world_size = 1) const;

  /// The save that a checkpoint says it is; 0 when it does not say.
  static int SerialOf(const Value& counters);
  /// "" when `restored` (with allocate) holds exactly the state of that save as `rank` sees it.
  std::string Compare(const Restored& restored, int serial, int rank) const;
  /// "" when the user's files of that save stand in the checkpoint's directory.
  std::string CompareUserFiles(Store* store, const std::string& directory, int serial) const;

 private:
  std::string Bytes(const Variable& variable, int serial, int rank) const;
  std::map<std::string, std::string> UserFiles(int serial) const;

  std::uint64_t seed_ = 1;
  std::vector<Variable> variables_;
  bool user_files_ = false;
};

/// What the engine has promised at an instant.
struct Promise {
  std::map<int, std::int64_t> begun;  // every save that was begun: serial → step
  std::vector<int> acknowledged;      // in order
  std::set<int> required;             // acknowledged, and retention may not have removed them
  std::set<int> deleted;              // Delete returned OK: they may not come back
  std::map<int, bool> pinned;         // the last pin or unpin that returned, none under way
  std::map<int, double> scores;       // AddMetrics returned
};

/// Keeps the promises of the engine, outside of it. Thread-safe.
class Oracle {
 public:
  explicit Oracle(std::optional<std::uint64_t> keep_last) : keep_last_(keep_last) {}

  /// The serial number of a new save.
  int Begin(std::int64_t step) EXCLUDES(mu_);
  void Acknowledge(int serial) EXCLUDES(mu_);
  /// Sealed by an opening that returned: they count like acknowledged ones from now on.
  void Adopt(const std::set<int>& serials) EXCLUDES(mu_);
  void Deleting(int serial) EXCLUDES(mu_);
  void Deleted(int serial) EXCLUDES(mu_);
  void Pinning(int serial) EXCLUDES(mu_);
  void Pinned(int serial, bool pinned) EXCLUDES(mu_);
  void Scoring() EXCLUDES(mu_);  // applies retention
  void Scored(int serial, double score) EXCLUDES(mu_);
  Promise Now() const EXCLUDES(mu_);

 private:
  /// What retention may remove now; for ever.
  void Release() REQUIRES(mu_);

  const std::optional<std::uint64_t> keep_last_;
  mutable Mutex mu_;
  Promise promise_ GUARDED_BY(mu_);
  std::set<int> released_ GUARDED_BY(mu_);  // retention or a Delete may have removed them
};

using Image = std::variant<std::shared_ptr<const SimImage>, std::shared_ptr<const MemoryImage>>;

/// How a machine ends.
enum class Ending {
  kForget,  // power loss: nothing that was not synced is left
  kKeep,    // power loss: everything is left
  kSubset,
  kTorn,
  kKill,  // only the processes end
};
std::string_view EndingName(Ending ending);

/// A machine with a disk (a local store on SimFs) or a bucket (a memory store in object-store
/// mode). Thread-safe.
class Machine {
 public:
  enum class Kind { kDisk, kBucket };
  explicit Machine(Kind kind, SimFs::Options disk = {});
  /// The machine started again after its end at that instant. A bucket knows one kind of end.
  Machine(const Image& image, Ending ending, std::uint64_t seed);

  Kind kind() const { return fs_ != nullptr ? Kind::kDisk : Kind::kBucket; }
  /// The repository's store as another process would open it.
  Result<std::shared_ptr<Store>> NewStore(IdSource* ids) EXCLUDES(mu_);
  /// Called before every operation that may change what is stored, of stores opened later too.
  void SetHook(std::function<void(const std::string&)> hook) EXCLUDES(mu_);
  Image Snapshot() const;
  SimFs* fs() { return fs_.get(); }

 private:
  std::unique_ptr<SimFs> fs_;            // kDisk
  std::unique_ptr<MemoryStore> memory_;  // kBucket
  Mutex mu_;
  std::function<void(const std::string&)> hook_ GUARDED_BY(mu_);
};

/// The repository as a local store of `fs`, with parts and direct I/O from a few KiB up, so that
/// small files go the ways of large ones.
inline constexpr std::string_view kRepositoryRoot = "/data/run";
Result<std::unique_ptr<Store>> OpenRepository(Fs* fs, IdSource* ids,
                                              std::string_view root = kRepositoryRoot);

/// Layout limits with which a few KiB become several files that are shared and recycled.
LayoutLimits SmallLayout();

/// A sync as the mutation suite tells them apart: what it is for, of what (the path normalised),
/// and in which protocol step.
struct SyncPoint {
  SimSync sync;
  std::string step;

  auto operator<=>(const SyncPoint&) const = default;
};
std::string DescribeSync(const SyncPoint& point);

/// An instant at which the machine may end: just before an operation.
struct Cut {
  std::string before;  // the operation
  std::string step;    // the protocol step that was under way
  Image image;
  Promise promise;
};

/// One machine, the job that runs on it, and a record of every instant at which it could have
/// ended. Scenarios drive it, from several threads when the job has several ranks.
class World {
 public:
  struct Options {
    Machine::Kind kind = Machine::Kind::kDisk;
    Job job;
    int world_size = 1;
    ManagerOptions manager;  // of every opening
    std::uint64_t seed = 1;
  };
  explicit World(Options options);
  /// Goes on after the end of another world.
  World(Options options, const Image& image, Ending ending, std::uint64_t seed,
        const Promise& promise);
  ~World();

  Machine& machine() { return *machine_; }
  Oracle& oracle() { return oracle_; }
  const Job& job() const { return options_.job; }
  const Options& options() const { return options_; }

  /// Objects that are not the engine's, made durable; recoveries check that they survive.
  void PlantForeign();

  /// Syncs for which `ignore` says true do nothing; every sync is remembered from now on. On disks.
  void WatchSyncs(std::function<bool(const SyncPoint&)> ignore);
  std::set<SyncPoint> syncs() const EXCLUDES(mu_);

  void StartRecording();
  /// Ends it with a cut after the last operation.
  std::vector<Cut> StopRecording() EXCLUDES(mu_);

  Result<std::unique_ptr<CheckpointManager>> Open(int rank = 0);
  /// Saves and waits; `serial` from Oracle::Begin.
  Result<CheckpointInfo> Save(CheckpointManager* manager, int serial, int rank = 0);

  /// How often each protocol step was begun.
  std::map<std::string, int> steps() const EXCLUDES(mu_);

 private:
  class RankClock;

  Environment NewEnvironment(int rank);
  void OnStep(int rank, std::string_view name) EXCLUDES(mu_);
  void BeforeOperation(const std::string& operation) EXCLUDES(mu_);
  void LetOthersLook(const std::string& operation) EXCLUDES(mu_);

  const Options options_;
  std::unique_ptr<Machine> machine_;
  Oracle oracle_;
  SeededIds ids_;
  std::deque<std::unique_ptr<RankClock>> clocks_;  // by rank
  mutable Mutex mu_;
  CondVar polled_;
  bool recording_ GUARDED_BY(mu_) = false;
  std::vector<Cut> cuts_ GUARDED_BY(mu_);
  std::string step_ GUARDED_BY(mu_);
  std::map<std::string, int> steps_ GUARDED_BY(mu_);
  std::set<SyncPoint> syncs_ GUARDED_BY(mu_);
  std::vector<int> saving_ GUARDED_BY(mu_);           // the save of each rank; 0: none
  std::vector<std::uint64_t> polls_ GUARDED_BY(mu_);  // by rank
  std::string linked_manifest_ GUARDED_BY(mu_);       // a directory whose manifest is not synced
};

struct RecoveryOptions {
  bool foreign = false;     // foreign objects were planted
  bool no_garbage = false;  // nothing of an unfinished save may be left
  bool save_again = true;   // a new save works, and survives a power loss
  int world_size = 1;       // of the job that saved: each rank's view is restored
};

/// Starts the job again on the machine and checks everything that was promised: "" or what is
/// broken. The new opening sees what the promise requires, bit-equal, nothing damaged and nothing
/// that was never saved; its latest is the newest acknowledged one or a newer one.
std::string CheckRecovery(Machine* machine, const Job& job, const Promise& promise,
                          const RecoveryOptions& options);

/// The serials of what counts in the repository.
Result<std::set<int>> ListSerials(CheckpointManager* manager);

}  // namespace cairn::crash
