// Serving that follows training: a job that commits increments and a model that follows it, asked
// all the time: how soon a commit is served, how long lookups and predictions take beside updates,
// what an update takes of memory; besides the rate of updates of a table, and predictions against
// OpenVINO called directly. Built where libonnx and OpenVINO are.

#include <cairn/serving.h>

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <openvino/openvino.hpp>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <cairn/table_checkpoint.h>

#include "base/status_macros.h"
#include "bench/benchmarks.h"
#include "bench/machine.h"
#include "bench/onnx_models.h"
#include "bench/table_workload.h"
#include "serving/versions.h"

#ifndef CAIRN_PLUGIN
#define CAIRN_PLUGIN ""
#endif

namespace cairn::bench {
namespace {

constexpr std::size_t kDelta = 10'000;  // rows of an increment
constexpr std::size_t kIds = 64;        // of a request
constexpr std::uint64_t kWidth = 256;

std::int64_t KeyAt(std::uint64_t number) {
  return TableWorkload::KeyOf(static_cast<std::int64_t>(number));
}

/// A served table of `rows` rows, and updates of random ones.
class ServedRows {
 public:
  explicit ServedRows(std::uint64_t rows) : rows_(rows), random_(7) {
    keys_.resize(kDelta);
    values_.resize(kDelta * kTableDim);
  }

  Status Fill() {
    RETURN_IF_ERROR(versions_.Begin(/*replace=*/true));
    RETURN_IF_ERROR(table()->Reserve(rows_));
    for (std::uint64_t first = 0; first < rows_; first += kDelta) {
      const std::size_t n = std::min<std::uint64_t>(kDelta, rows_ - first);
      for (std::size_t i = 0; i < n; ++i) keys_[i] = KeyAt(first + i);
      RETURN_IF_ERROR(Put(n));
    }
    return Commit();
  }

  void Draw() {
    for (std::int64_t& key : keys_) key = KeyAt(random_() % rows_);
    for (float& value : values_) value = static_cast<float>(random_() % 1000);
  }
  Status Put(std::size_t rows) {
    return table()->Put(std::span(keys_).first(rows),
                        reinterpret_cast<const std::byte*>(values_.data()));
  }
  Status Commit() {
    RETURN_IF_ERROR(versions_.Prepare({}, nullptr).status());
    versions_.Commit();
    versions_.Collect();
    return Status::Ok();
  }

  serving::VersionedTable* table() { return versions_.tables()[0].get(); }
  serving::Versions* versions() { return &versions_; }
  std::uint64_t rows() const { return rows_; }
  const std::vector<std::int64_t>& keys() const { return keys_; }
  const std::vector<float>& values() const { return values_; }

