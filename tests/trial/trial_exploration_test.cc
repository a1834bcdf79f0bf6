// The whole engine, killed between any two durable events, with requests that are sent twice, late
// and out of order, as clients do that lost an answer. What was acknowledged must be there once,
// and the trial must come to the end that an undisturbed one comes to. CAIRN_TORTURE_SECONDS makes
// it go on with new seeds for so long.
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/crash/torture.h"
#include "trial/test_engine.h"
#include "trial/trial_engine.h"

namespace cairn {
namespace {

using std::chrono::milliseconds;
using RunKey = TrialEngine::RunKey;

/// Takes events up to a number and then none: the rest of a group is lost with the machine.
class CrashingLog final : public EventLog {
 public:
  Status Append(std::span<const Event> events) override {
    MutexLock hold(&mu_);
    for (const Event& event : events) {
      if (event.seq <= events_.size()) continue;
      if (events_.size() >= limit_) return UnavailableError("the machine is down");
      events_.push_back(event);
    }
    return Status::Ok();
  }
  Status Replay(std::uint64_t from, const Visitor& visit) override {
    std::vector<Event> all;
    {
      MutexLock hold(&mu_);
      all = events_;
    }
    for (const Event& event : all) {
      if (event.seq < from) continue;
      if (const Status seen = visit(event); !seen.ok()) return seen;
    }
    return Status::Ok();
  }
  void SetLimit(std::uint64_t limit) {
    MutexLock hold(&mu_);
    limit_ = limit;
  }
  std::uint64_t size() {
    MutexLock hold(&mu_);
    return events_.size();
  }

 private:
  Mutex mu_;
  std::uint64_t limit_ GUARDED_BY(mu_) = std::numeric_limits<std::uint64_t>::max();
  std::vector<Event> events_ GUARDED_BY(mu_);
};

/// One trial from its creation to its end: a run that fails, one that is paused, one that
/// completes.
class World {
 public:
  World(std::uint64_t first_crash, std::uint64_t seed) : random_(seed) {
    log_.SetLimit(first_crash);
    Open();
  }
  ~World() { Close(); }

  void Live() {
    Ask([&] {
      const Status made =
          engine_
              ->Create({.experiment = "e", .argv = {"train"}, .storage = "/s", .max_restarts = 5},
                       "1")
              .status();
      return made.Is(Code::kAlreadyExists) ? Status::Ok() : made;
    });
    RunKey run = NextRun();
    Train(run, 0, 2);
    End(run, {.code = 1});
    run = NextRun();
    Train(run, 2, 4);
    Ask([&] { return engine_->Pause("1"); });
    Ask([&] { return Told([&](auto done) { engine_->AcknowledgePreemption(run, done); }); });
    End(run, {.code = 0});
    Rest(TrialState::kPaused);
    Ask([&] { return engine_->Activate("1"); });
    run = NextRun();
    Train(run, 4, 5);
    End(run, {.code = 0});
    Rest(TrialState::kCompleted);
    Check();
  }
  std::uint64_t events() { return log_.size(); }
  int crashes() const { return crashes_; }

 private:
  using Request = std::function<Status()>;

  void Open() {
    engine_ = TrialEngine::Open({.log = &log_,
                                 .launcher = &launcher_,
                                 .repositories = &repositories_,
                                 .answer_timeout = milliseconds(10)})
                  .value();
    launcher_.listener = [this](const LaunchInfo& info) { engine_->OnLaunch(info); };
    ASSERT_TRUE(engine_->Start().ok());
  }
  void Close() {
    launcher_.listener = nullptr;
    engine_.reset();
  }
  /// The engine is killed and comes back; now and then it is killed again soon.
  void Crash() {
    ++crashes_;
    Close();
    log_.SetLimit(random_() % 3 == 0 ? log_.size() + 1 + random_() % 6
                                     : std::numeric_limits<std::uint64_t>::max());
    Open();
  }
  /// Sends until it is acknowledged, as a client does; then perhaps once more, and perhaps an old
  /// one.
  void Ask(const Request& request) {
    Status status;
    for (int tries = 0; tries < 50; ++tries) {
      status = request();
      ASSERT_LE(launcher_.running(), 1u) << "two live runs";
      if (!status.Is(Code::kUnavailable)) break;
      Crash();
    }
    ASSERT_TRUE(status.ok()) << status.ToString();
  }
  static Status Told(const std::function<void(TrialEngine::Done<Value>)>& call) {
    Status status;
    Call(call, &status);
    return status;
  }
  void AskOfRun(const Request& request) {
    Ask(request);
    sent_.push_back(request);
    if (random_() % 2 == 0) Ask(request);
    if (random_() % 2 == 0) Ask(sent_[random_() % sent_.size()]);
  }

  void Train(const RunKey& run, int from, int to) {
    sent_.clear();
    int sequence = 0;
    const auto report = [&](const char* group, int steps) {
      ++sequence;
      AskOfRun([this, run, group, steps, sequence] {
        return Told([&](auto done) {
          engine_->Report(run,
                          Value::Object{{"sequence", sequence},
                                        {"group", group},
                                        {"steps_completed", steps},
                                        {"metrics", Value::Object{{"x", steps}}}},
                          done);
        });
      });
      acknowledged_.insert({run.run, sequence});
    };
    AskOfRun([this, run] {
      return Told([&](auto done) { engine_->Ready(run, Value::Object{{"rank", 0}}, done); });
    });
    for (int step = from + 1; step <= to; ++step) {
      report("training", step * 10);
      const std::string id = "c" + std::to_string(step);
      AskOfRun([this, run, step, id] {
        return Told([&](auto done) {
          engine_->StartCheckpoint(
              run, Value::Object{{"registration", "r-" + id}, {"steps_completed", step * 10}},
              done);
        });
      });
      repositories_.Commit("/s/e/1", {.id = id, .steps = step * 10});
      AskOfRun([this, run, step, id] {
        return Told([&](auto done) {
          engine_->CompleteCheckpoint(
              run, "r-" + id,
              Value::Object{{"id", id}, {"steps_completed", step * 10}, {"generation", step}},
              done);
        });
      });
      report("validation", step * 10);
    }
  }

