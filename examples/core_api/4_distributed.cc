// Step 4 in C++: several processes. Each rank adds to its own part, all ranks write one checkpoint
// together.
//
//   torchrun --no-python --nproc-per-node 2 4_distributed [SECONDS_A_STEP]
//
// or any other launcher that sets ranks. The checkpoint is whole or not there: it needs the files
// of every rank. Ranks of this program and of 4_distributed.py may be mixed.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>
#include <thread>

#include <cairn/core.h>

namespace {

using cairn::Status;
using cairn::Value;

Status WriteNumber(const std::string& path, std::int64_t number) {
  std::ofstream out(path);
  out << number;
  out.close();
  return out ? Status::Ok() : cairn::ResourceExhaustedError(path + " was not written");
}

Status ReadNumber(const std::string& path, std::int64_t* number) {
  std::ifstream in(path);
  return in >> *number ? Status::Ok() : cairn::CorruptionError(path + " cannot be read");
}

Status Train(cairn::core::Context* ctx, double seconds_a_step) {
  cairn::core::DistributedContext& ranks = ctx->distributed();
  const std::string mine = "/rank_" + std::to_string(ranks.rank());
  std::int64_t x = 0;
  std::int64_t start = 0;
  if (ctx->latest_checkpoint()) {
    const auto metadata = ctx->GetMetadata(*ctx->latest_checkpoint());
    if (!metadata.ok()) return metadata.status();
    start = metadata->Find("steps_completed")->AsInt();
    Status loaded = ctx->RestorePath(*ctx->latest_checkpoint(), [&](const std::string& path) {
      return ReadNumber(path + mine, &x);
    });
    if (!loaded.ok()) return loaded;
  }
  for (std::int64_t steps = start + 1; steps <= 100; ++steps) {
    x += ranks.rank() + 1;
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds_a_step));
    if (steps % 10 != 0) continue;
    const auto everyone = ranks.Gather(x);
    if (!everyone.ok()) return everyone.status();
    std::int64_t sum = 0;
    for (const Value& one : *everyone) sum += one.AsInt();
    if (ranks.is_chief()) {
      Status reported = ctx->ReportTrainingMetrics(steps, Value::Object{{"x", sum}});
      if (!reported.ok()) return reported;
    }
    const auto stored = ctx->StorePath(
        Value::Object{{"steps_completed", steps}},
        [&](const std::string& path) { return WriteNumber(path + mine, x); }, {.shard = true});
    if (!stored.ok()) return stored.status();
    if (ranks.is_chief()) {
      std::cout << steps << " steps, x = " << sum << " of " << ranks.size() << " ranks"
                << std::endl;
    }
    if (ctx->ShouldPreempt()) return Status::Ok();
  }
  return Status::Ok();
}

}  // namespace

int main(int argc, char** argv) {
  auto ctx = cairn::core::Init();
  if (!ctx.ok()) {
    std::fprintf(stderr, "%s\n", ctx.status().ToString().c_str());
    return 1;
  }
  Status trained = Train(ctx->get(), argc > 1 ? std::atof(argv[1]) : 0.1);
  const Status closed = (*ctx)->Close(trained.ok() ? 0 : 1);
  if (trained.ok()) trained = closed;
  if (!trained.ok()) std::fprintf(stderr, "%s\n", trained.ToString().c_str());
  return trained.ok() ? 0 : 1;
}
