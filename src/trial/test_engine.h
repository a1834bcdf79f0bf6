#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "trial/test_trial.h"
#include "trial/trial_engine.h"

namespace cairn {

/// Waits for what a function of the engine that runs call answers.
inline Value Call(const std::function<void(TrialEngine::Done<Value>)>& call,
                  Status* status = nullptr) {
  std::promise<Result<Value>> promise;
  auto future = promise.get_future();
  call([&](Result<Value> answer) { promise.set_value(std::move(answer)); });
  Result<Value> answer = future.get();
  if (status != nullptr) *status = answer.status();
  if (status == nullptr) {
    EXPECT_TRUE(answer.ok()) << answer.status().ToString();
  }
  return answer.ok() ? *answer : Value();
}

/// An engine on things that outlive it.
class TrialEngineTest : public ::testing::Test {
 protected:
  using RunKey = TrialEngine::RunKey;
  using milliseconds = std::chrono::milliseconds;
  using seconds = std::chrono::seconds;

  ~TrialEngineTest() override { Crash(); }

  void Open() {
    TrialEngineOptions options{.log = &log_,
                               .launcher = &launcher_,
                               .repositories = &repositories_,
                               .clock = &clock_,
                               .url = "http://127.0.0.1:1",
                               .data_directory = data_directory_,
                               .shared_storage = shared_storage_,
                               .answer_timeout = answer_timeout_,
                               .heartbeat = heartbeat_,
                               .retention_interval = retention_interval_,
                               .join_token = "let me in",
                               .join_storage = "/s",
                               .users_wait = users_wait_,
                               .submit_early = submit_early_,
                               .on_recorded = on_recorded_,
                               .on_wait = on_wait_};
    engine_ = TrialEngine::Open(options).value();
    launcher_.listener = [this](const LaunchInfo& info) { engine_->OnLaunch(info); };
    ASSERT_TRUE(engine_->Start().ok());
  }
  /// As kill -9: only the log and the processes are left.
  void Crash() {
    launcher_.listener = nullptr;
    engine_.reset();
  }
  void Restart() {
    Crash();
    Open();
  }
  static TrialConfig Config() {
    return {.experiment = "e",
            .argv = {"train"},
            .storage = "/s",
            .max_restarts = 2,
            .preemption_timeout = seconds(600)};
  }
  TrialState State(const std::string& id) { return engine_->Get(id).value().record.core.state; }
  void WaitState(const std::string& id, TrialState state) {
    for (int i = 0; i < 60'000 && State(id) != state; ++i)
      std::this_thread::sleep_for(milliseconds(1));
    ASSERT_EQ(TrialStateName(State(id)), TrialStateName(state));
  }
  Value Report(const RunKey& key, int sequence, int steps, Value metrics, Status* status = nullptr,
               const char* group = "training") {
    return Call(
        [&](auto done) {
          engine_->Report(key,
                          Value::Object{{"sequence", sequence},
                                        {"group", group},
                                        {"steps_completed", steps},
                                        {"metrics", metrics}},
                          done);
        },
        status);
  }
  /// A report that is not answered before its time is over.
  Status ReportInVain(const RunKey& key, int sequence, int steps) {
    std::promise<Status> promise;
    auto answer = promise.get_future();
    engine_->Report(key,
                    Value::Object{{"sequence", sequence},
                                  {"group", "training"},
                                  {"steps_completed", steps},
                                  {"metrics", Value::Object{}}},
                    [&](const Result<Value>& taken) { promise.set_value(taken.status()); });
    while (answer.wait_for(milliseconds(1)) != std::future_status::ready) {
      clock_.Advance(answer_timeout_);
    }
    return answer.get();
  }
  void Ready(const RunKey& key) {
    Call([&](auto done) { engine_->Ready(key, Value::Object{{"rank", 0}}, done); });
  }
  void Save(const RunKey& key, const std::string& id, int steps, Value::Object more = {}) {
    Call([&](auto done) {
      engine_->StartCheckpoint(
          key, Value::Object{{"registration", "r-" + id}, {"steps_completed", steps}}, done);
    });
    repositories_.Commit(
        "/s/e/" + key.trial,
        {.id = id, .steps = steps, .metadata = Value::Object{{"steps_completed", steps}}});
    more["id"] = id;
    more["steps_completed"] = steps;
    Call([&](auto done) { engine_->CompleteCheckpoint(key, "r-" + id, more, done); });
  }

  SettableClock clock_;
  MemoryEventLog log_;
  FakeLauncher launcher_;
  FakeRepositories repositories_;
  milliseconds answer_timeout_ = seconds(60);
  milliseconds heartbeat_ = seconds(10);
  milliseconds retention_interval_ = seconds(60);
  std::string data_directory_;
  bool shared_storage_ = false;
  bool users_wait_ = true;
  bool submit_early_ = false;
  std::function<void(const Event&)> on_recorded_;
  std::function<void(const std::string& trial)> on_wait_;
  std::unique_ptr<TrialEngine> engine_;
};

}  // namespace cairn
