// Cuts of sparse tables: how long they hold updates up, what they cost while they are written, how
// large and how fast they are.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "base/status_macros.h"
#include "bench/benchmarks.h"
#include "bench/machine.h"
#include "bench/raw_io.h"
#include "bench/table_workload.h"

namespace cairn::bench {
namespace {

/// A table with rows of which a sixth changed since a full that was committed.
class ChangedTable {
 public:
  static Result<std::unique_ptr<ChangedTable>> Make(std::int64_t rows) {
    auto out = std::unique_ptr<ChangedTable>(new ChangedTable(rows));
    ASSIGN_OR_RETURN(out->table_, Table::Make(TableWorkload::Options()));
    RETURN_IF_ERROR(out->work_.Fill(out->table_.get()));
    ASSIGN_OR_RETURN(auto cut, out->Cut({}));
    cut->Committed();
    return out;
  }

  Table* table() { return table_.get(); }
  TableWorkload* work() { return &work_; }

  Status ChangeSome() {
    const std::int64_t batches =
        std::max<std::int64_t>(work_.rows() / 6 / static_cast<std::int64_t>(kTableBatch), 1);
    for (std::int64_t i = 0; i < batches; ++i) RETURN_IF_ERROR(work_.Step(table_.get()));
    return Status::Ok();
  }

  Result<std::unique_ptr<TableCut>> Cut(const CutRequest& request,
                                        const std::function<Status()>& also = {}) {
    Table* const tables[] = {table_.get()};
    ASSIGN_OR_RETURN(auto cuts, CutTables(tables, request, also));
    return std::move(cuts[0]);
  }

  /// Without an engine, saves an increment through the manager: its bytes are the same.
  Result<double> Save(CheckpointManager* manager, std::int64_t step, const CutRequest& request) {
    ASSIGN_OR_RETURN(auto cut, Cut(request));
    SaveRequest save;
    save.step = step;
    save.tensors = cut->Tensors();
    const double began = Now();
    ASSIGN_OR_RETURN(const SaveHandle handle, manager->Save(std::move(save)));
    ASSIGN_OR_RETURN(const CheckpointInfo info, handle.Wait());
    cut->Committed();
    bytes_ = info.bytes;
    rows_ = cut->summary().rows;
    return Now() - began;
  }
  std::uint64_t bytes() const { return bytes_; }
  std::uint64_t rows() const { return rows_; }

 private:
  explicit ChangedTable(std::int64_t rows) : work_(rows, 5) {}
  TableWorkload work_;
  std::unique_ptr<Table> table_;
  std::uint64_t bytes_ = 0;
  std::uint64_t rows_ = 0;
};

Result<std::unique_ptr<CheckpointManager>> OpenManager(const std::string& directory) {
  ManagerOptions options;
  options.directory = directory + "/repository";
  options.retention.keep_last = 1;
  return CheckpointManager::Open(std::move(options));
}

double Percentile(std::vector<double> values, double p) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(p * static_cast<double>(values.size() - 1))];
}

}  // namespace

/// The stall: from the moment at which the gate is asked for to the moment at which it is open.
Status RunTableStall(const Options& options) {
  ASSIGN_OR_RETURN(const auto changed, ChangedTable::Make(TableRows(options)));
  std::vector<std::byte> copy;
  const std::vector<Contender> contenders = {
      {"cut", 0,
       [&](Stopwatch* watch) -> Status {
         watch->Start();
         ASSIGN_OR_RETURN(const auto cut, changed->Cut({.kind = CutKind::kCumulative}));
         watch->Stop();
         watch->Note("rows", static_cast<double>(cut->summary().rows));
         cut->Committed();
         return Status::Ok();
       }},
      {"copy", 0,
       [&](Stopwatch* watch) -> Status {
         // The same rows copied while nobody updates, as a table without epochs would have to.
         ASSIGN_OR_RETURN(const auto cut, changed->Cut({.kind = CutKind::kConsecutive}));
         copy.resize(cut->summary().rows * (2 * kTableDim * sizeof(float) + 24));
         std::memset(copy.data(), 1, copy.size());
         std::byte* to = copy.data();
         watch->Start();
         for (const Tensor& tensor : cut->Tensors()) {
           if (tensor.source == nullptr) continue;
           std::uint64_t bytes = static_cast<std::uint64_t>(DTypeBits(tensor.dtype)) / 8;
           for (const std::uint64_t d : tensor.shape) bytes *= d;
           if (bytes == 0) continue;
           RETURN_IF_ERROR(tensor.source->Fill(0, {to, bytes}));
           to += bytes;
         }
         watch->Stop();
         watch->Note("rows", static_cast<double>(cut->summary().rows));
         cut->Committed();
         return Status::Ok();
       }},
  };
  return RunRounds(options, "table_stall", [&] { return changed->ChangeSome(); }, contenders);
}

