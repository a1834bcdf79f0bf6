// Experiments on a real catalog whose event log can be shut, as a full disk does that can be read.
#include "master/experiments.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "catalog/catalog.h"
#include "storage/local/temp_directory.h"
#include "trial/test_trial.h"

namespace cairn::master {
namespace {

class ShutLog final : public EventLog {
 public:
  explicit ShutLog(EventLog* log) : log_(log) {}
  Status Append(std::span<const Event> events) override {
    return shut ? ResourceExhaustedError("the disk is full") : log_->Append(events);
  }
  Status Replay(std::uint64_t from, const Visitor& visit) override {
    return log_->Replay(from, visit);
  }
  Result<TrialRecords> Restore() override { return log_->Restore(); }
  std::atomic<bool> shut = false;

 private:
  EventLog* const log_;
};

class ExperimentsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    catalog_ = Catalog::Open({.url = "sqlite:" + (directory_ / "cairn.db")}).value();
    Open(&catalog_->events());
  }
  void Open(EventLog* log) {
    log_ = std::make_unique<ShutLog>(log);
    engine_ = TrialEngine::Open({.log = log_.get(),
                                 .launcher = &launcher_,
                                 .repositories = &repositories_,
                                 .url = "http://127.0.0.1:1",
                                 .answer_timeout = std::chrono::milliseconds(50)})
                  .value();
    ASSERT_TRUE(engine_->Start().ok());
    experiments_ =
        std::make_unique<Experiments>(ExperimentsOptions{.catalog = catalog_.get(),
                                                         .engine = engine_.get(),
                                                         .code = &code_,
                                                         .data_directory = directory_.path(),
                                                         .default_storage = directory_ / "storage",
                                                         .on_change = [](auto, const auto&) {}});
    ASSERT_TRUE(experiments_->Start().ok());
  }
  void TearDown() override {
    experiments_->Stop();
    engine_.reset();
  }
  /// As kill -9: what the log did not take never happened.
  void Restart() { Restart(&catalog_->events()); }
  void Restart(EventLog* log) {
    TearDown();
    Open(log);
  }

  std::vector<TrialRow> TrialsOf(std::int64_t experiment) {
    return catalog_->trials().List({.experiment = std::to_string(experiment)}).value().items;
  }

  TempDirectory directory_;
  std::unique_ptr<Catalog> catalog_;
  std::unique_ptr<ShutLog> log_;
  FakeLauncher launcher_;
  FakeRepositories repositories_;
  CodeStore code_{directory_ / "code"};
  std::unique_ptr<TrialEngine> engine_;
  std::unique_ptr<Experiments> experiments_;
};

TEST_F(ExperimentsTest, TrialsThatTheLogDidNotTakeInTimeAreMadeOnce) {
  constexpr const char* kGrid =
      "entrypoint: train\n"
      "hyperparameters: {a: {type: categorical, vals: [1, 2, 3]}}\n"
      "searcher: {name: grid, metric: x}\n";
  log_->shut = true;
  const auto id = experiments_->Create({.owner = "ada", .config = kGrid});
  ASSERT_TRUE(id.ok()) << id.status().ToString();
  for (int again = 0; again < 3; ++again) EXPECT_FALSE(experiments_->Activate(*id).ok());
  log_->shut = false;
  while (!experiments_->Activate(*id).ok()) {
    Clock::System()->Sleep(std::chrono::milliseconds(10));
  }
  std::multiset<std::int64_t> made;
  for (const TrialRow& trial : TrialsOf(*id)) made.insert(trial.hparams.Find("a")->AsInt());
  EXPECT_EQ(made, (std::multiset<std::int64_t>{1, 2, 3}));
}

TEST_F(ExperimentsTest, RulesReachAllTrialsAlsoWhenTheMasterIsKilledHalfWay) {
  const auto id = experiments_->Create({.owner = "ada", .config = "entrypoint: train"});
  ASSERT_TRUE(id.ok()) << id.status().ToString();
  const std::string trial = TrialsOf(*id).at(0).id;
  log_->shut = true;
  EXPECT_FALSE(experiments_->SetPolicy(*id, {.keep_last = 7}).ok());
  Restart();
  EXPECT_EQ(experiments_->Policy(*id)->keep_last, 7u);  // what people are shown
  for (int i = 0; i < 6000 && !catalog_->ListSettings("policy/")->empty(); ++i) {
    Clock::System()->Sleep(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(engine_->Get(trial)->record.config.retention.keep_last, 7u);
}

TEST_F(ExperimentsTest, RulesThatTheLogDidNotTakeInTimeAreGivenOnceItDoes) {
  const auto id = experiments_->Create({.owner = "ada", .config = "entrypoint: train"});
  ASSERT_TRUE(id.ok()) << id.status().ToString();
  log_->shut = true;
  EXPECT_FALSE(experiments_->SetPolicy(*id, {.keep_last = 7}).ok());
  EXPECT_EQ(catalog_->ListSettings("policy/")->size(), 1u);
  log_->shut = false;
  while (!experiments_->SetPolicy(*id, {.keep_last = 8}).ok()) {
    Clock::System()->Sleep(std::chrono::milliseconds(10));
  }
  EXPECT_TRUE(catalog_->ListSettings("policy/")->empty());
  EXPECT_EQ(engine_->Get(TrialsOf(*id).at(0).id)->record.config.retention.keep_last, 8u);
}

TEST_F(ExperimentsTest, RulesReachATrialThatTheLogHasNotTakenYet) {
  log_->shut = true;
  const auto id = experiments_->Create({.owner = "ada", .config = "entrypoint: train"});
  ASSERT_TRUE(id.ok()) << id.status().ToString();
  ASSERT_TRUE(TrialsOf(*id).empty());
  EXPECT_FALSE(experiments_->SetPolicy(*id, {.keep_last = 7}).ok());
  EXPECT_EQ(catalog_->ListSettings("policy/")->size(), 1u);
  log_->shut = false;
  while (!experiments_->SetPolicy(*id, {.keep_last = 7}).ok()) {
    Clock::System()->Sleep(std::chrono::milliseconds(10));
  }
  ASSERT_EQ(TrialsOf(*id).size(), 1u);
  EXPECT_EQ(engine_->Get(TrialsOf(*id).at(0).id)->record.config.retention.keep_last, 7u);
}

TEST_F(ExperimentsTest, RulesAreNotForgottenForATrialThatTheEngineDoesNotKnow) {
  const auto id = experiments_->Create({.owner = "ada", .config = "entrypoint: train"});
  ASSERT_TRUE(id.ok()) << id.status().ToString();
  MemoryEventLog nothing;
  Restart(&nothing);
  EXPECT_TRUE(experiments_->SetPolicy(*id, {.keep_last = 7}).Is(Code::kNotFound));
  // Long enough for what tries again behind it.
  Clock::System()->Sleep(std::chrono::milliseconds(300));
  EXPECT_EQ(catalog_->ListSettings("policy/")->size(), 1u);
  Restart();
  for (int i = 0; i < 6000 && !catalog_->ListSettings("policy/")->empty(); ++i) {
    Clock::System()->Sleep(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(engine_->Get(TrialsOf(*id).at(0).id)->record.config.retention.keep_last, 7u);
}

}  // namespace
}  // namespace cairn::master
