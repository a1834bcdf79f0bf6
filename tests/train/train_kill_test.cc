// Kills real trainings with SIGKILL, over and over, and lets the same command resume. Whatever is
// killed when, the losses of all steps and the state at the end are those of an undisturbed run,
// bit for bit. CAIRN_TORTURE_SECONDS makes it run that long at least (and kill 200 times at least);
// CAIRN_TORTURE_STATE keeps seeds and counts from run to run.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>

#include <bit>
#include <iostream>
#include <map>
#include <random>
#include <set>

#include "checkpoint/manager.h"
#include "tests/kill/harness.h"
#include "tests/train/job_model.h"

namespace cairn::train_job {
namespace {

constexpr std::int64_t kEpochs = 6;
constexpr int kKillsInTorture = 200;
constexpr int kMostRounds = 10;
constexpr int kLeftAloneEvery = 20;

/// Where a kill is aimed: at a trainer, in a protocol step ("*": at any moment).
struct Target {
  int trainer = 0;
  std::string step;
};

std::string Contents(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string((std::istreambuf_iterator<char>(in)), {});
}

/// One training in a directory of its own, with its processes started again and again.
class Job {
 public:
  Job(const std::filesystem::path& root, int trainers) : root_(root), trainers_(trainers) {
    std::filesystem::create_directories(root);
    for (int id = 0; id < trainers; ++id) {
      boards_.push_back(
          std::make_unique<kill::MappedBoard>(root / ("board_" + std::to_string(id))));
    }
  }

  /// Starts all trainers; `kill_args` (step, count, delay) are for the target's.
  void Start(const Target& target, const std::vector<std::string>& kill_args, bool seek,
             int step_us = 0) {
    int sockets[2] = {-1, -1};
    if (trainers_ == 2) {
      ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
    }
    pids_.clear();
    for (int id = 0; id < trainers_; ++id) {
      kill::MappedBoard& board = *boards_[static_cast<std::size_t>(id)];
      board->SetStep("start");
      board->resumed = -1;
      board->bereft = false;
      std::vector<std::string> args = {(root_ / "repository").string(),
                                       board.path().string(),
                                       Losses(id).string(),
                                       Result(id).string(),
                                       std::to_string(kEpochs),
                                       seek ? "1" : "0"};
      const std::vector<std::string> never = {"-", "0", "0"};
      const auto& kill = id == target.trainer ? kill_args : never;
      args.insert(args.end(), kill.begin(), kill.end());
      args.insert(args.end(), {std::to_string(id), std::to_string(trainers_),
                               std::to_string(sockets[id]), std::to_string(step_us)});
      pids_.push_back(kill::StartProcess("train_job", args, sockets[id]));
    }
    for (const int fd : sockets) {
      if (fd >= 0) close(fd);
    }
  }

  pid_t pid(int id) const { return pids_[static_cast<std::size_t>(id)]; }
  kill::MappedBoard& board(int id) { return *boards_[static_cast<std::size_t>(id)]; }
  std::filesystem::path Losses(int id) const { return root_ / ("losses_" + std::to_string(id)); }
  std::filesystem::path Result(int id) const { return root_ / ("result_" + std::to_string(id)); }

  /// The step that the next start must resume from; 0 when there is no checkpoint.
  std::int64_t LatestStep() const {
    auto env = EnvironmentAt((root_ / "repository").string(), {.create = false});
    if (!env.ok()) return 0;
    auto reader = OpenManager({.read_only = true}, *env);
    if (!reader.ok()) return 0;  // killed before cairn.json
    auto latest = (*reader)->Latest();
    EXPECT_TRUE(latest.ok()) << latest.status().ToString();
    return latest.ok() && *latest ? (*latest)->step : 0;
  }

