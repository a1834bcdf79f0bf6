// Step 2 in C++: checkpoints, so that the training can be paused, killed, resumed, and continued as
// new.
//
//   2_checkpoints [SECONDS_A_STEP]       stop it with Ctrl-C or kill -9, and start it again
//
// A trial that is paused or killed goes on at its step. A new trial that begins with the checkpoint
// of another one keeps the weight and counts its steps from 0.

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

struct State {
  std::int64_t x = 0;
  std::int64_t steps = 0;
  std::string trial;
};

Status SaveState(const State& state, const std::string& directory) {
  std::ofstream out(directory + "/checkpoint");
  out << state.x << ' ' << state.steps << ' ' << state.trial << '\n';
  out.close();
  return out ? Status::Ok() : cairn::ResourceExhaustedError("the checkpoint was not written");
}

Status LoadState(const std::string& directory, State* state) {
  State stored;
  std::ifstream in(directory + "/checkpoint");
  if (!(in >> stored.x >> stored.steps >> stored.trial)) {
    return cairn::CorruptionError("the checkpoint cannot be read");
  }
  state->x = stored.x;
  // Another trial's: its weight, and steps of our own.
  state->steps = stored.trial == state->trial ? stored.steps : 0;
  return Status::Ok();
}

Status Train(cairn::core::Context* ctx, double seconds_a_step) {
  State state;
  state.trial = ctx->info() ? ctx->info()->trial.trial_id : "local";
  if (ctx->latest_checkpoint()) {
    Status loaded = ctx->RestorePath(*ctx->latest_checkpoint(), [&](const std::string& path) {
      return LoadState(path, &state);
    });
    if (!loaded.ok()) return loaded;
  }
  while (state.steps < 100) {
    ++state.x;
    ++state.steps;
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds_a_step));
    if (state.steps % 10 != 0) continue;
    Status reported = ctx->ReportTrainingMetrics(state.steps, Value::Object{{"x", state.x}});
    if (!reported.ok()) return reported;
    const auto stored =
        ctx->StorePath(Value::Object{{"steps_completed", state.steps}},
                       [&](const std::string& path) { return SaveState(state, path); });
    if (!stored.ok()) return stored.status();
    std::cout << state.steps << " steps, x = " << state.x << std::endl;
    if (ctx->ShouldPreempt()) return Status::Ok();
  }
  return ctx->ReportValidationMetrics(100, Value::Object{{"x", state.x}});
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
