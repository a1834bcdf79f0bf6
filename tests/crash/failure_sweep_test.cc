// The n-th failure sweep: the 1st, 2nd, … operation of a save, a removal, an opening or a restore
// fails, once or from then on, until it passes. The error surfaces, nothing that was acknowledged
// is lost, and as soon as the fault is gone the next save works.

#include <gtest/gtest.h>
#include <sys/prctl.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/log.h"
#include "base/status_macros.h"
#include "checkpoint/manager.h"
#include "storage/local/posix_fs.h"
#include "storage/local/temp_directory.h"
#include "storage/sim/faulty_fs.h"
#include "storage/sim/faulty_store.h"
#include "tests/crash/recovery.h"
#include "tests/crash/virtual_time.h"
#include "tests/crash/world.h"

namespace cairn::crash {
namespace {

constexpr std::uint64_t kKeepLast = 2;

std::vector<Variable> Model() {
  using Kind = Variable::Kind;
  return {
      {.name = "weights", .kind = Kind::kSharded, .rows = 44, .columns = 70},
      {.name = "bias", .kind = Kind::kReplicated, .rows = 1, .columns = 70},
      {.name = "frozen", .kind = Kind::kReplicated, .rows = 33, .columns = 70, .period = 0},
      {.name = "rng", .kind = Kind::kOwn, .rows = 1, .columns = 16},
  };
}

/// A fault that can be made to hit the n-th operation.
struct FaultKind {
  std::string name;
  std::function<FsFault(FaultTrigger<FsOpKind>)> on_disk;  // one of the two is set
  std::function<StoreFault(FaultTrigger<StoreOp::Kind>)> in_bucket;
  std::optional<FsOpKind> only;  // hit only these
};

std::vector<FaultKind> DiskFaults() {
  auto failing = [](std::string name, FsFailure failure, std::optional<FsOpKind> only = {}) {
    FaultKind kind;
    kind.name = std::move(name);
    kind.only = only;
    kind.on_disk = [failure](FaultTrigger<FsOpKind> trigger) {
      return FsFault{.failure = failure, .trigger = trigger, .status = Status()};
    };
    return kind;
  };
  return {
      failing("EIO", FsFailure::kIoError),
      failing("ENOSPC", FsFailure::kNoSpace),
      failing("short write", FsFailure::kShortWrite, FsOpKind::kWrite),
      failing("failed fsync", FsFailure::kFailedSync, FsOpKind::kSync),
      failing("failed fsync of a directory", FsFailure::kFailedSync, FsOpKind::kSyncDirectory),
  };
}

std::vector<FaultKind> BucketFaults() {
  auto failing = [](std::string name, Status status, StoreFault::When when) {
    FaultKind kind;
    kind.name = std::move(name);
    kind.in_bucket = [status, when](FaultTrigger<StoreOp::Kind> trigger) {
      return StoreFault{.status = status, .when = when, .trigger = trigger};
    };
    return kind;
  };
  return {
      failing("unreachable", UnavailableError("unreachable"), StoreFault::When::kBefore),
      failing("answer lost", UnavailableError("the answer was lost"), StoreFault::When::kAfter),
      failing("no space", ResourceExhaustedError("no space"), StoreFault::When::kBefore),
      failing("broken", InternalError("broken"), StoreFault::When::kAfter),
  };
}

/// The job of a sweep, and a repository that holds three saves of it.
struct Ground {
  Machine::Kind kind = Machine::Kind::kDisk;
  int world_size = 1;
  Job job;
  Image image;
  Promise promise;
};

Ground MakeGround(Machine::Kind kind) {
  Ground ground;
  ground.kind = kind;
  ground.job = Job(1, Model(), /*user_files=*/true);
  World::Options options;
  options.kind = kind;
  options.job = ground.job;
  options.manager.retention.keep_last = kKeepLast;
  World world(options);
  world.PlantForeign();
  auto manager = world.Open();
  EXPECT_TRUE(manager.ok()) << manager.status().ToString();
  for (int i = 1; i <= 3; ++i) {
    const auto saved = world.Save(manager->get(), world.oracle().Begin(i));
    EXPECT_TRUE(saved.ok()) << saved.status().ToString();
  }
  EXPECT_TRUE((*manager)->Close().ok());
  ground.image = world.machine().Snapshot();
  ground.promise = world.oracle().Now();
  return ground;
}

/// One process of the job on a machine, with a layer in between that fails.
class Process {
 public:
  Process(Machine* machine, IdSource* ids, Clock* clock) : ids_(ids), clock_(clock) {
    if (machine->kind() == Machine::Kind::kDisk) {
      disk_ = std::make_unique<FaultyFs>(machine->fs());
      // After a failed fsync the kernel forgets the bytes.
      disk_->OnFailedSync([fs = machine->fs()](FsFile* file) {
        fs->DropUnsynced(file).IgnoreError("a file that is closed already");
      });
    } else {
      inner_ = machine->NewStore(ids).value();
      bucket_ = std::make_shared<FaultyStore>(inner_.get());
    }
  }