 private:
  const std::filesystem::path root_;
  const int trainers_;
  std::vector<std::unique_ptr<kill::MappedBoard>> boards_;
  std::vector<pid_t> pids_;
};

/// What an undisturbed run gives.
struct Reference {
  std::vector<std::vector<std::uint64_t>> losses;  // of each trainer: the bits, by step
  std::vector<std::string> results;
};

std::vector<LossRecord> ReadLosses(const std::filesystem::path& path) {
  const std::string bytes = Contents(path);
  EXPECT_EQ(bytes.size() % sizeof(LossRecord), 0u);
  std::vector<LossRecord> records(bytes.size() / sizeof(LossRecord));
  std::memcpy(records.data(), bytes.data(), records.size() * sizeof(LossRecord));
  return records;
}

void RunToTheEnd(Job* job, int trainers) {
  job->Start({}, {"-", "0", "0"}, true);
  for (int id = 0; id < trainers; ++id) {
    int exit_code = 0;
    ASSERT_FALSE(kill::WaitKilled(job->pid(id), &exit_code));
    ASSERT_EQ(exit_code, 0) << "trainer " << id;
  }
}

void MakeReference(const std::filesystem::path& root, int trainers, Reference* reference) {
  Job job(root, trainers);
  ASSERT_NO_FATAL_FAILURE(RunToTheEnd(&job, trainers));
  for (int id = 0; id < trainers; ++id) {
    std::vector<std::uint64_t> losses;
    for (const LossRecord& record : ReadLosses(job.Losses(id))) {
      ASSERT_EQ(record.global_step, static_cast<std::int64_t>(losses.size()));
      losses.push_back(std::bit_cast<std::uint64_t>(record.loss));
    }
    ASSERT_EQ(losses.size(), static_cast<std::size_t>(kEpochs * 20 / trainers));
    ASSERT_GT(std::set(losses.begin(), losses.end()).size(), losses.size() / 2);
    reference->losses.push_back(std::move(losses));
    reference->results.push_back(Contents(job.Result(id)));
    ASSERT_FALSE(reference->results.back().empty());
  }
}

/// A completed training: every step's loss, whenever and however often it was made, and the end.
void Compare(const Job& job, int trainers, const Reference& reference) {
  for (int id = 0; id < trainers; ++id) {
    const auto& expected = reference.losses[static_cast<std::size_t>(id)];
    std::set<std::int64_t> seen;
    for (const LossRecord& record : ReadLosses(job.Losses(id))) {
      ASSERT_LT(record.global_step, static_cast<std::int64_t>(expected.size()));
      ASSERT_EQ(std::bit_cast<std::uint64_t>(record.loss),
                expected[static_cast<std::size_t>(record.global_step)])
          << "trainer " << id << ": another loss at step " << record.global_step;
      seen.insert(record.global_step);
    }
    ASSERT_EQ(seen.size(), expected.size()) << "trainer " << id << " left steps out";
    ASSERT_TRUE(Contents(job.Result(id)) == reference.results[static_cast<std::size_t>(id)])
        << "trainer " << id << ": another state at the end";
  }
}

/// Kills trainings at the targets, in turn, until each was hit.
class Killer {
 public:
  Killer(int trainers, std::vector<Target> targets, std::uint64_t seed)
      : trainers_(trainers), targets_(std::move(targets)), random_(seed) {}

  void Run(int least_kills, std::chrono::seconds time) {
    ASSERT_NO_FATAL_FAILURE(MakeReference(temp_.path() / "reference", trainers_, &reference_));
    const auto deadline = std::chrono::steady_clock::now() + time;
    NewJob();
    // A kill inside a step may strike later than it was aimed: what was not hit is aimed at again.
    const int most_kills = std::max(least_kills, kMostRounds * static_cast<int>(targets_.size()));
    while (kills_ < least_kills || std::chrono::steady_clock::now() < deadline ||
           (NextMissed() != nullptr && kills_ < most_kills)) {
      const auto round = static_cast<std::size_t>(kills_);
      const Target* missed = round < targets_.size() ? nullptr : NextMissed();
      ASSERT_NO_FATAL_FAILURE(
          StartAndKill(missed != nullptr ? *missed : targets_[round % targets_.size()]));
    }
    ASSERT_NO_FATAL_FAILURE(RunToTheEnd(job_.get(), trainers_));
    ASSERT_NO_FATAL_FAILURE(Compare(*job_, trainers_, reference_));
    ++completed_;
  }

