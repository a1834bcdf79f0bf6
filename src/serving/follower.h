#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <cairn/status.h>
#include <cairn/storage_options.h>

#include "base/clock.h"
#include "base/thread_annotations.h"
#include "checkpoint/catalog.h"
#include "checkpoint/repository.h"
#include "serving/directory_watch.h"
#include "serving/follow_plan.h"
#include "serving/versions.h"
#include "storage/store.h"

namespace cairn::serving {

/// Makes the dense part of versions; implemented by whoever can run graphs. Called by the
/// follower's thread alone.
class DenseLoader {
 public:
  virtual ~DenseLoader() = default;
  /// From the variables of an open checkpoint. `before`: the newest version's, or null; it may be
  /// given again when the variables are equal. FailedPrecondition for variables that are refused.
  virtual Result<std::shared_ptr<const Dense>> Load(Store* store, OpenCheckpoint* checkpoint,
                                                    const std::shared_ptr<const Dense>& before) = 0;
  /// The last guard before a version is shown: the probe set. FailedPrecondition says what is not
  /// as expected.
  virtual Status Probe(const Versions::Snapshot& /*snapshot*/) { return Status::Ok(); }
};

struct FollowerOptions {
  std::string repository;  // a path or URL; need not be there yet
  StorageOptions storage;
  std::string job;         // whose repository it must be; "": the first that is found
  bool increments = true;  // false: full checkpoints only
  std::chrono::nanoseconds poll = std::chrono::seconds(1);  // besides what inotify tells
  bool finite = true;      // refuse updates with NaN or infinite weights
  double cpu_share = 0.5;  // of a core, for updates that take more than a few milliseconds
  Clock* clock = Clock::System();
};

/// What happened to one checkpoint, or to the repository (id "").
struct UpdateReport {
  enum class Kind { kApplied, kRefused, kPassedOver, kUnreachable, kAbandoned };
  Kind kind = Kind::kApplied;
  std::string id;
  std::int64_t step = 0;
  bool full = false;          // applied: all rows were read
  std::uint64_t rows = 0;     // applied: that were read
  std::uint64_t changed = 0;  // applied: that were not as before
  double seconds = 0;         // applied: from reading the repository to visible
  std::string message;        // of the others: why
};

struct FollowerStats {
  std::uint64_t applied = 0;
  std::uint64_t refused = 0;
  std::uint64_t rows = 0;             // read, in all
  double last_seconds = 0;            // of the last update
  double seconds = 0;                 // of all updates
  std::int64_t newest_step = -1;      // of the newest checkpoint that counts; -1: none was seen
  std::int64_t newest_committed = 0;  // and when it was committed, by its writer's clock
  bool reachable = false;
  std::string last_problem;
};

/// Keeps Versions as new as a repository. The steps, on one thread:
///   1. Read the repository as every reader does, judging anew by its newest seal.
///   2. Choose (follow_plan.h). A tip that counts no longer is left, also for an older checkpoint.
///   3. Open all files, compare every chunk with its checksum, put the rows into an update aside,
///      load the dense part, let the guards look at both together.
///   4. Commit: one switch. Any failure before: the update is aborted and nobody has seen it.
///   5. What was refused for what it is (damaged, not fitting, a guard) is reported once and not
///      tried again; what failed for the moment (unreachable, gone while being read) is tried again
///      with the next look. Then the next newest is chosen.
class Follower {
 public:
  /// `versions` and `dense` (may be null) are borrowed. `report` is called on the follower's
  /// thread.
  static Result<std::unique_ptr<Follower>> Open(FollowerOptions options, Versions* versions,
                                                DenseLoader* dense,
                                                std::function<void(const UpdateReport&)> report);
  /// Ends the thread; an update under way is given up.
  ~Follower();

  /// One look, on the caller's thread: before Start, or without it. OK also when there is nothing
  /// new; otherwise why there is no version at all.
  Status Look();
  /// Looks again and again on a thread of its own.
  void Start();
  /// There is something new, says a writer beside it. Any thread.
  void Notify() { watch_->Wake(); }
  FollowerStats stats() const EXCLUDES(mu_);

 private:
  Follower(FollowerOptions options, Versions* versions, DenseLoader* dense,
           std::function<void(const UpdateReport&)> report, std::unique_ptr<DirectoryWatch> watch);

  void Run(const std::stop_token& stop);
  Result<RepositoryView> ReadRepository();
  Status CheckJob(const RepositoryView& view);
  Status Apply(const RepositoryView& view, const FollowPlan& plan);
  Status Update(const FollowPlan& plan, UpdateReport* report);
  void Forget(const RepositoryView& view);
  void ReportOnce(UpdateReport report);
  /// The repository, or (with an id) what is needed of one checkpoint, cannot be read for now.
  void Unreachable(const Status& status, const std::string& id);
  void NoteNewest(const RepositoryView& view);

  const FollowerOptions options_;
  Versions* const versions_;
  DenseLoader* const dense_;
  const std::function<void(const UpdateReport&)> report_;
  const std::unique_ptr<DirectoryWatch> watch_;

  // The follower's thread alone.
  std::unique_ptr<Store> store_;
  std::string job_;
  FollowState state_;
  std::shared_ptr<const Dense> newest_dense_;  // shared with the newest version
  std::set<std::pair<UpdateReport::Kind, std::string>> reported_;
  std::map<std::string, int> vanished_;  // how often a checkpoint was gone while it was read

  mutable Mutex mu_;
  FollowerStats stats_ GUARDED_BY(mu_);
  std::atomic<bool> stopping_{false};
  std::jthread thread_;
};

}  // namespace cairn::serving
