#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "base/thread_annotations.h"
#include "trial/test_trial.h"
#include "trial/trial_service.h"

namespace cairn::core {

/// A directory for what tests of the Core API store, gone afterwards.
class CoreFixture : public ::testing::Test {
 protected:
  CoreFixture() {
    std::string name = (std::filesystem::temp_directory_path() / "cairn-core-XXXXXX").string();
    directory_ = mkdtemp(name.data());
  }
  ~CoreFixture() override { std::filesystem::remove_all(directory_); }

  std::string storage() const { return (directory_ / "runs").string(); }

  static std::string Read(const std::string& path) {
    std::ifstream in(path);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static Value Steps(int steps) { return Value::Object{{"steps_completed", steps}}; }

  std::filesystem::path directory_;
};

/// A real engine that scripts of this process join, as one does that is started by hand beside it.
class EngineToJoin {
 public:
  explicit EngineToJoin(const std::string& storage,
                        std::chrono::milliseconds answer_timeout = std::chrono::seconds(60)) {
    engine_ = TrialEngine::Open({.log = &log_,
                                 .repositories = repositories_.get(),
                                 .answer_timeout = answer_timeout,
                                 .join_token = "let me in",
                                 .join_storage = storage,
                                 .on_log = [this](const std::string&, std::uint64_t,
                                                  const Value::List& lines) { Keep(lines); }})
                  .value();
    service_ = TrialService::Start({.engine = engine_.get()}).value();
    EXPECT_TRUE(engine_->Start().ok());
    setenv("CAIRN_TRIAL_URL", service_->url().c_str(), 1);
    setenv("CAIRN_JOIN_TOKEN", "let me in", 1);
  }
  ~EngineToJoin() {
    unsetenv("CAIRN_TRIAL_URL");
    unsetenv("CAIRN_JOIN_TOKEN");
    service_->Stop();
  }
  EngineToJoin(const EngineToJoin&) = delete;
  EngineToJoin& operator=(const EngineToJoin&) = delete;

  TrialEngine* operator->() { return engine_.get(); }
  MemoryEventLog* log() { return &log_; }
  /// What runs wrote: "stream: text".
  std::vector<std::string> lines() {
    MutexLock hold(&mu_);
    return lines_;
  }

 private:
  void Keep(const Value::List& lines) {
    MutexLock hold(&mu_);
    for (const Value& line : lines) {
      lines_.push_back(*line.Find("stream")->if_string() + ": " + *line.Find("text")->if_string());
    }
  }

  Mutex mu_;
  std::vector<std::string> lines_ GUARDED_BY(mu_);
  MemoryEventLog log_;
  std::unique_ptr<RepositoryAccess> repositories_ = RepositoryAccess::Real();
  std::unique_ptr<TrialEngine> engine_;
  std::unique_ptr<TrialService> service_;
};

}  // namespace cairn::core
