// The n-th failure sweep with several ranks that meet through the store: the 1st, 2nd, … operation
// of one of them fails, while all open the repository and save. Nobody waits past the deadline, the
// errors of the others name the rank that failed, nothing that was acknowledged is lost, and when
// the fault is gone the job starts again and saves.

#include <gtest/gtest.h>
#include <sys/prctl.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/log.h"
#include "base/status_macros.h"
#include "tests/crash/faulty_process.h"
#include "tests/crash/recovery.h"
#include "tests/crash/torture.h"
#include "tests/crash/virtual_time.h"

namespace cairn::crash {
namespace {

constexpr int kRanks = 3;
constexpr std::chrono::seconds kJoinDeadline{2};
constexpr std::chrono::seconds kDeadline{3};
// A join, the save's own deadline, and the grace that lets the committer's word come first; twice,
// since a rank may fail at the very end of the one and then be waited for in the other.
constexpr std::chrono::seconds kPatience{2 * (2 + 3 + 3)};

Job TheJob() {
  using Kind = Variable::Kind;
  return Job(1,
             {
                 {.name = "weights", .kind = Kind::kSharded, .rows = 45, .columns = 70},
                 {.name = "bias", .kind = Kind::kReplicated, .rows = 1, .columns = 70},
                 {.name = "rng", .kind = Kind::kOwn, .rows = 1, .columns = 16},
             },
             /*user_files=*/false);
}

std::string RankName(int rank) { return "rank_" + std::to_string(rank); }

struct Ground {
  Image image;
  Promise promise;
};

/// All ranks of a job on one machine, and what they were told.
class Ranks {
 public:
  Ranks(std::unique_ptr<Machine> machine, const Promise& promise)
      : machine_(std::move(machine)),
        job_(TheJob()),
        oracle_(std::nullopt),
        ids_(4711 + promise.begun.size()) {
    oracle_.Resume(promise);
    for (int rank = 0; rank < kRanks; ++rank) {
      processes_.push_back(std::make_unique<Process>(machine_.get(), &ids_, &time_));
    }
  }

  Process& process(int rank) { return *processes_[static_cast<std::size_t>(rank)]; }

  /// Every rank opens and saves once, each in a thread of its own.
  std::vector<Status> Run();
  /// How long that took, in the ranks' own time.
  Clock::Duration elapsed() { return time_.Now(); }

  Ground TakeGround() { return {machine_->Snapshot(), oracle_.Now()}; }
  /// "" when a restart after the end of the machine finds all that was promised.
  std::string Check();

 private:
  Status RunOne(int rank, int serial, std::int64_t step);

  const std::unique_ptr<Machine> machine_;
  const Job job_;
  Oracle oracle_;
  SeededIds ids_;
  VirtualTime time_;
  std::vector<std::unique_ptr<Process>> processes_;
};

Status Ranks::RunOne(int rank, int serial, std::int64_t step) {
  ManagerOptions options;
  options.rank = rank;
  options.world_size = kRanks;
  options.deadline = kDeadline;
  options.join_deadline = kJoinDeadline;
  RETURN_IF_ERROR(process(rank).Open(options));
  PreparedSave save = job_.Prepare(serial, step, rank, kRanks);
  CheckpointManager* manager = process(rank).manager();
  const Status saved = [&]() -> Status {
    ASSIGN_OR_RETURN(const SaveHandle handle, manager->Save(std::move(save.request)));
    return handle.Wait().status();
  }();
  // One rank's word is enough: it may have told its trainer.
  if (saved.ok()) oracle_.Acknowledge(serial);
  // Also after a failure: the manager may still be telling the others, and sleeps meanwhile.
  manager->WaitAll().IgnoreError("the save's own status is what counts here");
  return saved;
}

std::vector<Status> Ranks::Run() {
  std::vector<Status> statuses(kRanks);
  const std::int64_t step = static_cast<std::int64_t>(oracle_.Now().begun.size()) + 1;
  const int serial = oracle_.Begin(step);
  for (int rank = 0; rank < kRanks; ++rank) time_.Enter();
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        statuses[static_cast<std::size_t>(rank)] = RunOne(rank, serial, step);
        time_.Leave();
      });
    }
  }
  // As the processes of a job that ended: without a farewell.
  for (const auto& process : processes_) process->Close();
  return statuses;
}