 private:
  static serving::ServedTable Described() {
    serving::ServedTable table;
    table.name = "t";
    table.dim = kTableDim;
    return table;
  }
  const std::uint64_t rows_;
  std::mt19937_64 random_;
  serving::Versions versions_{{Described()}, {}};
  std::vector<std::int64_t> keys_;
  std::vector<float> values_;
};

std::uint64_t ServedRowsOf(const Options& options) {
  return std::max<std::uint64_t>(100'000, options.bytes / (kTableDim * sizeof(float) + 40));
}

double Quantile(std::vector<double>* values, double q) {
  const auto at = static_cast<std::size_t>(q * static_cast<double>(values->size() - 1));
  std::nth_element(values->begin(), values->begin() + static_cast<std::ptrdiff_t>(at),
                   values->end());
  return (*values)[at];
}

}  // namespace

Status RunServingApply(const Options& options) {
  constexpr std::size_t kDeltas = 20;
  ServedRows rows(ServedRowsOf(options));
  RETURN_IF_ERROR(rows.Fill());
  const std::vector<Contender> contenders = {
      {"inserts", kDelta * kDeltas,
       [&](Stopwatch* watch) -> Status {
         ASSIGN_OR_RETURN(const auto table, Table::Make(TableWorkload::Options()));
         double seconds = 0;
         watch->Start();
         std::vector<std::int64_t> keys(kDelta);
         for (std::size_t d = 0; d < kDeltas; ++d) {
           for (std::size_t i = 0; i < kDelta; ++i) keys[i] = KeyAt(d * kDelta + i);
           const double began = Now();
           RETURN_IF_ERROR(table->Assign(keys, rows.values()));
           seconds += Now() - began;
         }
         watch->Stop();
         watch->SetSeconds(seconds);
         return Status::Ok();
       }},
      {"apply", kDelta * kDeltas,
       [&](Stopwatch* watch) -> Status {
         double seconds = 0;
         watch->Start();
         for (std::size_t d = 0; d < kDeltas; ++d) {
           rows.Draw();
           const double began = Now();
           RETURN_IF_ERROR(rows.versions()->Begin(/*replace=*/false));
           RETURN_IF_ERROR(rows.Put(kDelta));
           RETURN_IF_ERROR(rows.Commit());
           seconds += Now() - began;
         }
         watch->Stop();
         watch->SetSeconds(seconds);
         return Status::Ok();
       }},
  };
  return RunRounds(options, "serving_apply", [] { return Status::Ok(); }, contenders);
}

namespace {

/// A job that saves increments, and a model that follows it.
class Followed {
 public:
  static Result<std::unique_ptr<Followed>> Open(const std::string& directory, std::uint64_t rows,
                                                std::uint32_t dim) {
    auto made = std::make_unique<Followed>();
    TableOptions table = TableWorkload::Options();
    table.dim = dim;
    ASSIGN_OR_RETURN(made->table_, Table::Make(table));
    made->rows_ = rows;
    made->dim_ = dim;
    // As the graph has it, so that predictions can be compared with OpenVINO's own.
    for (std::size_t i = 0; i < std::size_t{dim} * dim; ++i) {
      made->weight_.push_back(static_cast<float>(i * 37 % 101) / 1000 - 0.05F);
    }
    made->repository_ = directory + "/run";
    ASSIGN_OR_RETURN(made->manager_, CheckpointManager::Open({.directory = made->repository_}));
    made->checkpoints_ =
        std::make_unique<TableCheckpoints>(made->manager_.get(), std::vector{made->table_.get()});
    std::vector<std::int64_t> keys;
    for (std::uint64_t i = 0; i < rows; ++i) keys.push_back(KeyAt(i));
    RETURN_IF_ERROR(made->table_->Assign(keys, std::vector<float>(rows * dim, 0.25F)));
    RETURN_IF_ERROR(made->Save(SaveKind::kFull));
    serving::ExportRequest request;
    request.directory = directory + "/export";
    request.model = LayersModel(3, dim);
    request.feed_names = {"x"};
    request.target_names = {"y"};
    request.tables = {{"x", serving::ExportTable::Of(*made->table_)}};
    request.increments = true;
    ASSIGN_OR_RETURN(const serving::Exported exported, serving::Export(request));
    made->export_ = exported.path;
    made->model_path_ = exported.model.model_path;
    return made;
  }

  /// Another model in the place of the one before. `follow`: it takes what the job commits.
  Status Serve(bool follow) {
    model_ = nullptr;
    serving::ModelOptions options;
    options.export_dir = export_;
    options.repository = repository_;
    options.inference.plugin = CAIRN_PLUGIN;
    options.follow = follow;
    options.on_update = [this](const serving::UpdateEvent& event) {
      if (event.kind != serving::UpdateEvent::Kind::kApplied) return;
      const std::lock_guard lock(mutex_);
      seen_ = event.step;
      seen_at_ = Now();
      changed_.notify_all();
    };
    ASSIGN_OR_RETURN(model_, serving::Model::Open(std::move(options)));
    return Status::Ok();
  }

  /// Random rows, and a weight of the graph, which is compiled anew.
  Status Change(std::mt19937_64* random) {
    std::vector<std::int64_t> keys(kDelta);
    for (std::int64_t& key : keys) key = KeyAt((*random)() % rows_);
    return Change(keys);
  }
  Status Change(const std::vector<std::int64_t>& keys, bool graph = true) {
    if (graph) weight_[0] += 1;
    return table_->Assign(keys,
                          std::vector<float>(keys.size() * dim_, static_cast<float>(step_ % 1000)));
  }

