#include <cairn/session.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/log.h"
#include "storage/local/temp_directory.h"

namespace cairn {
namespace {

using ::testing::ElementsAre;

/// A training whose every step changes a row, a dense variable and a counter of its own.
struct Training {
  Training() {
    TableOptions options;
    options.name = "t";
    options.dim = 4;
    options.optimizer = MakeAdagrad({.learning_rate = 0.1F}).value();
    options.initializer = MakeConstant(1).value();
    options.gate = std::make_shared<CutGate>();
    table = Table::Make(options).value();
    RowTrackedOptions tracked;
    tracked.name = "embedding";
    tracked.rows = 100;
    tracked.arrays = {{"weights", DType::kF32, 2, embedding.data()}};
    tracked.gate = options.gate;
    array = RowTracked::Make(tracked).value();
  }

  SessionOptions Options(const std::string& directory) {
    SessionOptions options{.checkpoint_dir = directory, .save_checkpoint_secs = 60};
    options.save_incremental_checkpoint_secs = 20;
    options.tables = {table.get()};
    options.arrays = {array.get()};
    options.variables = {{"dense", DType::kF64, {2}, dense.data()}};
    options.save_state = [this] {
      return std::map<std::string, std::string>{{"position", std::to_string(position)}};
    };
    options.restore_state = [this](const std::map<std::string, std::string>& files) {
      position = std::stoi(files.at("position"));
      return Status::Ok();
    };
    options.now = [this] { return now; };
    return options;
  }

  Status Step(std::int64_t step) {
    const std::vector<std::int64_t> ids = {step % 10};
    const Status updated = table->ApplyGradients(ids, std::vector<float>(4, 2.0F));
    if (!updated.ok()) return updated;
    {
      const CutGate::Batch batch(table->options().gate.get());
      const std::vector<std::int64_t> row = {step * 7 % 100};
      if (Status touched = array->Touch(row); !touched.ok()) return touched;
      embedding[static_cast<std::size_t>(row[0]) * 2] += static_cast<float>(step);
    }
    dense[0] += 1;
    dense[1] += dense[0] * static_cast<double>(step);
    ++position;
    now += std::chrono::seconds(1);
    return Status::Ok();
  }

  std::map<std::int64_t, std::vector<float>> Rows() {
    std::map<std::int64_t, std::vector<float>> rows;
    EXPECT_TRUE(table
                    ->ForEach([&](const RowView& row) {
                      auto& all = rows[row.key];
                      all.assign(row.weights.begin(), row.weights.end());
                      all.insert(all.end(), row.slots.begin(), row.slots.end());
                      return Status::Ok();
                    })
                    .ok());
    return rows;
  }