std::string Ranks::Check() {
  const Image image = machine_->Snapshot();
  for (const Ending ending : {Ending::kKill, Ending::kForget}) {
    Machine again(image, ending, 0);
    RecoveryOptions options;
    options.save_again = false;
    options.world_size = kRanks;
    const std::string broken = CheckRecovery(&again, job_, oracle_.Now(), options);
    if (!broken.empty()) return std::string(EndingName(ending)) + ": " + broken;
    if (machine_->kind() != Machine::Kind::kDisk) break;
  }
  return "";
}

Ground MakeGround(Machine::Kind kind) {
  Ranks ranks(std::make_unique<Machine>(kind), {});
  for (const Status& status : ranks.Run()) EXPECT_TRUE(status.ok()) << status.ToString();
  return ranks.TakeGround();
}

/// One trial; "" or what is wrong.
std::string Try(const Ground& ground, int victim, const FaultKind& kind, std::uint64_t at,
                bool from_then_on, bool* reached, bool* hit) {
  Ranks ranks(std::make_unique<Machine>(ground.image, Ending::kKeep, 0), ground.promise);
  ranks.process(victim).Arm(kind, at, from_then_on);
  const std::vector<Status> statuses = ranks.Run();
  *reached = ranks.process(victim).Reached(kind, at);
  *hit = ranks.process(victim).failures() > 0;
  ranks.process(victim).Disarm();
  if (ranks.elapsed() > kPatience) {
    return "it took " + std::to_string(std::chrono::duration<double>(ranks.elapsed()).count()) +
           " s of the ranks' time";
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    const Status& status = statuses[static_cast<std::size_t>(rank)];
    if (status.ok()) continue;
    if (!*hit) return RankName(rank) + " fails without a fault: " + status.ToString();
    if (rank == victim) continue;
    if (status.message().find(RankName(victim)) == std::string_view::npos) {
      return RankName(rank) + " does not say whose fault it is: " + status.ToString();
    }
  }
  if (std::string broken = ranks.Check(); !broken.empty()) return broken;
  for (const Status& status : ranks.Run()) {
    if (!status.ok()) return "started again, with the fault gone: " + status.ToString();
  }
  return ranks.Check();
}

struct Param {
  Machine::Kind kind;
  int victim;
};

class RankFailureSweep : public testing::TestWithParam<Param> {
 protected:
  RankFailureSweep() {
    SetLogSink([](LogLevel, std::string_view) {});
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
  }
  ~RankFailureSweep() override { SetLogSink(nullptr); }
};

TEST_P(RankFailureSweep, NobodyHangsAndTheErrorNamesTheRank) {
  const auto [machine, victim] = GetParam();
  const Ground ground = MakeGround(machine);
  Watchdog watchdog;
  int broken_trials = 0;
  std::uint64_t stride = 1;  // the first kind fails at every operation, the others take turns
  std::uint64_t first = 0;
  for (const FaultKind& kind : Faults(machine)) {
    for (const bool from_then_on : {false, true}) {
      std::size_t hits = 0;
      std::size_t trials = 0;
      std::uint64_t at = first;
      for (bool reached = true; reached; at += stride, ++trials) {
        const std::string what = kind.name +
                                 (from_then_on ? " from operation " : " at operation ") +
                                 std::to_string(at) + " of " + RankName(victim);
        watchdog.Now(what);
        bool hit = false;
        const std::string broken = Try(ground, victim, kind, at, from_then_on, &reached, &hit);
        if (hit) ++hits;
        if (broken.empty()) continue;
        ADD_FAILURE() << what << ": " << broken;
        if (++broken_trials >= 8) return;
      }
      std::printf("%-30s %-14s %5zu trials, %5zu hit\n", kind.name.c_str(),
                  from_then_on ? "from then on" : "once", trials, hits);
      first = stride == 1 ? 0 : (first + 1) % stride;
    }
    if (!Torture::Asked()) stride = 3;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Machines, RankFailureSweep,
    testing::Values(Param{Machine::Kind::kDisk, 0}, Param{Machine::Kind::kDisk, 1},
                    Param{Machine::Kind::kBucket, 0}, Param{Machine::Kind::kBucket, 1}),
    [](const auto& param) {
      return std::string(KindName(param.param.kind)) + "Rank" + std::to_string(param.param.victim);
    });

}  // namespace
}  // namespace cairn::crash