  /// Commits; `committed`: when that was acknowledged.
  Status Save(SaveKind kind, double* committed = nullptr) {
    SaveRequest request;
    request.step = ++step_;
    request.kind = kind;
    request.tensors = {
        {.name = "w1", .dtype = DType::kF32, .shape = {dim_, dim_}, .data = weight_.data()}};
    ASSIGN_OR_RETURN(const SaveHandle handle, checkpoints_->Save(std::move(request)));
    ASSIGN_OR_RETURN(const CheckpointInfo info, handle.Wait());
    if (committed != nullptr) *committed = Now();
    saved_bytes_ = info.bytes;
    return Status::Ok();
  }

  /// When the last save was served.
  Result<double> Served() {
    std::unique_lock lock(mutex_);
    const bool there =
        changed_.wait_for(lock, std::chrono::seconds(60), [this] { return seen_ == step_; });
    if (!there) return DeadlineExceededError("the last save was not served");
    return seen_at_;
  }

  serving::Model* model() { return model_.get(); }
  const std::string& model_path() const { return model_path_; }
  std::uint64_t saved_bytes() const { return saved_bytes_; }  // by the last save
  std::uint64_t rows() const { return rows_; }
  std::uint32_t dim() const { return dim_; }

 private:
  std::unique_ptr<Table> table_;
  std::unique_ptr<CheckpointManager> manager_;
  std::unique_ptr<TableCheckpoints> checkpoints_;
  std::uint64_t rows_ = 0;
  std::uint32_t dim_ = 0;
  std::int64_t step_ = 0;
  std::uint64_t saved_bytes_ = 0;
  std::vector<float> weight_;
  std::string repository_;
  std::string export_;
  std::string model_path_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::int64_t seen_ = -1;
  double seen_at_ = 0;
  std::unique_ptr<serving::Model> model_;
};

/// Asks a served model, one request after the other.
class Asker {
 public:
  Asker(Followed* followed, std::uint64_t seed)
      : followed_(followed), random_(seed), ids_(kIds), rows_(kIds * followed->dim()) {}

  Status Lookup() {
    Draw();
    return followed_->model()->Lookup("bench", ids_, rows_);
  }
  Status Predict() {
    Draw();
    return followed_->model()->Predict({{"x", {DType::kI64, {kIds}, ids_.data()}}}).status();
  }

