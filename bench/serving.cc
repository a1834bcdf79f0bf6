// Serving that follows training: lookups beside updates, the rate and the memory of updates, how
// soon a commit is served, and predictions against OpenVINO called directly. Built where libonnx
// and OpenVINO are.

#include <cairn/serving.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <openvino/openvino.hpp>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <cairn/table_checkpoint.h>

#include "base/status_macros.h"
#include "bench/benchmarks.h"
#include "bench/onnx_models.h"
#include "bench/table_workload.h"
#include "serving/pace.h"
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

  Status Delta() {
    RETURN_IF_ERROR(versions_.Begin(/*replace=*/false));
    Draw();
    RETURN_IF_ERROR(Put(kDelta));
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

/// The p99 of requests of 64 ids.
double LookupP99(const ServedRows& rows, serving::Versions* versions, std::uint64_t seed) {
  constexpr int kRequests = 50'000;
  std::mt19937_64 random(seed);
  std::vector<std::int64_t> ids(kIds);
  std::vector<float> out(kIds * kTableDim);
  std::vector<double> times;
  times.reserve(kRequests);
  for (int i = 0; i < kRequests; ++i) {
    for (std::int64_t& id : ids) id = KeyAt(random() % rows.rows());
    const double began = Now();
    const serving::Versions::Snapshot snapshot = versions->Acquire();
    snapshot.Lookup(0, ids, out.data());
    times.push_back(Now() - began);
  }
  return Quantile(&times, 0.99);
}

}  // namespace

Status RunServingLookup(const Options& options) {
  ServedRows rows(ServedRowsOf(options));
  RETURN_IF_ERROR(rows.Fill());
  std::uint64_t seed = 1;
  const std::vector<Contender> contenders = {
      {"still", kIds,
       [&](Stopwatch* watch) {
         watch->Start();
         const double p99 = LookupP99(rows, rows.versions(), ++seed);
         watch->Stop();
         watch->SetSeconds(p99);
         return Status::Ok();
       }},
      {"updating", kIds,
       [&](Stopwatch* watch) -> Status {
         std::atomic<bool> stop{false};
         std::uint64_t updates = 0;
         std::thread updater([&] {
           // As the follower does it.
           serving::Pace::StandBehind();
           serving::Pace pace({.share = 0.5, .burst = std::chrono::milliseconds(20)});
           for (; !stop; ++updates) {
             if (!rows.Delta().ok()) return;
             pace.Pause();
           }
         });
         watch->Start();
         const double p99 = LookupP99(rows, rows.versions(), ++seed);
         watch->Stop();
         stop = true;
         updater.join();
         watch->SetSeconds(p99);
         watch->Note("updates", static_cast<double>(updates));
         return Status::Ok();
       }},
  };
  return RunRounds(options, "serving_lookup", [] { return Status::Ok(); }, contenders);
}

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
  RETURN_IF_ERROR(RunRounds(options, "serving_apply", [] { return Status::Ok(); }, contenders));
  // Of keys and weights alone, without what a checkpoint has besides.
  const double delta = kDelta * (sizeof(std::int64_t) + kTableDim * sizeof(float));
  for (int i = 0; i < 4; ++i) RETURN_IF_ERROR(rows.Delta());
  rows.versions()->Collect();
  const std::uint64_t before = rows.versions()->bytes_in_use();
  RETURN_IF_ERROR(rows.versions()->Begin(/*replace=*/false));
  rows.Draw();
  RETURN_IF_ERROR(rows.Put(kDelta));
  const std::uint64_t during = rows.versions()->bytes_in_use();
  RETURN_IF_ERROR(rows.Commit());
  PrintFact("serving_memory", "delta", static_cast<double>(during - before) / delta);
  return Status::Ok();
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
    ASSIGN_OR_RETURN(made->manager_, CheckpointManager::Open({.directory = directory + "/run"}));
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
    made->model_path_ = exported.model.model_path;
    serving::ModelOptions options;
    options.export_dir = exported.path;
    options.repository = directory + "/run";
    options.inference.plugin = CAIRN_PLUGIN;
    options.on_update = [to = made.get()](const serving::UpdateEvent& event) {
      const std::lock_guard lock(to->mutex_);
      to->seen_ = event.step;
      to->seen_at_ = Now();
      to->changed_.notify_all();
    };
    ASSIGN_OR_RETURN(made->model_, serving::Model::Open(std::move(options)));
    return made;
  }

  void Change(std::mt19937_64* random) {
    std::vector<std::int64_t> keys(kDelta);
    for (std::int64_t& key : keys) key = KeyAt((*random)() % rows_);
    weight_[0] += 1;  // the graph is compiled anew
    (void)table_->Assign(keys, std::vector<float>(kDelta * dim_, static_cast<float>(step_))).ok();
  }

  /// Commits; `committed`: when that was acknowledged.
  Status Save(SaveKind kind, double* committed = nullptr) {
    SaveRequest request;
    request.step = ++step_;
    request.kind = kind;
    request.tensors = {
        {.name = "w1", .dtype = DType::kF32, .shape = {dim_, dim_}, .data = weight_.data()}};
    ASSIGN_OR_RETURN(const SaveHandle handle, checkpoints_->Save(std::move(request)));
    RETURN_IF_ERROR(handle.Wait().status());
    if (committed != nullptr) *committed = Now();
    return Status::Ok();
  }

  /// When the last save was served.
  Result<double> Served() {
    std::unique_lock lock(mutex_);
    const bool there =
        changed_.wait_for(lock, std::chrono::seconds(30), [this] { return seen_ == step_; });
    if (!there) return DeadlineExceededError("the last save was not served");
    return seen_at_;
  }

  serving::Model* model() { return model_.get(); }
  const std::string& model_path() const { return model_path_; }

 private:
  std::unique_ptr<Table> table_;
  std::unique_ptr<CheckpointManager> manager_;
  std::unique_ptr<TableCheckpoints> checkpoints_;
  std::uint64_t rows_ = 0;
  std::uint32_t dim_ = 0;
  std::int64_t step_ = 0;
  std::vector<float> weight_;
  std::string model_path_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::int64_t seen_ = -1;
  double seen_at_ = 0;
  std::unique_ptr<serving::Model> model_;
};

}  // namespace

