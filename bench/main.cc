// cairn_bench NAME --directory DIR [options]: one benchmark, figures as lines of JSON on standard
// output. bench/run.py runs them all and compares them with their targets.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <map>

#include "base/status_macros.h"
#include "bench/benchmarks.h"

namespace cairn::bench {

Result<std::string> FreshDirectory(const Options& options, const std::string& name) {
  const std::filesystem::path path = std::filesystem::path(options.directory) / name;
  std::error_code error;
  std::filesystem::remove_all(path, error);
  std::filesystem::create_directories(path, error);
  if (error) return InternalError("make " + path.string() + ": " + error.message());
  return path.string();
}

void RemoveDirectory(const std::string& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
}

std::uint64_t MemoryToTouch(const Options& options) {
  return std::clamp<std::uint64_t>(options.bytes * 3 / 2, 64u << 20, 4ull << 30);
}

Status SaveDurably(CheckpointManager* manager, const State& state, std::int64_t step) {
  SaveRequest request;
  request.step = step;
  request.tensors = state.Views();
  request.blocking = true;
  return manager->Save(std::move(request)).status();
}

}  // namespace cairn::bench

int main(int argc, char** argv) {
  using cairn::bench::Options;
  const std::map<std::string, cairn::Status (*)(const Options&)> benchmarks = {
      {"raw", cairn::bench::RunRaw},
      {"save", cairn::bench::RunSave},
      {"first", cairn::bench::RunFirstSave},
      {"blocked", cairn::bench::RunBlocked},
      {"restore", cairn::bench::RunRestore},
      {"small", cairn::bench::RunSmall},
      {"memory", cairn::bench::RunMemory},
      {"names", cairn::bench::RunNames},
      {"unchanged", cairn::bench::RunUnchanged},
      {"matmul", cairn::bench::RunMatmul},
      {"contender", cairn::bench::RunContender},
      {"table_updates", cairn::bench::RunTableUpdates},
      {"table_memory", cairn::bench::RunTableMemory},
      {"table_stall", cairn::bench::RunTableStall},
      {"table_latency", cairn::bench::RunTableLatency},
      {"table_increment", cairn::bench::RunTableIncrement},
      {"table_restore", cairn::bench::RunTableRestore},
      {"load_vars", cairn::bench::RunLoadVars},
      {"launch", cairn::bench::RunLaunch},
      {"preempt", cairn::bench::RunPreempt},
      {"reports", cairn::bench::RunReports},
      {"pause_told", cairn::bench::RunPauseTold},
#ifdef CAIRN_BENCH_INFERENCE
      {"prune", cairn::bench::RunPrune},
      {"predict", cairn::bench::RunPredict},
      {"serving_lookup", cairn::bench::RunServingLookup},
      {"serving_predict_asked", cairn::bench::RunServingPredictAsked},
      {"serving_apply", cairn::bench::RunServingApply},
      {"serving_memory", cairn::bench::RunServingMemory},
      {"serving_freshness", cairn::bench::RunServingFreshness},
      {"serving_predict", cairn::bench::RunServingPredict},
#endif
  };
  CLI::App app("Measures the checkpoint engine against baselines in the same run");
  Options options;
  std::string name;
  app.add_option("name", name, "which benchmark")->required();
  app.add_option("--directory", options.directory, "a directory on the disk to measure")
      ->required();
  app.add_option("--bytes", options.bytes, "size of the state");
  app.add_option("--rounds", options.rounds, "undisturbed rounds");
  app.add_option("--max-rounds", options.max_rounds, "give up after so many");
  app.add_option("--max-others", options.max_others, "cores that others may use");
  app.add_option("--threads", options.threads, "that copy; 0: all cores");
  app.add_option("--variant", options.variant, "of benchmarks that have several");
  CLI11_PARSE(app, argc, argv);
  const auto it = benchmarks.find(name);
  if (it == benchmarks.end()) {
    fmt::print(stderr, "cairn_bench: there is no benchmark \"{}\"\n", name);
    return 2;
  }
  const cairn::Status status = it->second(options);
  if (status.ok()) return 0;
  fmt::print(stderr, "cairn_bench {}: {}\n", name, status.ToString());
  return 1;
}