 private:
  void Draw() {
    for (std::int64_t& id : ids_) id = KeyAt(random_() % followed_->rows());
  }
  Followed* const followed_;
  std::mt19937_64 random_;
  std::vector<std::int64_t> ids_;
  std::vector<float> rows_;
};

/// Lookups and predictions beside something else, a few hundred a second, until it is gone.
class AskedBeside {
 public:
  explicit AskedBeside(Followed* followed) {
    thread_ = std::jthread([this, followed](const std::stop_token& stop) {
      Asker asker(followed, 11);
      while (!stop.stop_requested()) {
        failures_ += asker.Lookup().ok() ? 0 : 1;
        failures_ += asker.Predict().ok() ? 0 : 1;
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
    });
  }
  int failures() const { return failures_; }

 private:
  std::atomic<int> failures_{0};
  std::jthread thread_;
};

/// A job that commits an increment of 10,000 rows and another weight four times a second, with a
/// new full one now and then, until it is gone.
class TrainingBeside {
 public:
  explicit TrainingBeside(Followed* followed) {
    thread_ = std::jthread([this, followed](const std::stop_token& stop) {
      std::mt19937_64 random(9);
      for (int i = 1; !stop.stop_requested() && outcome_.ok(); ++i) {
        const double next = Now() + 0.25;
        outcome_ = followed->Change(&random);
        if (outcome_.ok()) {
          outcome_ = followed->Save(i % 20 == 0 ? SaveKind::kFull : SaveKind::kConsecutive);
        }
        while (Now() < next && !stop.stop_requested()) {
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
      }
    });
  }
  Status End() {
    thread_.request_stop();
    thread_.join();
    return outcome_;
  }

 private:
  Status outcome_;
  std::jthread thread_;
};

/// The p99 of requests while the job trains and commits, of a model that takes nothing of it and of
/// one that follows.
Status RunAsked(const Options& options, const std::string& what, Status (Asker::*ask)()) {
  constexpr double kSeconds = 4;
  ASSIGN_OR_RETURN(const std::string directory, FreshDirectory(options, "serving"));
  const std::uint64_t rows = std::min<std::uint64_t>(ServedRowsOf(options), 1'000'000);
  ASSIGN_OR_RETURN(auto followed, Followed::Open(directory, rows, kTableDim));
  std::uint64_t seed = 1;
  const auto contender = [&](bool follow) {
    return [&, follow](Stopwatch* watch) -> Status {
      RETURN_IF_ERROR(followed->Serve(follow));
      const std::uint64_t before = followed->model()->stats().updates;
      TrainingBeside training(followed.get());
      Asker asker(followed.get(), ++seed);
      std::vector<double> times;
      watch->Start();
      for (const double end = Now() + kSeconds; Now() < end;) {
        const double began = Now();
        RETURN_IF_ERROR((asker.*ask)());
        times.push_back(Now() - began);
      }
      watch->Stop();
      watch->SetSeconds(Quantile(&times, 0.99));
      watch->Note("requests", static_cast<double>(times.size()));
      watch->Note("updates", static_cast<double>(followed->model()->stats().updates - before));
      return training.End();
    };
  };
  const std::vector<Contender> contenders = {{"still", kIds, contender(false)},
                                             {"updating", kIds, contender(true)}};
  RETURN_IF_ERROR(RunRounds(options, what, [] { return Status::Ok(); }, contenders));
  followed = nullptr;
  RemoveDirectory(directory);
  return Status::Ok();
}

}  // namespace

Status RunServingLookup(const Options& options) {
  return RunAsked(options, "serving_lookup", &Asker::Lookup);
}

Status RunServingPredictAsked(const Options& options) {
  return RunAsked(options, "serving_predict_asked", &Asker::Predict);
}

Status RunServingMemory(const Options& options) {
  ASSIGN_OR_RETURN(const std::string directory, FreshDirectory(options, "serving"));
  const std::uint64_t rows = std::min<std::uint64_t>(ServedRowsOf(options), 2'000'000);
  ASSIGN_OR_RETURN(auto followed, Followed::Open(directory, rows, kTableDim));
  RETURN_IF_ERROR(followed->Serve(/*follow=*/false));
  // The usual increment without and with another weight of the graph, and half of all rows, of a
  // model that has just read a full one: nothing is free yet that they could take. Then the usual
  // one of a server that goes on: what older versions leave is there to be used again.
  struct Case {
    std::string name;  // "": until it has taken a few
    std::uint64_t changed;
    bool graph;
    bool fresh;
  };
  std::vector<Case> cases = {
      {"rows", kDelta, false, true}, {"small", kDelta, true, true}, {"half", rows / 2, true, true}};
  for (int i = 0; i < 4; ++i) cases.push_back({"", kDelta, true, false});
  for (int i = 0; i < 5; ++i) cases.push_back({"steady", kDelta, true, false});
  std::vector<double> steady;
  for (const auto& [name, changed, graph, fresh] : cases) {
    std::vector<std::int64_t> keys;
    for (std::uint64_t i = 0; i < changed; ++i) keys.push_back(KeyAt(i));
    RETURN_IF_ERROR(followed->Change(keys, graph));
    RETURN_IF_ERROR(followed->Save(SaveKind::kConsecutive));
    const AskedBeside asked(followed.get());
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // until it has what asking needs
    if (fresh) malloc_trim(0);
    RETURN_IF_ERROR(ResetPeakMemory());
    const std::uint64_t before = ResidentMemory();
    RETURN_IF_ERROR(followed->model()->Update());
    const auto above = static_cast<double>(PeakMemory() - before);
    if (asked.failures() > 0) return InternalError("requests failed beside the update");
    const double weights =
        static_cast<double>(changed * (sizeof(std::int64_t) + kTableDim * sizeof(float)));
    const double ratio = above / static_cast<double>(followed->saved_bytes());
    if (name == "steady") steady.push_back(ratio);
    if (!fresh) continue;
    PrintFact("serving_memory", name, ratio);
    PrintFact("serving_memory", name + "_weights", above / weights);
    PrintFact("serving_memory", name + "_above", above);
  }
  PrintFact("serving_memory", "steady", Quantile(&steady, 0.5));
  followed = nullptr;
  RemoveDirectory(directory);
  return Status::Ok();
}

Status RunServingFreshness(const Options& options) {
  constexpr int kCommits = 80;
  ASSIGN_OR_RETURN(const std::string directory, FreshDirectory(options, "serving"));
  const std::uint64_t rows = std::min<std::uint64_t>(ServedRowsOf(options), 1'000'000);
  ASSIGN_OR_RETURN(auto followed, Followed::Open(directory, rows, kTableDim));
  RETURN_IF_ERROR(followed->Serve(/*follow=*/true));
  std::mt19937_64 random(3);
  std::vector<double> increments;
  std::vector<double> fulls;
  {
    const AskedBeside asked(followed.get());
    for (int i = 0; i < kCommits; ++i) {
      const double next = Now() + 1;
      RETURN_IF_ERROR(followed->Change(&random));
      // A new base now and then, as a session does it.
      const bool full = i % 20 == 19;
      double committed = 0;
      RETURN_IF_ERROR(followed->Save(full ? SaveKind::kFull : SaveKind::kConsecutive, &committed));
      ASSIGN_OR_RETURN(const double served, followed->Served());
      (full ? fulls : increments).push_back(std::max(0.0, served - committed));
      std::this_thread::sleep_for(std::chrono::duration<double>(next - Now()));
    }
    if (asked.failures() > 0) return InternalError("requests failed beside updates");
  }
  PrintFact("serving_freshness", "p50", Quantile(&increments, 0.5));
  PrintFact("serving_freshness", "p99", Quantile(&increments, 0.99));
  PrintFact("serving_freshness", "full", Quantile(&fulls, 1));
  followed = nullptr;
  RemoveDirectory(directory);
  return Status::Ok();
}

Status RunServingPredict(const Options& options) {
  constexpr int kRuns = 500;
  ASSIGN_OR_RETURN(const std::string directory, FreshDirectory(options, "serving"));
  ASSIGN_OR_RETURN(auto followed, Followed::Open(directory, 100'000, kWidth));
  RETURN_IF_ERROR(followed->Serve(/*follow=*/true));
  ov::Core core;
  ov::CompiledModel compiled = core.compile_model(
      followed->model_path(), "CPU", ov::hint::inference_precision(ov::element::f32),
      ov::hint::performance_mode(ov::hint::PerformanceMode::LATENCY));
  ov::InferRequest request = compiled.create_infer_request();
  std::vector<float> embeddings(kIds * kWidth, 0.25F);
  std::vector<float> y;
  std::mt19937_64 random(5);
  std::vector<std::int64_t> ids(kIds);
  const std::vector<Contender> contenders = {
      {"openvino", kRuns,
       [&](Stopwatch* watch) {
         watch->Start();
         for (int i = 0; i < kRuns; ++i) {
           request.set_input_tensor(
               ov::Tensor(ov::element::f32, {kIds, kWidth}, embeddings.data()));
           request.infer();
           const ov::Tensor out = request.get_output_tensor();
           y.resize(out.get_size());
           std::memcpy(y.data(), out.data(), out.get_byte_size());
         }
         watch->Stop();
         return Status::Ok();
       }},
      {"cairn", kRuns,
       [&](Stopwatch* watch) -> Status {
         watch->Start();
         for (int i = 0; i < kRuns; ++i) {
           for (std::int64_t& id : ids) id = KeyAt(random() % 100'000);
           ASSIGN_OR_RETURN(const auto out,
                            followed->model()->Predict({{"x", {DType::kI64, {kIds}, ids.data()}}}));
           if (i == 0 && !y.empty() &&
               std::memcmp(out[0].data.get(), y.data(), out[0].bytes) != 0) {
             return InternalError("the results differ");
           }
         }
         watch->Stop();
         return Status::Ok();
       }},
  };
  RETURN_IF_ERROR(RunRounds(options, "serving_predict", [] { return Status::Ok(); }, contenders));
  RemoveDirectory(directory);
  return Status::Ok();
}

}  // namespace cairn::bench