  void Arm(const FaultKind& kind, std::uint64_t at, bool from_then_on) {
    if (disk_ != nullptr) {
      disk_->Arm(kind.on_disk({.at = at, .kind = kind.only, .from_then_on = from_then_on}));
    } else {
      bucket_->Arm(kind.in_bucket({.at = at, .kind = {}, .from_then_on = from_then_on}));
    }
  }
  void Disarm() {
    if (disk_ != nullptr) disk_->Disarm();
    if (bucket_ != nullptr) bucket_->Disarm();
  }
  std::uint64_t failures() const {
    return disk_ != nullptr ? disk_->failures() : bucket_->failures();
  }
  /// Whether the fault's turn came.
  bool Reached(const FaultKind& kind, std::uint64_t at) const {
    if (bucket_ != nullptr) return bucket_->operations() > at;
    return (kind.only ? disk_->operations(*kind.only) : disk_->operations()) > at;
  }

  Status Open(int rank, int world_size) {
    manager_.reset();
    Environment env;
    if (disk_ != nullptr) {
      ASSIGN_OR_RETURN(env.store, OpenRepository(disk_.get(), ids_));
    } else {
      env.store = bucket_;
    }
    env.ids = ids_;
    env.clock = clock_;
    env.host = "machine";
    env.pid = 300 + rank;
    ManagerOptions options;
    options.retention.keep_last = kKeepLast;
    options.rank = rank;
    options.world_size = world_size;
    options.copy_threads = 1;
    ASSIGN_OR_RETURN(manager_, OpenManager(std::move(options), std::move(env), SmallLayout()));
    return Status::Ok();
  }

  CheckpointManager* manager() { return manager_.get(); }

 private:
  IdSource* const ids_;
  Clock* const clock_;
  std::unique_ptr<FaultyFs> disk_;
  std::shared_ptr<Store> inner_;
  std::shared_ptr<FaultyStore> bucket_;         // shared: the manager's environment holds it too
  std::unique_ptr<CheckpointManager> manager_;  // last: it goes first
};

/// Ends the test when nothing happened for long: a call that hangs is a finding too.
class Watchdog {
 public:
  Watchdog() : thread_([this](std::stop_token stop) { Watch(std::move(stop)); }) {}
  void Now(std::string what) {
    MutexLock lock(&mu_);
    what_ = std::move(what);
    ++count_;
  }

 private:
  static constexpr int kPatienceSeconds = 120;

  void Watch(std::stop_token stop) {
    std::uint64_t last = 0;
    int idle = 0;
    while (!stop.stop_requested()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      MutexLock lock(&mu_);
      idle = count_ == last ? idle + 1 : 0;
      last = count_;
      if (idle < kPatienceSeconds * 10) continue;
      std::fprintf(stderr, "hangs: %s\n", what_.c_str());
      std::abort();
    }
  }

  Mutex mu_;
  std::string what_ GUARDED_BY(mu_);
  std::uint64_t count_ GUARDED_BY(mu_) = 0;
  std::jthread thread_;
};

/// One run: a fresh copy of the ground, a process on it, and what it was told.
class Trial {
 public:
  explicit Trial(const Ground& ground)
      : ground_(ground),
        machine_(ground.image, Ending::kKeep, 0),
        oracle_(kKeepLast),
        ids_(4711),
        process_(&machine_, &ids_, Clock::System()) {
    for (const auto& [serial, step] : ground.promise.begun) oracle_.Begin(step);
    for (const int serial : ground.promise.acknowledged) oracle_.Acknowledge(serial);
  }