  std::vector<float> embedding = std::vector<float>(200);
  std::unique_ptr<Table> table;
  std::unique_ptr<RowTracked> array;
  std::vector<double> dense = std::vector<double>(2);
  int position = 0;
  std::chrono::nanoseconds now{0};
};

/// While it lives no file of this process can be made longer.
class FullDisk {
 public:
  FullDisk() {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit none{1, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &none);
  }
  ~FullDisk() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, signal_);
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  void (*const signal_)(int) = std::signal(SIGXFSZ, SIG_IGN);  // a write fails then
  rlimit before_{};
};

std::vector<std::string> Kinds(const std::string& directory) {
  auto manager = CheckpointManager::Open({.directory = directory, .read_only = true}).value();
  std::vector<std::string> kinds;
  for (const CheckpointInfo& info : manager->List().value()) {
    kinds.push_back(info.kind + " " + std::to_string(info.step));
  }
  return kinds;
}

Status RunSteps(Training* training, TrainingSession* session, int count) {
  for (int i = 0; i < count; ++i) {
    const Status status = session->Run([&](std::int64_t step) { return training->Step(step); });
    if (!status.ok()) return status;
  }
  return Status::Ok();
}

TEST(TrainingSession, SavesFullAndIncrementsWhenTheyAreDue) {
  const TempDirectory dir;
  Training training;
  SessionOptions options = training.Options(dir / "c");
  options.max_to_keep = std::nullopt;
  auto session = TrainingSession::Open(options).value();
  ASSERT_TRUE(RunSteps(&training, session.get(), 85).ok());
  ASSERT_TRUE(session->Close().ok());
  EXPECT_THAT(Kinds(dir / "c"), ElementsAre("full 0", "increment 20", "increment 40", "full 60",
                                            "increment 80", "increment 85"));
}

TEST(TrainingSession, SavesRowsThatChangedAfterItsLastStep) {
  const TempDirectory dir;
  for (const bool erase : {false, true}) {
    const std::string place = dir / (erase ? "erase" : "assign");
    const auto options = [&](Training* training) {
      SessionOptions made = training->Options(place);
      made.save_checkpoint_steps = 1;
      return made;
    };
    Training training;
    auto session = TrainingSession::Open(options(&training)).value();
    ASSERT_TRUE(RunSteps(&training, session.get(), 3).ok());
    const std::vector<std::int64_t> ids = {1};
    if (erase) {
      ASSERT_TRUE(training.table->Erase(ids).ok());
    } else {
      ASSERT_TRUE(training.table->Assign(ids, std::vector<float>(4, 7.0F)).ok());
    }
    ASSERT_TRUE(session->Close().ok());
    Training after;
    auto again = TrainingSession::Open(options(&after)).value();
    EXPECT_EQ(again->global_step(), 3);
    EXPECT_EQ(after.table->size(), training.table->size());
    std::vector<float> rows(4);
    ASSERT_TRUE(after.table->Lookup(ids, rows, Missing::kInitial).ok());
    EXPECT_THAT(rows, testing::Each(erase ? 1.0F : 7.0F));
    ASSERT_TRUE(again->Close().ok());
    EXPECT_EQ(Kinds(place).back(), "increment 3");
    EXPECT_EQ(Kinds(place).size(), 5);  // and no more was saved
  }
}

TEST(TrainingSession, SavesThatATableWasClearedAfterItsLastStep) {
  const TempDirectory dir;
  Training training;
  auto session = TrainingSession::Open(training.Options(dir / "c")).value();
  ASSERT_TRUE(RunSteps(&training, session.get(), 3).ok());
  ASSERT_TRUE(session->Close().ok());
  session = TrainingSession::Open(training.Options(dir / "c")).value();
  ASSERT_EQ(training.table->size(), 3U);
  ASSERT_TRUE(training.table->Clear().ok());
  ASSERT_TRUE(session->Close().ok());
  Training after;
  ASSERT_TRUE(TrainingSession::Open(after.Options(dir / "c")).value()->Close().ok());
  EXPECT_EQ(after.table->size(), 0U);
  EXPECT_THAT(Kinds(dir / "c"), ElementsAre("full 0", "full 3"));
}

TEST(TrainingSession, QuantizesIncrementsAndCompressesKeysWhenToldTo) {
  const TempDirectory dir;
  Training training;
  SessionOptions options = training.Options(dir / "c");
  options.quantize = true;
  options.compress_keys = true;
  auto session = TrainingSession::Open(options).value();
  ASSERT_TRUE(RunSteps(&training, session.get(), 5).ok());
  const auto keys_of = [&](const CheckpointInfo& info) {
    std::string found;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(info.path)) {
      if (entry.path().extension() != ".safetensors") continue;
      std::ifstream in(entry.path(), std::ios::binary);
      found += std::string{std::istreambuf_iterator<char>(in), {}};
    }
    return found.find("/keys_zstd\"") != std::string::npos;
  };
  const CheckpointInfo full = session->Save(SaveKind::kFull).value().Wait().value();
  EXPECT_TRUE(keys_of(full));
  ASSERT_TRUE(RunSteps(&training, session.get(), 1).ok());
  const CheckpointInfo increment = session->Save(SaveKind::kCumulative).value().Wait().value();
  EXPECT_TRUE(keys_of(increment));
  ASSERT_TRUE(RunSteps(&training, session.get(), 1).ok());  // sees that it is over
  EXPECT_GT(session->quantization_error().max_abs, 0);
  EXPECT_LT(session->quantization_error().max_relative, 0.005);
  ASSERT_TRUE(session->Close().ok());
}

TEST(TrainingSession, GoesOnAsIfNothingHadHappened) {
  const TempDirectory dir;
  Training undisturbed;
  auto whole = TrainingSession::Open(undisturbed.Options(dir / "whole")).value();
  ASSERT_TRUE(RunSteps(&undisturbed, whole.get(), 150).ok());
  ASSERT_TRUE(whole->Close().ok());

  std::int64_t done = 0;
  for (const int stop : {7, 33, 65, 121, 150}) {
    Training training;
    auto session = TrainingSession::Open(training.Options(dir / "c")).value();
    EXPECT_LE(session->global_step(), done);
    const int steps = stop - static_cast<int>(session->global_step());
    ASSERT_TRUE(RunSteps(&training, session.get(), steps).ok());
    done = stop;
    if (stop == 150) {
      ASSERT_TRUE(session->Close().ok());
      EXPECT_EQ(training.Rows(), undisturbed.Rows());
      EXPECT_EQ(training.dense, undisturbed.dense);
      EXPECT_EQ(training.embedding, undisturbed.embedding);
      EXPECT_EQ(training.position, undisturbed.position);
    }  // else: gone without Close, as after an exception
  }
}

