// The n-th failure sweep: the 1st, 2nd, … operation of a save, a removal, an opening or a restore
// fails, once or from then on, until it passes. The error surfaces, nothing that was acknowledged
// is lost, and as soon as the fault is gone the next save works.

#include <gtest/gtest.h>
#include <sys/prctl.h>

#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/status_macros.h"
#include "storage/memory/seeded_random.h"
#include "tests/crash/faulty_process.h"
#include "tests/crash/recovery.h"
#include "tests/crash/torture.h"
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

ManagerOptions SweepOptions() {
  ManagerOptions options;
  options.retention.keep_last = kKeepLast;
  return options;
}

/// The job of a sweep, and a repository that holds three saves of it.
struct Ground {
  Job job;
  Image image;
  Promise promise;
};

Ground MakeGround(Machine::Kind kind) {
  Ground ground;
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

/// One run: a fresh copy of the ground, a process on it, and what it was told.
class Trial {
 public:
  explicit Trial(const Ground& ground)
      : ground_(ground),
        machine_(ground.image, Ending::kKeep, 0),
        oracle_(kKeepLast),
        ids_(4711),
        process_(&machine_, &ids_, Clock::System()) {
    oracle_.Resume(ground.promise);
  }

  Process& process() { return process_; }
  /// From now on fewer checkpoints may be there than retention keeps.
  void DeletesByHand() { deletes_by_hand_ = true; }
  Oracle& oracle() { return oracle_; }
  CheckpointManager* manager() { return process_.manager(); }

  Status Open() { return Note(process_.Open(SweepOptions())); }
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
    const Status opened = process_.Open(SweepOptions());
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
  for (const Ending ending : {Ending::kKill, Ending::kForget}) {
    Machine again(image, ending, 0);
    RecoveryOptions options;
    options.foreign = true;
    options.save_again = false;
    options.no_garbage = ending == Ending::kKill;
    const std::string broken = CheckRecovery(&again, ground_.job, promise, options);
    if (!broken.empty()) return std::string(EndingName(ending)) + ": " + broken;
    if (machine_.kind() != Machine::Kind::kDisk) break;  // they know one kind of end
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

  /// A real directory takes its time for real syncs: there every so many operations fail in turn.
  static std::uint64_t Stride() { return GetParam() == Machine::Kind::kDirectory ? 29 : 1; }

  /// `prepare` runs without faults, `run` with them.
  void Sweep(const std::function<void(Trial*)>& prepare, const std::function<void(Trial*)>& run) {
    const Ground ground = MakeGround(GetParam());
    Watchdog watchdog;
    int broken_trials = 0;
    std::uint64_t first = 0;
    for (const FaultKind& kind : Faults(GetParam())) {
      for (const bool from_then_on : {false, true}) {
        std::uint64_t hits = 0;
        std::uint64_t trials = 0;
        first = (first + 3) % Stride();  // so that all kinds together hit all operations
        for (std::uint64_t at = first, reached = 1; reached != 0; at += Stride(), ++trials) {
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
                    from_then_on ? "from then on" : "once", static_cast<std::size_t>(trials),
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
  Sweep(OpenAndWarmUp, [](Trial* trial) {
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

/// What a job does between two faults: a few calls, drawn.
void WorkForAWhile(Trial* trial, SeededRandom* random) {
  const std::uint64_t calls = 2 + random->Below(4);
  for (std::uint64_t i = 0; i < calls; ++i) {
    if (trial->manager() == nullptr && !trial->Open().ok()) continue;
    switch (random->Below(4)) {
      case 0: {
        const auto restored = trial->manager()->Restore({.into = {}, .allocate = true});
        if (!restored.ok() || !restored->has_value()) break;
        const int serial = Job::SerialOf((*restored)->counters);
        EXPECT_EQ(Job(1, Model(), true).Compare(**restored, serial, 0), "");
        break;
      }
      case 1:
        trial->Open().IgnoreError("counted");
        break;
      default:
        trial->Save(100 + static_cast<std::int64_t>(i)).IgnoreError("counted");
    }
  }
}

// One job a round, with one fault drawn for it, on a machine of each kind in turn.
TEST(RandomFailures, NothingAcknowledgedIsLostWhateverFailsWhenever) {
  SetLogSink([](LogLevel, std::string_view) {});
  prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
  const std::vector<Machine::Kind> kinds = {Machine::Kind::kDisk, Machine::Kind::kDirectory,
                                            Machine::Kind::kBucket, Machine::Kind::kShelves};
  std::vector<Ground> grounds;
  for (const Machine::Kind kind : kinds) grounds.push_back(MakeGround(kind));
  Watchdog watchdog;
  Torture torture("failures", 30);
  torture.Run([&](std::uint64_t seed) {
    const std::size_t at_kind = seed % kinds.size();
    SeededRandom random(seed);
    const std::vector<FaultKind> faults = Faults(kinds[at_kind]);
    const FaultKind& fault = faults[random.Below(faults.size())];
    const std::uint64_t at = random.Below(fault.only ? 60 : 600);
    const bool from_then_on = random.Coin();
    const std::string what =
        std::string(KindName(kinds[at_kind])) + ", seed " + std::to_string(seed) + ", " +
        fault.name + (from_then_on ? " from operation " : " at operation ") + std::to_string(at);
    watchdog.Now(what);
    Trial trial(grounds[at_kind]);
    EXPECT_TRUE(trial.Open().ok()) << what;
    trial.process().Arm(fault, at, from_then_on);
    WorkForAWhile(&trial, &random);
    torture.Count("faults that hit", trial.process().failures() > 0 ? 1 : 0);
    const std::string broken = trial.Finish();
    if (!broken.empty()) ADD_FAILURE() << what << ": " << broken;
    return !testing::Test::HasFailure();
  });
  SetLogSink(nullptr);
}

INSTANTIATE_TEST_SUITE_P(Machines, FailureSweep,
                         testing::Values(Machine::Kind::kDisk, Machine::Kind::kDirectory,
                                         Machine::Kind::kBucket, Machine::Kind::kShelves),
                         [](const auto& param) { return std::string(KindName(param.param)); });

}  // namespace
}  // namespace cairn::crash