  Process& process() { return process_; }
  /// From now on fewer checkpoints may be there than retention keeps.
  void DeletesByHand() { deletes_by_hand_ = true; }
  Oracle& oracle() { return oracle_; }
  CheckpointManager* manager() { return process_.manager(); }

  Status Open() { return Note(process_.Open(0, 1)); }
  /// Saves and waits for retention too; both statuses are noted.
  Status Save(std::int64_t step) {
    const int serial = oracle_.Begin(step);
    last_ = serial;
    PreparedSave save = ground_.job.Prepare(serial, step);
    const Status saved = [&]() -> Status {
      ASSIGN_OR_RETURN(const SaveHandle handle, manager()->Save(std::move(save.request)));
      return handle.Wait().status();
    }();
    if (saved.ok()) oracle_.Acknowledge(serial);
    if (!saved.ok()) failed_.insert(serial);
    Note(saved).IgnoreError("counted");
    Note(manager()->WaitAll()).IgnoreError("counted");
    return saved;
  }
  Status Note(Status status) {
    if (!status.ok()) ++errors_;
    return status;
  }

  /// With the fault gone: everything that was promised holds, and goes on working.
  std::string Finish();

 private:
  std::string CheckListed(bool complete);

  const Ground& ground_;
  Machine machine_;
  Oracle oracle_;
  SeededIds ids_;
  Process process_;
  int errors_ = 0;
  int last_ = 0;
  bool deletes_by_hand_ = false;
  std::set<int> failed_;
};

std::string Trial::CheckListed(bool complete) {
  const auto listed = ListSerials(manager());
  if (!listed.ok()) return "list: " + listed.status().ToString();
  // One that failed may count all the same; then retention counts it too.
  std::set<int> uncertain;
  for (const int serial : failed_) {
    if (listed->contains(serial)) uncertain.insert(serial);
  }
  oracle_.Adopt(uncertain);
  for (const int serial : oracle_.Now().required) {
    if (!listed->contains(serial)) return "save " + std::to_string(serial) + " is lost";
  }
  if (complete && !deletes_by_hand_ && listed->size() != kKeepLast) {
    return std::to_string(listed->size()) + " checkpoints are listed instead of " +
           std::to_string(kKeepLast) + ", and no call has said why";
  }
  return "";
}

std::string Trial::Finish() {
  process_.Disarm();
  const std::uint64_t hits = process_.failures();
  if (manager() == nullptr) {
    const Status opened = process_.Open(0, 1);
    if (!opened.ok()) return "open, with the fault gone: " + opened.ToString();
  }
  // Whatever was not reported must have been made good.
  if (std::string wrong = CheckListed(hits > 0 && errors_ == 0 && last_ > 0); !wrong.empty()) {
    return "listed: " + wrong;
  }
  errors_ = 0;
  const std::int64_t step = last_ == 0 ? 100 : oracle_.Now().begun.at(last_);
  Status saved = Save(step);
  if (!saved.ok()) return "save, with the fault gone: " + saved.ToString();
  if (errors_ > 0) return "retention failed, with the fault gone";
  if (std::string wrong = CheckListed(true); !wrong.empty()) return "then listed: " + wrong;
  const Status closed = manager()->Close();
  if (!closed.ok()) return "close, with the fault gone: " + closed.ToString();

  Promise promise = oracle_.Now();
  for (const int serial : failed_) promise.required.erase(serial);
  const Image image = machine_.Snapshot();
  for (const Ending ending : {Ending::kForget, Ending::kKill}) {
    Machine again(image, ending, 0);
    RecoveryOptions options;
    options.foreign = true;
    options.save_again = false;
    options.no_garbage = ending == Ending::kKill;
    const std::string broken = CheckRecovery(&again, ground_.job, promise, options);
    if (!broken.empty()) return std::string(EndingName(ending)) + ": " + broken;
    if (machine_.kind() == Machine::Kind::kBucket) break;
  }
  return "";
}

class FailureSweep : public testing::TestWithParam<Machine::Kind> {
 protected:
  static constexpr int kMaxFailures = 8;

  FailureSweep() {
    SetLogSink([](LogLevel, std::string_view) {});
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
  }
  ~FailureSweep() override { SetLogSink(nullptr); }

  static std::vector<FaultKind> Faults() {
    return GetParam() == Machine::Kind::kDisk ? DiskFaults() : BucketFaults();
  }

