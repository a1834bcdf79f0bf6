// Drives examples/core_api through the trial engine, with real processes: paused after the third
// report, reactivated, continued as a new trial, resumed when it is finished, killed. The numbers
// are those of the tutorial.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "base/thread_annotations.h"
#include "launch/local_launcher.h"
#include "storage/local/local_store.h"
#include "trial/event_log.h"
#include "trial/repository_access.h"
#include "trial/trial_engine.h"
#include "trial/trial_service.h"

namespace cairn {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using namespace std::chrono_literals;  // NOLINT

using Points = std::vector<std::pair<std::int64_t, std::int64_t>>;

/// A server that can hold back what a run says when it has completed a checkpoint, so that a test
/// knows what the run knows.
class Gate {
 public:
  std::vector<HttpRoute> Around(std::vector<HttpRoute> routes) {
    for (HttpRoute& route : routes) {
      HttpHandler inner = route.handler;
      if (route.method == "GET" && route.pattern.ends_with("/preemption")) {
        route.handler = [this, inner](const ServerRequest& request, HttpReply reply) {
          NotePoll(std::string(request.Query("seen")));
          inner(request, std::move(reply));
        };
      }
      if (route.pattern.ends_with("/complete")) {
        route.handler = [this, inner](const ServerRequest& request, HttpReply reply) {
          if (!Hold(request, inner, reply)) inner(request, std::move(reply));
        };
      }
    }
    return routes;
  }

  /// Holds the `count`-th completion from now on.
  void HoldAt(int count) {
    MutexLock lock(&mu_);
    countdown_ = count;
  }
  void WaitHeld() {
    MutexLock lock(&mu_);
    while (held_ == nullptr) changed_.Wait(&mu_);
  }
  /// Waits until the run has asked again after an answer: it has seen what that said.
  void WaitSeen(const std::function<void()>& change) {
    std::string before;
    {
      MutexLock lock(&mu_);
      before = seen_;
    }
    change();
    MutexLock lock(&mu_);
    while (seen_ == before) changed_.Wait(&mu_);
  }
  void Release() {
    std::function<void()> held;
    {
      MutexLock lock(&mu_);
      held = std::exchange(held_, nullptr);
    }
    held();
  }
  /// The run is dead: nobody waits for the answer.
  void Drop() {
    MutexLock lock(&mu_);
    held_ = nullptr;
  }

 private:
  void NotePoll(std::string seen) {
    MutexLock lock(&mu_);
    seen_ = std::move(seen);
    changed_.NotifyAll();
  }

  bool Hold(const ServerRequest& request, const HttpHandler& inner, const HttpReply& reply) {
    MutexLock lock(&mu_);
    if (countdown_ == 0 || --countdown_ > 0) return false;
    held_ = [copy = request, body = std::string(request.body), inner, reply]() mutable {
      copy.body = body;
      inner(copy, reply);
    };
    changed_.NotifyAll();
    return true;
  }

  Mutex mu_;
  CondVar changed_;
  int countdown_ GUARDED_BY(mu_) = 0;
  std::string seen_ GUARDED_BY(mu_);
  std::function<void()> held_ GUARDED_BY(mu_);
};

struct Variant {
  std::string name;
  std::vector<std::string> command;      // of 2_checkpoints
  std::vector<std::string> distributed;  // of 4_distributed
  bool unix_socket = false;
};

void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.name; }

std::string Root() { return std::filesystem::current_path().string(); }