  /// The run that is started next: the launcher has a process of it.
  RunKey NextRun() {
    for (int i = 0; i < 5000; ++i) {
      const auto view = engine_->Get("1");
      if (!view.ok()) {
        Crash();
        continue;
      }
      const TrialCore& core = view->record.core;
      const auto info = launcher_.Get("1." + std::to_string(core.run));
      if (core.live && info.ok() && info->state == LaunchState::kRunning) return {"1", core.run};
      std::this_thread::sleep_for(milliseconds(1));
    }
    ADD_FAILURE() << "no run is started";
    return {"1", 0};
  }
  void End(const RunKey& run, LaunchExit exit) {
    launcher_.End("1." + std::to_string(run.run), std::move(exit));
    for (int i = 0; i < 5000; ++i) {
      const auto view = engine_->Get("1");
      if (!view.ok()) {
        Crash();
      } else if (view->record.core.run != run.run || !view->record.core.live) {
        return;
      } else {
        std::this_thread::sleep_for(milliseconds(1));
      }
    }
    ADD_FAILURE() << "the end of run " << run.run << " is not seen";
  }
  /// What is known for good. A machine may still go down with an event that came after the last
  /// one that was waited for.
  Result<TrialView> Known() {
    Result<TrialView> view = engine_->Get("1");
    for (int tries = 0; tries < 50 && view.status().Is(Code::kUnavailable); ++tries) {
      Crash();
      view = engine_->Get("1");
    }
    return view;
  }
  /// A machine that went down with the end of a run learns of it again from its launcher, in its
  /// own time.
  void Rest(TrialState state) {
    Result<TrialView> view = Known();
    for (int i = 0; i < 5000 && view.ok() && view->record.core.state != state; ++i) {
      std::this_thread::sleep_for(milliseconds(1));
      view = Known();
    }
    ASSERT_TRUE(view.ok()) << view.status().ToString();
    ASSERT_EQ(TrialStateName(view->record.core.state), TrialStateName(state));
  }

  void Check() {
    const auto view = Known();
    ASSERT_TRUE(view.ok()) << view.status().ToString();
    const TrialRecord& trial = view->record;
    std::map<std::pair<std::uint64_t, std::uint64_t>, int> reports;
    std::set<std::pair<std::string, std::int64_t>> curve;
    for (const MetricPoint& point : trial.reports) {
      ++reports[{point.run, point.sequence}];
      if (!point.archived) {
        EXPECT_TRUE(curve.emplace(point.group, point.steps).second) << "a point is there twice";
      }
    }
    for (const auto& key : acknowledged_) {
      EXPECT_EQ(reports[key], 1) << "report " << key.second << " of run " << key.first;
    }
    EXPECT_EQ(reports.size(), acknowledged_.size());
    EXPECT_EQ(curve.size(), 10u) << "5 steps, each with a validation";
    EXPECT_EQ(trial.checkpoints.size(), 5u);
    for (const CheckpointRecord& checkpoint : trial.checkpoints) {
      EXPECT_EQ(checkpoint.state, CheckpointState::kCompleted) << checkpoint.id;
      EXPECT_EQ(checkpoint.metrics.Find("x")->AsInt(), checkpoint.steps) << "its score";
    }
    EXPECT_EQ(trial.core.restarts, 0u) << "a pause in between begins anew";
    EXPECT_EQ(launcher_.running(), 0u);
  }

  std::mt19937_64 random_;
  CrashingLog log_;
  FakeLauncher launcher_;
  FakeRepositories repositories_;
  std::unique_ptr<TrialEngine> engine_;
  std::vector<Request> sent_;  // of the run that lives
  std::set<std::pair<std::uint64_t, std::uint64_t>> acknowledged_;
  int crashes_ = 0;
};

/// How many events a life has that nothing disturbs: what is sent twice differs with the seed.
std::uint64_t EventsOfALife(std::uint64_t seed) {
  World undisturbed(std::numeric_limits<std::uint64_t>::max(), seed);
  undisturbed.Live();
  return undisturbed.events();
}

TEST(TrialEngineExploration, KilledBetweenAnyTwoEventsNothingIsLostOrDoubled) {
  crash::Torture torture("trial_exploration", 2);
  torture.Run([&](std::uint64_t seed) {
    const std::uint64_t whole = EventsOfALife(seed);
    EXPECT_GT(whole, 30u);
    int crashes = 0;
    for (std::uint64_t at = 0; at <= whole; ++at) {
      SCOPED_TRACE(std::to_string(at) + " events, seed " + std::to_string(seed));
      World world(at, seed);
      world.Live();
      EXPECT_TRUE(world.crashes() > 0 || at == whole) << "nothing was killed";
      crashes += world.crashes();
      if (::testing::Test::HasFailure()) return false;
    }
    torture.Count("lives", whole + 1);
    torture.Count("crashes", static_cast<std::uint64_t>(crashes));
    return !::testing::Test::HasFailure();
  });
}

}  // namespace
}  // namespace cairn