TEST(TrainingSession, RestartsDoNotPutAFullCheckpointOff) {
  const TempDirectory dir;
  for (int run = 0; run < 3; ++run) {
    Training training;
    SessionOptions options = training.Options(dir / "c");
    options.save_checkpoint_secs = std::nullopt;
    options.save_checkpoint_steps = 6;
    options.save_incremental_checkpoint_secs = std::nullopt;
    options.save_incremental_checkpoint_steps = 2;
    options.max_to_keep = std::nullopt;
    auto session = TrainingSession::Open(options).value();
    ASSERT_TRUE(RunSteps(&training, session.get(), 4).ok());
    ASSERT_TRUE(session->Close().ok());
  }
  EXPECT_THAT(Kinds(dir / "c"), ElementsAre("full 0", "increment 2", "increment 4", "full 6",
                                            "increment 8", "increment 10", "full 12"));
}

TEST(TrainingSession, RestartsDoNotPutAFullCheckpointOffByTimeEither) {
  const TempDirectory dir;
  std::chrono::nanoseconds now{0};
  for (int run = 0; run < 3; ++run) {
    Training training;
    training.now = now = std::chrono::hours(run + 1);  // what passes in between is no training
    SessionOptions options = training.Options(dir / "c");
    options.save_checkpoint_secs = 60;
    options.save_incremental_checkpoint_secs = 10;
    options.max_to_keep = std::nullopt;
    auto session = TrainingSession::Open(options).value();
    ASSERT_TRUE(RunSteps(&training, session.get(), 40).ok());
    ASSERT_TRUE(session->Close().ok());
  }
  EXPECT_THAT(Kinds(dir / "c"),
              ElementsAre("full 0", "increment 10", "increment 20", "increment 30", "increment 40",
                          "increment 50", "full 60", "increment 70", "increment 80", "increment 90",
                          "increment 100", "increment 110", "full 120"));
}

TEST(TrainingSession, WhatFailedInTheBackgroundIsDueAgainAtOnce) {
  const TempDirectory dir;
  Training training;
  SessionOptions options = training.Options(dir / "c");
  auto session = TrainingSession::Open(options).value();
  ASSERT_TRUE(RunSteps(&training, session.get(), 19).ok());
  ASSERT_TRUE(session->Save(SaveKind::kFull).value().Wait().ok());
  ASSERT_TRUE(RunSteps(&training, session.get(), 19).ok());
  {
    const FullDisk full;
    const auto handle = session->Save(SaveKind::kCumulative);
    ASSERT_TRUE(handle.ok()) << handle.status().ToString();
    while (!handle->Done()) std::this_thread::yield();
  }
  // Of step 38, and due 20 s after that of step 19.
  const Status told = RunSteps(&training, session.get(), 1);
  EXPECT_EQ(told.code(), Code::kResourceExhausted) << told.ToString();
  ASSERT_TRUE(RunSteps(&training, session.get(), 1).ok());
  ASSERT_TRUE(session->Close().ok());
  EXPECT_THAT(Kinds(dir / "c"), ElementsAre("full 0", "full 19", "increment 40"));
}

TEST(TrainingSession, KeepsTheNewestFullOnesAndTheNewestChain) {
  const TempDirectory dir;
  Training training;
  SessionOptions options = training.Options(dir / "c");
  options.max_to_keep = 2;
  auto session = TrainingSession::Open(options).value();
  ASSERT_TRUE(RunSteps(&training, session.get(), 205).ok());
  ASSERT_TRUE(session->Close().ok());
  EXPECT_THAT(Kinds(dir / "c"), ElementsAre("full 120", "full 180", "increment 205"));
}

TEST(TrainingSession, AFailedStepIsNotCounted) {
  Training training;
  auto session = TrainingSession::Open({.checkpoint_dir = "", .tables = {}}).value();
  EXPECT_FALSE(session->Run([](std::int64_t) { return InternalError("no"); }).ok());
  EXPECT_EQ(session->global_step(), 0);
}

TEST(TrainingSession, OthersThanTheChiefSaveNothing) {
  const TempDirectory dir;
  {
    Training chief;
    auto session = TrainingSession::Open(chief.Options(dir / "c")).value();
    ASSERT_TRUE(RunSteps(&chief, session.get(), 30).ok());
    ASSERT_TRUE(session->Close().ok());
  }
  Training other;
  SessionOptions options = other.Options(dir / "c");
  options.is_chief = false;
  auto session = TrainingSession::Open(options).value();
  EXPECT_EQ(session->global_step(), 30);
  const auto before = Kinds(dir / "c");
  ASSERT_TRUE(RunSteps(&other, session.get(), 100).ok());
  EXPECT_FALSE(session->Save(SaveKind::kFull).ok());
  ASSERT_TRUE(session->Close().ok());
  EXPECT_EQ(Kinds(dir / "c"), before);
}

