#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/checkpoint_manager.h>
#include <cairn/status.h>

#include "base/ids.h"
#include "base/thread_annotations.h"
#include "checkpoint/environment.h"
#include "tests/crash/job.h"
#include "tests/crash/machine.h"
#include "tests/crash/mutation.h"
#include "tests/crash/oracle.h"
#include "tests/crash/sync_point.h"

/// The world of the crash suites: a small training job whose every byte is known beforehand, an
/// oracle that keeps what the engine promised, and machines that lose power at any operation.
namespace cairn::crash {

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
    const Mutation* mutation = nullptr;  // borrowed
    ProtocolRules rules;                 // of every opening
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

  /// On a disk every sync is remembered from now on, and the mutation takes effect.
  void WatchSyncs();
  std::set<SyncPoint> syncs() const EXCLUDES(mu_);
  /// The cut that was next when the mutation took effect for the first time.
  std::optional<std::size_t> first_effect() const EXCLUDES(mu_);

  void StartRecording();
  /// Ends it with a cut after the last operation.
  std::vector<Cut> StopRecording() EXCLUDES(mu_);

  /// `change`: what this opening does otherwise than Options::manager.
  Result<std::unique_ptr<CheckpointManager>> Open(
      int rank = 0, const std::function<void(ManagerOptions*)>& change = nullptr);
  /// The next save of the rank, which the caller makes, is this one; the world acknowledges it.
  void BeginSave(int serial, int rank = 0) EXCLUDES(mu_);
  /// Saves and waits; `serial` from Oracle::Begin.
  Result<CheckpointInfo> Save(CheckpointManager* manager, int serial, int rank = 0,
                              SaveKind kind = SaveKind::kFull, int since = 0);
  /// Puts the latest and what it builds on together, as the tool does.
  Status Compact();

  /// The first operation of that kind in the next step of that name fails. On a disk.
  void FailOnce(std::string step, FsOpKind operation) EXCLUDES(mu_);

  /// How often each protocol step was begun.
  std::map<std::string, int> steps() const EXCLUDES(mu_);

 private:
  class RankClock;

  Environment NewEnvironment(int rank);
  void OnStep(int rank, std::string_view name) EXCLUDES(mu_);
  void BeforeOperation(const std::string& operation) EXCLUDES(mu_);
  void TakeCut(const std::string& operation) EXCLUDES(mu_);
  bool IgnoreSync(const SimSync& sync) EXCLUDES(mu_);
  /// Makes the late syncs whose time has come.
  void SyncLate(const std::string& operation) EXCLUDES(mu_);
  void NoteEffect() EXCLUDES(mu_);
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
  struct LateSync {
    SimSync sync;
    bool due = false;
  };
  std::vector<LateSync> late_ GUARDED_BY(mu_);
  std::optional<std::size_t> first_effect_ GUARDED_BY(mu_);
  std::string fail_step_ GUARDED_BY(mu_);
  FsOpKind fail_operation_ GUARDED_BY(mu_) = FsOpKind::kSync;
  std::vector<int> saving_ GUARDED_BY(mu_);           // the save of each rank; 0: none
  std::vector<std::uint64_t> polls_ GUARDED_BY(mu_);  // by rank
  std::string linked_manifest_ GUARDED_BY(mu_);       // a directory whose manifest is not synced
};

}  // namespace cairn::crash