class TutorialTest : public ::testing::TestWithParam<Variant> {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "cairn-tutorial-XXXXXX").string();
    directory_ = mkdtemp(name.data());
    auto store = OpenLocalStore((directory_ / "engine").string());
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    store_ = std::move(*store);
    auto log = JournalEventLog::Open({.store = store_.get(), .prefix = "events"});
    ASSERT_TRUE(log.ok()) << log.status().ToString();
    log_ = std::move(*log);
    LocalLauncherOptions options;
    options.directory = (directory_ / "launches").string();
    options.slots = 2;
    options.listener = [this](const LaunchInfo& info) {
      TrialEngine* engine = listening_;
      if (engine != nullptr) engine->OnLaunch(info);
    };
    auto launcher = OpenLocalLauncher(std::move(options));
    ASSERT_TRUE(launcher.ok()) << launcher.status().ToString();
    launcher_ = std::move(*launcher);
    repositories_ = RepositoryAccess::Real();
    TrialEngineOptions engine;
    engine.log = log_.get();
    engine.launcher = launcher_.get();
    engine.repositories = repositories_.get();
    engine.heartbeat = 5s;
    engine.join_token = "join us";
    engine.join_storage = (directory_ / "storage").string();
    auto opened = TrialEngine::Open(std::move(engine));
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    engine_ = std::move(*opened);
    listening_ = engine_.get();
    HttpServerOptions http;
    http.threads = 2;
    if (GetParam().unix_socket) http.listen = "unix:" + (directory_ / "socket").string();
    auto server = HttpServer::Start(std::move(http), gate_.Around(TrialRoutes(engine_.get())));
    ASSERT_TRUE(server.ok()) << server.status().ToString();
    server_ = std::move(*server);
    engine_->SetUrl(server_->url());
    ASSERT_TRUE(engine_->Start().ok());
  }

  void TearDown() override {
    if (server_ != nullptr) server_->Stop();
    if (launcher_ != nullptr) {
      EXPECT_TRUE(launcher_->Close(Launcher::CloseMode::kStopAll, 0s).ok());
    }
    listening_ = nullptr;
    engine_.reset();
    server_.reset();
    if (HasFailure()) ShowLogs();
    std::filesystem::remove_all(directory_);
  }

  void ShowLogs() {
    for (const auto& entry : std::filesystem::directory_iterator(directory_ / "launches")) {
      const std::string log = (entry.path() / "log").string();
      if (std::filesystem::exists(log)) std::system(("tail -n 30 '" + log + "' >&2").c_str());
    }
  }

  TrialConfig Config(std::vector<std::string> command) {
    TrialConfig config;
    config.experiment = "tutorial";
    config.argv = std::move(command);
    config.storage = (directory_ / "storage").string();
    config.env = {{"PYTHONPATH", Root() + "/python"}};
    config.preemption_timeout = 60s;
    return config;
  }
  std::string Create(TrialConfig config) {
    auto id = engine_->Create(std::move(config));
    EXPECT_TRUE(id.ok()) << id.status().ToString();
    return id.ok() ? *id : "";
  }
  TrialView Rest(const std::string& trial) {
    auto view = engine_->WaitForRest(trial, 120s);
    EXPECT_TRUE(view.ok()) << view.status().ToString();
    return view.ok() ? *view : TrialView{};
  }
  /// (steps, x) of the training reports that count.
  static Points Reports(const TrialView& view) {
    Points points;
    for (const MetricPoint& point : view.record.reports) {
      if (point.archived || point.group != "training") continue;
      points.emplace_back(point.steps, point.values.Find("x")->AsInt());
    }
    return points;
  }
  static Points Steps(std::int64_t from, std::int64_t above) {
    Points points;
    for (std::int64_t steps = from; steps <= 100; steps += 10) {
      points.emplace_back(steps, steps + above);
    }
    return points;
  }

  std::filesystem::path directory_;
  Gate gate_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<JournalEventLog> log_;
  std::unique_ptr<RepositoryAccess> repositories_;
  std::atomic<TrialEngine*> listening_ = nullptr;
  std::unique_ptr<Launcher> launcher_;
  std::unique_ptr<TrialEngine> engine_;
  std::unique_ptr<HttpServer> server_;
};