  /// `prepare` runs without faults, `run` with them.
  void Sweep(const std::function<void(Trial*)>& prepare, const std::function<void(Trial*)>& run) {
    const Ground ground = MakeGround(GetParam());
    Watchdog watchdog;
    int broken_trials = 0;
    for (const FaultKind& kind : Faults()) {
      for (const bool from_then_on : {false, true}) {
        std::uint64_t hits = 0;
        std::uint64_t at = 0;
        for (bool reached = true; reached; ++at) {
          const std::string what = kind.name +
                                   (from_then_on ? " from operation " : " at operation ") +
                                   std::to_string(at);
          watchdog.Now(what);
          Trial trial(ground);
          prepare(&trial);
          trial.process().Arm(kind, at, from_then_on);
          run(&trial);
          reached = trial.process().Reached(kind, at);
          if (trial.process().failures() > 0) ++hits;
          const std::string broken = trial.Finish();
          if (broken.empty()) continue;
          ADD_FAILURE() << what << ": " << broken;
          if (++broken_trials >= kMaxFailures) return;
        }
        std::printf("%-30s %-14s %5zu trials, %5zu hit\n", kind.name.c_str(),
                    from_then_on ? "from then on" : "once", static_cast<std::size_t>(at),
                    static_cast<std::size_t>(hits));
      }
    }
  }
};

void OpenAndWarmUp(Trial* trial) {
  ASSERT_TRUE(trial->Open().ok());
  ASSERT_TRUE(trial->Save(50).ok());  // fills the pool
}

TEST_P(FailureSweep, OfASaveWithRetentionAndRecycling) {
  Sweep(OpenAndWarmUp, [](Trial* trial) { trial->Save(60).IgnoreError("counted"); });
}

TEST_P(FailureSweep, OfAnOpening) {
  Sweep([](Trial*) {}, [](Trial* trial) { trial->Open().IgnoreError("counted"); });
}

TEST_P(FailureSweep, OfARestore) {
  Sweep(OpenAndWarmUp, [this](Trial* trial) {
    auto restored = trial->manager()->Restore({.into = {}, .allocate = true});
    if (restored.ok()) {
      // A read that failed may make the restore fall back; never to anything but a whole state.
      EXPECT_TRUE(restored->has_value()) << "acknowledged checkpoints, and nothing was restored";
      if (!restored->has_value()) return;
      const Job job(1, Model(), true);
      const int serial = Job::SerialOf((*restored)->counters);
      EXPECT_EQ(job.Compare(**restored, serial, 0), "");
      if ((*restored)->fallbacks.empty()) {
        EXPECT_EQ(serial, trial->oracle().Now().acknowledged.back());
      }
    }
    trial->process().Disarm();
    restored = trial->manager()->Restore({.into = {}, .allocate = true});
    EXPECT_TRUE(restored.ok() && restored->has_value()) << restored.status().ToString();
  });
}

TEST_P(FailureSweep, OfPinsScoresAndDeletions) {
  Sweep(OpenAndWarmUp, [](Trial* trial) {
    auto infos = trial->manager()->List();
    if (!infos.ok() || infos->empty()) return;
    const CheckpointInfo& first = infos->front();
    const CheckpointInfo& last = infos->back();
    Oracle& oracle = trial->oracle();
    const int first_serial = Job::SerialOf(first.counters);
    if (trial->Note(trial->manager()->Pin(first.id)).ok()) oracle.Pinned(first_serial, true);
    oracle.Pinning(first_serial);
    trial->Note(trial->manager()->Unpin(first.id)).IgnoreError("counted");
    if (trial->Note(trial->manager()->AddMetrics(first.id, Value::Object{{"score", 0.25}})).ok()) {
      oracle.Scored(first_serial, 0.25);
    }
    const int last_serial = Job::SerialOf(last.counters);
    oracle.Deleting(last_serial);
    trial->DeletesByHand();
    if (trial->Note(trial->manager()->Delete(last.id)).ok()) oracle.Deleted(last_serial);
  });
}

INSTANTIATE_TEST_SUITE_P(Machines, FailureSweep,
                         testing::Values(Machine::Kind::kDisk, Machine::Kind::kBucket),
                         [](const auto& param) {
                           return param.param == Machine::Kind::kDisk ? "Disk" : "Bucket";
                         });

}  // namespace
}  // namespace cairn::crash
