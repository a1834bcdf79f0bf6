#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/checkpoint_manager.h>
#include <cairn/status.h>

#include "base/ids.h"
#include "base/thread_annotations.h"
#include "checkpoint/environment.h"
#include "storage/sim/sim_fs.h"
#include "tests/crash/job.h"
#include "tests/crash/machine.h"
#include "tests/crash/oracle.h"

/// The world of the crash suites: a small training job whose every byte is known beforehand, an
/// oracle that keeps what the engine promised, and machines that lose power at any operation.
namespace cairn::crash {

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

}  // namespace cairn::crash