TEST_P(TutorialTest, PausedReactivatedContinuedAndResumed) {
  gate_.HoldAt(3);
  const std::string trial = Create(Config(GetParam().command));
  gate_.WaitHeld();
  gate_.WaitSeen([&] { ASSERT_TRUE(engine_->Pause(trial).ok()); });
  const auto pausing = engine_->Get(trial);
  ASSERT_TRUE(pausing.ok());
  EXPECT_EQ(pausing->state, TrialState::kPausing);
  gate_.Release();
  TrialView view = Rest(trial);
  EXPECT_EQ(view.state, TrialState::kPaused) << view.record.message;
  EXPECT_EQ(view.resumes_from_step, 30);
  EXPECT_EQ(Reports(view), (Points{{10, 10}, {20, 20}, {30, 30}}));

  ASSERT_TRUE(engine_->Activate(trial).ok());
  view = Rest(trial);
  EXPECT_EQ(view.state, TrialState::kCompleted) << view.record.message;
  EXPECT_EQ(Reports(view), Steps(10, 0));
  EXPECT_EQ(view.record.core.run, 2u);
  EXPECT_EQ(view.record.resume_mode, "resume");

  const auto continued = engine_->ContinueAsNew(trial, "", Value::Object{});
  ASSERT_TRUE(continued.ok()) << continued.status().ToString();
  EXPECT_NE(*continued, trial);
  view = Rest(*continued);
  EXPECT_EQ(view.state, TrialState::kCompleted) << view.record.message;
  EXPECT_EQ(view.record.resume_mode, "continue");
  EXPECT_EQ(Reports(view), Steps(10, 100));
  EXPECT_EQ(Reports(view).front(), (std::pair<std::int64_t, std::int64_t>(10, 110)));
  EXPECT_EQ(Reports(view).back(), (std::pair<std::int64_t, std::int64_t>(100, 200)));

  ASSERT_TRUE(engine_->Activate(trial).ok());
  view = Rest(trial);
  EXPECT_EQ(view.state, TrialState::kCompleted) << view.record.message;
  EXPECT_EQ(Reports(view), Steps(10, 0)) << "a finished trial has nothing to do";
}

TEST_P(TutorialTest, AKilledProcessGoesOnFromItsLastCheckpoint) {
  gate_.HoldAt(5);
  const std::string trial = Create(Config(GetParam().command));
  gate_.WaitHeld();  // the fifth checkpoint is committed, and the engine does not know of it
  const auto infos = launcher_->List();
  ASSERT_TRUE(infos.ok());
  ASSERT_THAT(*infos, SizeIs(1));
  ASSERT_THAT((*infos)[0].pids, SizeIs(1));
  ASSERT_EQ(kill(static_cast<pid_t>((*infos)[0].pids[0]), SIGKILL), 0);
  gate_.Drop();
  const TrialView view = Rest(trial);
  EXPECT_EQ(view.state, TrialState::kCompleted) << view.record.message;
  EXPECT_EQ(Reports(view), Steps(10, 0)) << "nothing is lost, nothing is doubled";
  EXPECT_EQ(view.record.core.run, 2u);
  ASSERT_TRUE(view.record.start.has_value());
  EXPECT_EQ(view.record.start->steps, 50) << "found in the repository";
}

TEST_P(TutorialTest, SeveralRanksArePausedAndGoOn) {
  TrialConfig config = Config(GetParam().distributed);
  config.world_size = 2;
  config.slots = 2;
  gate_.HoldAt(3);
  const std::string trial = Create(config);
  gate_.WaitHeld();
  gate_.WaitSeen([&] { ASSERT_TRUE(engine_->Pause(trial).ok()); });
  gate_.Release();
  TrialView view = Rest(trial);
  EXPECT_EQ(view.state, TrialState::kPaused) << view.record.message;
  ASSERT_THAT(Reports(view), SizeIs(3));
  EXPECT_EQ(view.record.checkpoints.back().ranks, 2u);
  ASSERT_TRUE(engine_->Activate(trial).ok());
  view = Rest(trial);
  EXPECT_EQ(view.state, TrialState::kCompleted) << view.record.message;
  ASSERT_THAT(Reports(view), SizeIs(10));
  EXPECT_EQ(Reports(view).back(), (std::pair<std::int64_t, std::int64_t>(100, 300)));
}

std::vector<Variant> Variants() {
  const char* directory = std::getenv("CAIRN_BIN_DIR");
  const std::string bin = directory == nullptr ? "." : directory;
  std::vector<Variant> variants = {{"Cpp",
                                    {bin + "/core_api_checkpoints", "0.002"},
                                    {bin + "/core_api_distributed", "0.002"},
                                    false}};
#ifdef CAIRN_TUTORIAL_PYTHON
  const std::string examples = Root() + "/examples/core_api/";
  variants.push_back({"Python",
                      {CAIRN_TUTORIAL_PYTHON, examples + "2_checkpoints.py", "0.002"},
                      {CAIRN_TUTORIAL_PYTHON, examples + "4_distributed.py", "0.002"},
                      true});
#endif
  return variants;
}

INSTANTIATE_TEST_SUITE_P(CoreApi, TutorialTest, ::testing::ValuesIn(Variants()),
                         [](const auto& info) { return info.param.name; });

