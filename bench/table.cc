// Updates of sparse tables: against a plain map, on two threads, and what tracking costs.
#if __has_include(<boost/unordered/unordered_flat_map.hpp>)
#include <boost/unordered/unordered_flat_map.hpp>
#else
#include <unordered_map>
#endif

#include <algorithm>
#include <cstring>
#include <optional>
#include <thread>
#include <vector>

#include "base/status_macros.h"
#include "bench/benchmarks.h"
#include "bench/machine.h"
#include "bench/table_workload.h"
#include "table/row_store.h"

namespace cairn::bench {
namespace {

constexpr int kBatches = 200;  // of a measurement

/// Batches in which a row is touched ten times on average: what an increment every 20 seconds sees.
int EpochBatches(std::int64_t rows) {
  return std::max(kBatches, static_cast<int>(10 * rows / static_cast<std::int64_t>(kTableBatch)));
}

/// What one would write without a table: a map from keys to rows of one vector.
class PlainTable {
 public:
  explicit PlainTable(std::int64_t rows) : optimizer_(TableWorkload::Options().optimizer) {
    index_.reserve(static_cast<std::size_t>(rows));
    rows_.resize(static_cast<std::size_t>(rows) * kRow, 0.1F);
    for (std::int64_t i = 0; i < rows; ++i) {
      index_.emplace(TableWorkload::KeyOf(i), static_cast<std::uint32_t>(i));
    }
  }

  void Step(TableWorkload* work) {
    work->DrawIds();
    for (std::size_t i = 0; i < kTableBatch; ++i) {
      std::memcpy(&work->values()[i * kTableDim], Row(work->ids()[i]), kTableDim * sizeof(float));
    }
    for (std::size_t i = 0; i < kTableBatch; ++i) {
      float* row = Row(work->ids()[i]);
      optimizer_->Apply(row, row + kTableDim, &work->gradients()[i * kTableDim], kTableDim, 0.01F);
    }
  }

 private:
  static constexpr std::size_t kRow = 2 * kTableDim;
  float* Row(std::int64_t key) { return &rows_[index_.find(key)->second * kRow]; }

#if __has_include(<boost/unordered/unordered_flat_map.hpp>)
  boost::unordered_flat_map<std::int64_t, std::uint32_t> index_;
#else
  std::unordered_map<std::int64_t, std::uint32_t> index_;
#endif
  std::vector<float> rows_;
  std::shared_ptr<const Optimizer> optimizer_;
};

/// A table with rows, and a full that was committed: changes are tracked.
Result<std::unique_ptr<Table>> TrackedTable(std::int64_t rows) {
  ASSIGN_OR_RETURN(auto table, Table::Make(TableWorkload::Options()));
  RETURN_IF_ERROR(TableWorkload(rows, 1).Fill(table.get()));
  Table* const tables[] = {table.get()};
  ASSIGN_OR_RETURN(auto cuts, CutTables(tables, {}));
  cuts[0]->Committed();
  return table;
}

Status RunBatches(Table* table, TableWorkload* work, int batches = kBatches) {
  for (int i = 0; i < batches; ++i) RETURN_IF_ERROR(work->Step(table));
  return Status::Ok();
}

}  // namespace

std::int64_t TableRows(const Options& options) {
  return static_cast<std::int64_t>(options.bytes / (2 * kTableDim * sizeof(float) + 24));
}

Status RunTableUpdates(const Options& options) {
  const std::int64_t rows = TableRows(options);
  const int batches = options.variant == "tracking" ? EpochBatches(rows) : kBatches;
  ASSIGN_OR_RETURN(const auto table, TrackedTable(rows));
  std::vector<Contender> contenders;
  TableWorkload work(rows, 2);
  TableWorkload other(rows, 3);
  std::optional<PlainTable> plain;
  contenders.push_back({table::kTracking ? "cairn" : "untracked", 0, [&](Stopwatch* watch) {
                          watch->Start();
                          const Status status = RunBatches(table.get(), &work, batches);
                          watch->Stop();
                          return status;
                        }});
  if (options.variant != "tracking") {
    plain.emplace(rows);
    contenders.push_back({"plain", 0, [&](Stopwatch* watch) {
                            watch->Start();
                            for (int i = 0; i < kBatches; ++i) plain->Step(&other);
                            watch->Stop();
                            return Status::Ok();
                          }});
    contenders.push_back({"two threads", 0, [&](Stopwatch* watch) {
                            Status second;
                            watch->Start();
                            {
                              const std::jthread thread(
                                  [&] { second = RunBatches(table.get(), &other); });
                              RETURN_IF_ERROR(RunBatches(table.get(), &work));
                            }
                            watch->Stop();
                            return second;
                          }});
  }
  // Each measurement begins with a new epoch: every row is touched for the first time once more.
  const auto prepare = [&]() -> Status {
    // More than the lists of changed rows take: pages that the host took back are nobody's cost.
    TouchAndFree(options.bytes / 4);
    Table* const tables[] = {table.get()};
    ASSIGN_OR_RETURN(auto cuts, CutTables(tables, {.kind = CutKind::kCumulative}));
    cuts[0]->Committed();
    return Status::Ok();
  };
  return RunRounds(options, "table_updates", prepare, contenders);
}

Status RunTableMemory(const Options& options) {
  const std::int64_t rows = TableRows(options);
  const std::uint64_t before = ResidentMemory();
  ASSIGN_OR_RETURN(auto table, Table::Make(TableWorkload::Options()));
  RETURN_IF_ERROR(TableWorkload(rows, 1).Fill(table.get()));
  const double per_row = static_cast<double>(ResidentMemory() - before) / static_cast<double>(rows);
  // Weights, slots, key, frequency and version.
  PrintFact("table_memory", "overhead", per_row - (2 * kTableDim * sizeof(float) + 8 + 8 + 8));
  PrintFact("table_memory", "rows", static_cast<double>(rows));
  return Status::Ok();
}

}  // namespace cairn::bench
