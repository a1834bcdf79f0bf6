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
#include "checkpoint/restore_point.h"
#include "serving/directory_watch.h"
#include "serving/follow_plan.h"
#include "serving/pace.h"
#include "serving/setbacks.h"
#include "serving/versions.h"
#include "storage/store.h"

namespace cairn::serving {

/// Makes the dense part of versions; implemented by whoever can run graphs. Called by the
/// follower's thread alone.
class DenseLoader {
 public:
  virtual ~DenseLoader() = default;
  /// From the variables of an open checkpoint. `before`: the newest version's, or null; it may be
  /// given again when the variables are equal. MismatchError for variables that do not fit; any
  /// other failure may pass.
  virtual Result<std::shared_ptr<const Dense>> Load(Store* store, OpenCheckpoint* checkpoint,
                                                    const std::shared_ptr<const Dense>& before) = 0;
  /// The guards of the dense part and of both together, before a version is shown.
  /// FailedPrecondition says what is not as expected; with another failure they could not look.
  virtual Status Check(const Versions::Snapshot& /*snapshot*/) { return Status::Ok(); }
  /// Processor time that it has used so far on other threads than the caller's.
  virtual std::chrono::nanoseconds elsewhere() const { return {}; }
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
  /// Of the follower's thread, so far; empty: as the system has it.
  std::function<std::chrono::nanoseconds()> cpu_time;
  /// Opens the repository's store; empty: what `repository` names.
  std::function<Result<std::unique_ptr<Store>>()> open;
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
///      tried again; what failed in any other way is reported once and tried again, ever more
///      rarely (setbacks.h). Then, or meanwhile, the next newest is chosen.
/// The work of a look is kept within its share of a core (pace.h): rows block by block, the rest of
/// an increment after it is shown, so that the pause does not make it late. An exception (memory,
/// mostly) is one more failure that may pass.
class Follower {
 public:
  /// `versions` and `dense` (may be null) are borrowed. `report` is called on the follower's
  /// thread.
  static Result<std::unique_ptr<Follower>> Open(FollowerOptions options, Versions* versions,
                                                DenseLoader* dense,
                                                std::function<void(const UpdateReport&)> report);
  /// As Stop.
  ~Follower();

  /// One look, on the caller's thread: before Start, or without it. Tries everything now, also what
  /// failed before, and reads what seems damaged a second time at once. OK also when there is
  /// nothing new; otherwise why there is no version at all.
  Status Look();
  /// The same as one of many: what failed waits for its turn.
  Status LookInTurn();
  /// Looks in turn again and again on a thread of its own.
  void Start();
  /// Ends the thread; an update under way is given up, and so is a server that does not answer. No
  /// look after it finds anything.
  void Stop();
  /// There is something new, says a writer beside it. Any thread.
  void Notify() { watch_->Wake(); }
  FollowerStats stats() const EXCLUDES(mu_);

 private:
  Follower(FollowerOptions options, Versions* versions, DenseLoader* dense,
           std::function<void(const UpdateReport&)> report, std::unique_ptr<DirectoryWatch> watch);

  enum class Effort { kAll, kDue };

  void Run(const std::stop_token& stop);
  Status LookWith(Effort effort);
  Status LookOnce(Effort effort, Pace* pace);
  Result<RepositoryView> ReadRepository();
  Result<std::unique_ptr<Store>> OpenRepository() const;
  /// Also lets go of the one before, which may be waited for no longer.
  void SetStore(std::unique_ptr<Store> store) EXCLUDES(mu_);
  Status CheckJob(const RepositoryView& view);
  void NoteDamaged(const RepositoryView& view, Effort effort);
  /// Of what is in the view and not due yet nothing is tried.
  void SetAside(const RepositoryView& view, Effort effort);
  Status Apply(const RepositoryView& view, const FollowPlan& plan, Effort effort, Pace* pace);
  void Applied(const RepositoryView& view, const FollowPlan& plan, FollowState::Tip tip,
               const UpdateReport& report);
  void Failed(const Status& failure, bool guard, UpdateReport report);
  /// `guard`: the failure is the answer of one.
  Status Update(const FollowPlan& plan, Pace* pace, UpdateReport* report, bool* guard);
  Result<std::shared_ptr<const Dense>> Prepare(const FollowPlan& plan,
                                               const OpenRestorePoint& files, Pace* pace,
                                               UpdateReport* report, bool* guard);
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

  /// The follower's thread alone; it is set under mu_, so that Stop can interrupt it.
  std::unique_ptr<Store> store_;

  // The follower's thread alone.
  std::string job_;
  FollowState state_;
  std::shared_ptr<const Dense> newest_dense_;  // shared with the newest version
  std::set<std::pair<UpdateReport::Kind, std::string>> reported_;
  std::set<Code> unreachable_for_;  // the reasons that were told since it was readable last
  Setbacks setbacks_;
  std::map<std::string, Clock::Duration> damaged_since_;  // directories whose manifest is

  mutable Mutex mu_;
  FollowerStats stats_ GUARDED_BY(mu_);
  std::atomic<bool> stopping_{false};
  std::jthread thread_;
};

}  // namespace cairn::serving