#ifdef CAIRN_TUTORIAL_PYTHON

/// What needs Python, once.
class PythonTutorialTest : public TutorialTest {
 protected:
  std::vector<std::string> Script(const std::string& name) {
    return {CAIRN_TUTORIAL_PYTHON, Root() + "/examples/core_api/" + name, "0.002"};
  }
  std::vector<std::string> Code(const std::string& code) {
    return {CAIRN_TUTORIAL_PYTHON, "-c", "import os, sys, time, cairn\n" + code};
  }
};

INSTANTIATE_TEST_SUITE_P(CoreApi, PythonTutorialTest, ::testing::Values(Variants().back()),
                         [](const auto& info) { return info.param.name; });

TEST_P(PythonTutorialTest, MetricsAreReported) {
  const std::string trial = Create(Config(Script("1_metrics.py")));
  const TrialView view = Rest(trial);
  EXPECT_EQ(view.state, TrialState::kCompleted) << view.record.message;
  EXPECT_EQ(Reports(view), Steps(10, 0));
  EXPECT_EQ(view.record.progress, 1.0);
}

TEST_P(PythonTutorialTest, ABodyThatRaisesIsAFailedCheckpointAndAFailedRun) {
  TrialConfig config = Config(Code(R"(
with cairn.core.init() as ctx:
    assert ctx.hparams == {"lr": 0.5} and ctx.info.trial.resume_mode == "fresh"
    with ctx.checkpoint.store_path({"steps_completed": 1}) as (path, id):
        raise RuntimeError("no luck")
)"));
  config.hparams = Value::Object{{"lr", 0.5}};
  config.max_restarts = 0;
  const TrialView view = Rest(Create(config));
  EXPECT_EQ(view.state, TrialState::kError);
  EXPECT_THAT(Reports(view), IsEmpty());
  for (const CheckpointRecord& checkpoint : view.record.checkpoints) {
    EXPECT_EQ(checkpoint.state, CheckpointState::kError);
  }
}

TEST_P(PythonTutorialTest, AProcessStartedByHandJoinsReportsAndIsPaused) {
  LaunchSpec spec;
  spec.id = "by-hand";
  spec.slots = 0;
  spec.argv = Code(R"(
with cairn.core.init() as ctx:
    step = 0
    if ctx.latest_checkpoint:
        step = ctx.checkpoint.get_metadata(ctx.latest_checkpoint)["steps_completed"]
    while step < 1000:
        step += 1
        time.sleep(0.02)
        ctx.train.report_training_metrics(step, {"x": step})
        with ctx.checkpoint.store_path({"steps_completed": step}) as (path, id):
            pass
        if ctx.preempt.should_preempt():
            break
print("left at", step)
)");
  spec.env = {{"PYTHONPATH", Root() + "/python"},
              {"CAIRN_TRIAL_URL", server_->url()},
              {"CAIRN_JOIN_TOKEN", "join us"},
              {"CAIRN_EXTERNAL_ID", "mine"}};
  ASSERT_TRUE(launcher_->Submit(spec).ok());
  std::string trial;
  while (trial.empty()) {
    for (const TrialView& view : engine_->List()) {
      if (view.record.reports.size() >= 3) trial = view.record.id;
    }
    std::this_thread::sleep_for(5ms);
  }
  ASSERT_TRUE(engine_->Pause(trial).ok());
  TrialView view = Rest(trial);
  EXPECT_EQ(view.state, TrialState::kPaused) << view.record.message;
  EXPECT_TRUE(view.record.config.detached);
  const auto ended = launcher_->Wait("by-hand", 60s);
  ASSERT_TRUE(ended.ok());
  EXPECT_TRUE(ended->exit->succeeded()) << ended->exit->message;
  const std::int64_t last = Reports(view).back().first;
  // The same command again is the same trial, and goes on.
  spec.id = "by-hand-again";
  ASSERT_TRUE(launcher_->Submit(spec).ok());
  for (;;) {
    const auto now = engine_->Get(trial);
    ASSERT_TRUE(now.ok());
    if (Reports(*now).size() > static_cast<std::size_t>(last)) {
      EXPECT_EQ(Reports(*now)[static_cast<std::size_t>(last)].first, last + 1);
      break;
    }
    std::this_thread::sleep_for(5ms);
  }
}

#endif

}  // namespace
}  // namespace cairn