Status RunServingFreshness(const Options& options) {
  constexpr int kIncrements = 120;
  ASSIGN_OR_RETURN(const std::string directory, FreshDirectory(options, "serving"));
  const std::uint64_t rows = std::min<std::uint64_t>(ServedRowsOf(options), 1'000'000);
  ASSIGN_OR_RETURN(auto followed, Followed::Open(directory, rows, kTableDim));
  std::mt19937_64 random(3);
  std::vector<double> times;
  double next = Now();
  for (int i = 0; i < kIncrements; ++i) {
    followed->Change(&random);
    // A new base now and then keeps cumulative increments from growing, as a session does it.
    const bool full = i % 20 == 19;
    double committed = 0;
    RETURN_IF_ERROR(followed->Save(full ? SaveKind::kFull : SaveKind::kConsecutive, &committed));
    ASSIGN_OR_RETURN(const double served, followed->Served());
    if (!full) times.push_back(std::max(0.0, served - committed));
    next += 0.25;
    if (next > Now())
      Clock::System()->Sleep(
          std::chrono::nanoseconds(static_cast<std::int64_t>(1e9 * (next - Now()))));
  }
  PrintFact("serving_freshness", "p50", Quantile(&times, 0.5));
  PrintFact("serving_freshness", "p99", Quantile(&times, 0.99));
  followed = nullptr;
  RemoveDirectory(directory);
  return Status::Ok();
}

Status RunServingPredict(const Options& options) {
  constexpr int kRuns = 500;
  ASSIGN_OR_RETURN(const std::string directory, FreshDirectory(options, "serving"));
  ASSIGN_OR_RETURN(auto followed, Followed::Open(directory, 100'000, kWidth));
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