  void Print() const {
    std::cout << kills_ << " kills of " << trainers_ << " trainer(s), " << resumes_ << " resumes, "
              << completed_
              << " trainings completed, all equal; the protocol step each kill hit:\n";
    for (const auto& [where, count] : hits_) {
      std::cout << "  " << count << "\ttrainer_" << where.first << " " << where.second << "\n";
    }
  }
  int kills() const { return kills_; }
  /// A target that no kill has hit yet; null when all were.
  const Target* NextMissed() const {
    for (const Target& target : targets_) {
      if (target.step != "*" && !hits_.contains({target.trainer, target.step})) return &target;
    }
    return nullptr;
  }

 private:
  void NewJob() {
    job_ = std::make_unique<Job>(temp_.path() / ("job_" + std::to_string(jobs_++)), trainers_);
  }

  void StartAndKill(const Target& target) {
    const std::int64_t latest = job_->LatestStep();
    long count = 1;
    long delay = 0;
    if (target.step == "*") {
      delay = static_cast<long>(random_() % 60'000);
    } else {
      if (!target.step.starts_with("open")) count += static_cast<long>(random_() % 4);
      // Half of the kills strike the very beginning of the step, the others somewhere inside it.
      if (random_() % 2 != 0) delay = static_cast<long>(random_() % 1000);
    }
    job_->Start(target, {target.step, std::to_string(count), std::to_string(delay)},
                random_() % 2 == 0);
    int exit_code = 0;
    const bool killed = kill::WaitKilled(job_->pid(target.trainer), &exit_code);
    if (killed && trainers_ == 2) job_->board(1 - target.trainer)->bereft = true;
    // Now and then the other one is left to find out that it is alone, which takes a deadline.
    if (killed && trainers_ == 2 && kills_ % kLeftAloneEvery != 0) {
      ::kill(job_->pid(1 - target.trainer), SIGKILL);
    }
    int other_code = 0;
    const bool other_killed =
        trainers_ == 2 && kill::WaitKilled(job_->pid(1 - target.trainer), &other_code);
    for (int id = 0; id < trainers_; ++id) {
      if (job_->board(id)->resumed < 0) continue;  // killed before it knew
      ASSERT_EQ(job_->board(id)->resumed, latest) << "trainer " << id << " resumed elsewhere";
      resumes_ += latest > 0 ? 1 : 0;
    }
    if (killed) {
      ++hits_[{target.trainer, job_->board(target.trainer)->step}];
      ++kills_;
      ASSERT_TRUE(trainers_ == 1 || other_killed || other_code == 3 || other_code == 0);
      return;
    }
    ASSERT_EQ(exit_code, 0) << "aimed at " << target.step;
    ASSERT_EQ(other_code, 0);
    ASSERT_NO_FATAL_FAILURE(Compare(*job_, trainers_, reference_));
    ++completed_;
    NewJob();
  }

  const int trainers_;
  const std::vector<Target> targets_;
  std::mt19937_64 random_;
  kill::TempDir temp_;
  Reference reference_;
  std::unique_ptr<Job> job_;
  int jobs_ = 0;
  int kills_ = 0;
  int resumes_ = 0;
  int completed_ = 0;
  std::map<std::pair<int, std::string>, int> hits_;
};

std::vector<Target> Targets(int trainer, const std::vector<std::string>& steps) {
  std::vector<Target> targets;
  for (const std::string& step : steps) targets.push_back({trainer, step});
  return targets;
}

void KillAndCompare(int trainers, const std::vector<Target>& targets) {
  kill::Record record = kill::Record::Load();
  Killer killer(trainers, targets, record.seed + static_cast<std::uint64_t>(trainers));
  const auto time = kill::TortureTime() / 2;  // the two tests share it
  const int kills = time.count() > 0 ? kKillsInTorture : static_cast<int>(targets.size());
  ASSERT_NO_FATAL_FAILURE(killer.Run(kills, time));
  killer.Print();
  record.cycles += killer.kills();
  record.Save();
  const Target* missed = killer.NextMissed();
  EXPECT_EQ(missed, nullptr) << "no kill hit trainer_" << missed->trainer << " " << missed->step;
}

TEST(TrainKillTest, OneTrainerEndsAsIfItHadNeverBeenKilled) {
  KillAndCompare(1, Targets(0, {"open: cairn.json",
                                "*",
                                "open: lock",
                                "open: fence",
                                "save: plan",
                                "open: seal",
                                "save: snapshot",
                                "open: sweep",
                                "save: claim",
                                "save: write",
                                "*",
                                "save: link",
                                "save: recycle",
                                "save: sync data",
                                "save: sync names",
                                "save: manifest",
                                "save: fence",
                                "acknowledge",
                                "retention",
                                "remove: note",
                                "remove: fence",
                                "remove: manifest",
                                "remove: pool",
                                "remove: files"}));
}

TEST(TrainKillTest, TwoTrainersEndAsIfTheyHadNeverBeenKilled) {
  std::vector<Target> targets = Targets(0, {"open: cairn.json", "*",
                                            "open: lock",       "save: plan",
                                            "open: fence",      "open: seal",
                                            "save: claim",      "open: start",
                                            "save: announce",   "open: sweep",
                                            "save: snapshot",   "save: write",
                                            "save: link",       "save: recycle",
                                            "save: sync data",  "save: sync names",
                                            "save: part",       "save: wait for parts",
                                            "save: manifest",   "save: fence",
                                            "acknowledge",      "retention",
                                            "remove: note",     "remove: fence",
                                            "remove: manifest", "remove: pool",
                                            "remove: files"});
  const std::vector<Target> others =
      Targets(1, {"open: join", "*", "save: wait for the announcement", "save: plan",
                  "save: snapshot", "save: write", "save: sync data", "save: sync names",
                  "save: part", "save: wait for the manifest", "save: fence", "acknowledge"});
  targets.insert(targets.end(), others.begin(), others.end());
  KillAndCompare(2, targets);
}

/// Waits until each trainer has made a step: from then on it handles SIGTERM.
void WaitForSteps(const Job& job, int trainers, std::size_t steps) {
  for (int id = 0; id < trainers; ++id) {
    while (Contents(job.Losses(id)).size() < steps * sizeof(LossRecord)) usleep(1000);
  }
}

TEST(TrainKillTest, TwoTrainersThatGetSigtermSaveTheSameStepAndGoOn) {
  kill::TempDir temp;
  Reference reference;
  ASSERT_NO_FATAL_FAILURE(MakeReference(temp.path() / "reference", 2, &reference));
  std::mt19937_64 random(5);
  int terminated = 0;
  for (int round = 0; round < 3; ++round) {
    Job job(temp.path() / ("job_" + std::to_string(round)), 2);
    // So long that the step which trainer 0 chooses, a second ahead, comes before the end.
    job.Start({}, {"-", "0", "0"}, true, /*step_us=*/40'000);
    WaitForSteps(job, 2, 1 + random() % 8);
    const int first = static_cast<int>(random() % 2);
    ::kill(job.pid(first), SIGTERM);
    usleep(static_cast<useconds_t>(random() % 100'000));  // as launchers do, one after the other
    ::kill(job.pid(1 - first), SIGTERM);
    int codes[2] = {0, 0};
    for (int id = 0; id < 2; ++id) ASSERT_FALSE(kill::WaitKilled(job.pid(id), &codes[id]));
    ASSERT_EQ(codes[0], codes[1]);
    ASSERT_TRUE(codes[0] == 0 || codes[0] == 4) << codes[0];
    terminated += codes[0] == 4 ? 1 : 0;
    for (int id = 0; id < 2; ++id) {
      EXPECT_EQ(job.LatestStep(), ReadLosses(job.Losses(id)).back().global_step + 1)
          << "trainer " << id << " lost a step";
    }
    ASSERT_NO_FATAL_FAILURE(RunToTheEnd(&job, 2));
    ASSERT_NO_FATAL_FAILURE(Compare(job, 2, reference));
  }
  EXPECT_GT(terminated, 0);
}

}  // namespace
}  // namespace cairn::train_job