TEST(TrainingSession, AWorkerWaitsForTheChiefsFirstCheckpoint) {
  const TempDirectory dir;
  Training other;
  SessionOptions options = other.Options(dir / "c");
  options.is_chief = false;
  options.max_wait_secs = 0.01;
  const Status alone = TrainingSession::Open(options).status();
  EXPECT_TRUE(alone.Is(Code::kDeadlineExceeded)) << alone.ToString();
  EXPECT_NE(alone.ToString().find("the chief has saved nothing in"), std::string::npos);
  options.max_wait_secs = 60;
  std::promise<void> waits;
  SetLogSink([&](LogLevel, std::string_view line) {
    if (line.starts_with("waiting for the chief's first checkpoint")) waits.set_value();
  });
  std::int64_t step = -1;
  std::jthread worker([&] { step = TrainingSession::Open(options).value()->global_step(); });
  waits.get_future().wait();
  SetLogSink(nullptr);
  Training chief;
  auto session = TrainingSession::Open(chief.Options(dir / "c")).value();
  worker.join();
  EXPECT_EQ(step, 0);
}

TEST(TrainingSession, TellsOfEachCheckpointWhenItIsAcknowledged) {
  TempDirectory directory;
  Training training;
  SessionOptions options = training.Options(directory / "run");
  std::atomic<int> told = 0;
  options.on_saved = [&] { ++told; };
  auto session = TrainingSession::Open(options).value();
  EXPECT_TRUE(session->Save(SaveKind::kFull).value().Wait().ok());
  EXPECT_EQ(told, 2) << "the one of the beginning, and this one";
  ASSERT_TRUE(session->Close().ok());
}

TEST(TrainingSession, RefusesACheckpointOfAnotherTrainingWithWhatItsUserCanDo) {
  const TempDirectory dir;
  Training training;
  SessionOptions saved = training.Options(dir / "run");
  saved.variables[0].name = "model/w";
  training.dense = {3, 4};
  ASSERT_TRUE(TrainingSession::Open(saved).value()->Close().ok());
  Training other;
  SessionOptions options = other.Options(dir / "run");
  const auto refused = [&] { return TrainingSession::Open(options).status(); };
  options.variables[0].name = "w";
  EXPECT_EQ(refused().reason(), Reason::kMismatch);
  const std::string message(refused().message());
  EXPECT_THAT(message, testing::HasSubstr("w (model/w is stored: that may be w)"));
  EXPECT_THAT(message, testing::HasSubstr("Nothing was changed. Give the tables and variables"));
  EXPECT_THAT(message, testing::HasSubstr("another checkpoint_dir"));
  EXPECT_THAT(message, testing::Not(testing::HasSubstr("rename")));
  options.variables[0].name = "model/w";
  options.arrays.clear();
  EXPECT_EQ(refused().reason(), Reason::kMismatch);
  EXPECT_THAT(std::string(refused().message()), testing::HasSubstr("another checkpoint_dir"));
  options.tables.clear();  // their rows would be in no later checkpoint
  EXPECT_EQ(refused().reason(), Reason::kMismatch);
  EXPECT_THAT(std::string(refused().message()), testing::HasSubstr("embedding"));
  EXPECT_THAT(std::string(refused().message()), testing::HasSubstr("Nothing was changed"));
  EXPECT_EQ(other.dense, Training().dense);
  options.is_chief = false;
  EXPECT_TRUE(TrainingSession::Open(options).ok());
  EXPECT_EQ(other.dense, training.dense);
}

TEST(TrainingSession, RefusesWhatCannotBe) {
  Training training;
  SessionOptions twice = training.Options("x");
  twice.tables = {training.table.get(), training.table.get()};
  EXPECT_TRUE(TrainingSession::Open(twice).status().Is(Code::kInvalidArgument));
  SessionOptions none = training.Options("x");
  none.max_to_keep = 0;
  EXPECT_TRUE(TrainingSession::Open(none).status().Is(Code::kInvalidArgument));
  SessionOptions same = training.Options("x");
  float value = 0;
  same.variables.push_back(
      {.name = training.table->options().name, .dtype = DType::kF32, .shape = {}, .data = &value});
  const Status refused = TrainingSession::Open(same).status();
  EXPECT_TRUE(refused.Is(Code::kInvalidArgument)) << refused.ToString();
  EXPECT_NE(refused.message().find("is a table and a dense variable; rename one of them"),
            std::string_view::npos)
      << refused.ToString();
}

}  // namespace
}  // namespace cairn