/// Batch times of one updater in the 100 ms around cuts, and far from them.
Status RunTableLatency(const Options& options) {
  ASSIGN_OR_RETURN(const auto changed, ChangedTable::Make(TableRows(options)));
  std::atomic<double> last_cut{0};
  std::atomic<bool> stop{false};
  struct Sample {
    double at;
    double seconds;
  };
  std::vector<Sample> samples;
  std::vector<double> cut_times;
  Status updated;
  {
    const std::jthread updater([&] {
      while (!stop.load(std::memory_order_relaxed) && updated.ok()) {
        const double began = Now();
        updated = changed->work()->Step(changed->table());
        samples.push_back({began, Now() - began});
      }
    });
    for (int i = 0; i < 10 * options.rounds; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      cut_times.push_back(Now());
      auto cut = changed->Cut({.kind = CutKind::kCumulative});
      if (cut.ok()) (*cut)->Committed();
    }
    stop.store(true);
  }
  RETURN_IF_ERROR(updated);
  std::vector<double> near;
  std::vector<double> far;
  for (const Sample& sample : samples) {
    const auto next = std::lower_bound(cut_times.begin(), cut_times.end(), sample.at - 0.05);
    const bool is_near = next != cut_times.end() && *next < sample.at + sample.seconds + 0.05;
    (is_near ? near : far).push_back(sample.seconds);
  }
  PrintFact("table_latency", "near", Percentile(near, 0.999));
  PrintFact("table_latency", "far", Percentile(far, 0.999));
  return Status::Ok();
}

/// One updater beside the writer of an increment; and the rate of durable increments.
Status RunTableIncrement(const Options& options) {
  ASSIGN_OR_RETURN(const auto changed, ChangedTable::Make(TableRows(options)));
  ASSIGN_OR_RETURN(const std::string directory, FreshDirectory(options, "table"));
  ASSIGN_OR_RETURN(const auto manager, OpenManager(directory));
  std::int64_t step = 0;
  RETURN_IF_ERROR(changed->ChangeSome());
  RETURN_IF_ERROR(changed->Save(manager.get(), ++step, {.kind = CutKind::kConsecutive}).status());
  const auto row_bytes = static_cast<double>(2 * kTableDim * sizeof(float) + 24);
  PrintFact(
      "table_bytes", "exact",
      static_cast<double>(changed->bytes()) / static_cast<double>(changed->rows()) / row_bytes);
  RETURN_IF_ERROR(changed->ChangeSome());
  RETURN_IF_ERROR(
      changed->Save(manager.get(), ++step, {.kind = CutKind::kConsecutive, .quantize = true})
          .status());
  PrintFact(
      "table_bytes", "quantized",
      static_cast<double>(changed->bytes()) / static_cast<double>(changed->rows()) / row_bytes);
  State raw({{"raw", {changed->rows() * static_cast<std::uint64_t>(row_bytes) / 4}}});
  const std::string path = directory + "/raw";
  const auto write = [&](Stopwatch* watch, bool direct) {
    watch->Start();
    const Status wrote = direct ? WriteDirect(path, raw.Contiguous(), /*overwrite=*/false)
                                : WriteBuffered(path, raw.Contiguous(), /*overwrite=*/false);
    watch->Stop();
    std::remove(path.c_str());
    return wrote;
  };
  const std::vector<Contender> contenders = {
      {"raw direct", raw.bytes(), [&](Stopwatch* watch) { return write(watch, true); }},
      {"raw buffered", raw.bytes(), [&](Stopwatch* watch) { return write(watch, false); }},
      {"increment", raw.bytes(),
       [&](Stopwatch* watch) -> Status {
         RETURN_IF_ERROR(changed->ChangeSome());
         watch->Start();
         ASSIGN_OR_RETURN(const double seconds,
                          changed->Save(manager.get(), ++step, {.kind = CutKind::kConsecutive}));
         watch->Stop();
         // Another number of rows each time: as if they were as many as the raw bytes.
         watch->SetSeconds(seconds * static_cast<double>(raw.bytes()) /
                           (static_cast<double>(changed->rows()) * row_bytes));
         return Status::Ok();
       }},
      {"beside", 0,
       [&](Stopwatch* watch) -> Status {
         RETURN_IF_ERROR(changed->ChangeSome());
         std::atomic<bool> stop{false};
         std::atomic<std::uint64_t> batches{0};
         Status updated;
         const std::jthread updater([&] {
           TableWorkload work(changed->work()->rows(), 77);
           while (!stop.load(std::memory_order_relaxed) && updated.ok()) {
             updated = work.Step(changed->table());
             batches.fetch_add(1, std::memory_order_relaxed);
           }
         });
         double began = Now();
         std::this_thread::sleep_for(std::chrono::milliseconds(1000));
         const double before = static_cast<double>(batches.load()) / (Now() - began);
         const std::uint64_t seen = batches.load();
         began = Now();
         watch->Start();
         const Status saved =
             changed->Save(manager.get(), ++step, {.kind = CutKind::kConsecutive}).status();
         watch->Stop();
         const double during = static_cast<double>(batches.load() - seen) / (Now() - began);
         stop.store(true);
         watch->Note("before", before);
         watch->Note("during", during);
         return saved;
       }},
  };
  const auto prepare = [&] {
    Settle();
    TouchAndFree(MemoryToTouch(options));
    return Status::Ok();
  };
  RETURN_IF_ERROR(RunRounds(options, "table_increment", prepare, contenders));
  RETURN_IF_ERROR(manager->Close());
  RemoveDirectory(directory);
  return Status::Ok();
}

}  // namespace cairn::bench
