// Trains real tables and saves full checkpoints and increments in the background, while it goes on
// training, until it is killed. Arguments and exit codes: see increment_writer.cc.

#include <cstdio>
#include <cstdlib>
#include <string>

#include "checkpoint/manager.h"
#include "checkpoint/transfer.h"
#include "tests/kill/strike.h"
#include "tests/kill/table_state.h"
#include "tests/table/real_training.h"

namespace {

int Fail(const cairn::Status& status) {
  std::fprintf(stderr, "table_writer: %s\n", status.ToString().c_str());
  return 3;
}

/// Saves what the training is now, makes the next step meanwhile, and waits.
cairn::Status SaveAndTrain(cairn::table::RealTraining* training,
                           cairn::TableCheckpoints* checkpoints) {
  cairn::SaveRequest request;
  request.step = training->steps();
  request.kind = cairn::kill::KindAt(request.step);
  if (!checkpoints->CanIncrement()) request.kind = cairn::SaveKind::kFull;
  request.tensors = {training->DenseView()};
  checkpoints->set_options({.quantize = false, .compress_keys = request.step % 2 == 0});
  auto saved = checkpoints->Save(std::move(request));
  if (!saved.ok()) return saved.status();
  if (cairn::Status status = training->Step(); !status.ok()) return status;
  auto info = saved->Wait();
  if (!info.ok()) return info.status();
  checkpoints->Settle();
  return cairn::Status::Ok();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 8) return 2;
  const std::string directory = argv[1];
  cairn::kill::Blackboard* board = cairn::kill::MapBoard(argv[2]);
  if (board == nullptr) return 2;
  const std::uint64_t seed = std::strtoull(argv[3], nullptr, 10);
  cairn::kill::Strike strike(board, argv[4], std::atol(argv[5]), std::atol(argv[6]));

  auto env = cairn::EnvironmentAt(directory, {.create = true});
  if (!env.ok()) return Fail(env.status());
  env->on_step = [&](std::string_view name) { strike.Begin(name); };
  if (std::atoi(argv[7]) != 0) {
    strike.prefix = "compact ";
    const auto compacted = cairn::CompactIn(*env, {}, {});
    if (!compacted.ok() && !compacted.status().Is(cairn::Code::kNotFound)) {
      return Fail(compacted.status());
    }
    strike.prefix.clear();
  }
  cairn::ManagerOptions options;
  options.retention.keep_last = 3;
  auto manager = cairn::OpenManager(options, *env);
  if (!manager.ok()) return Fail(manager.status());
  // Each process has other pieces than the one before.
  cairn::table::RealTraining training(seed, 1 + (*manager)->generation() % 4);
  cairn::TableCheckpoints checkpoints(manager->get(), training.tables(), training.arrays(), {});
  cairn::RestoreRequest request;
  request.into = {training.DenseTarget()};
  auto restored = checkpoints.Restore(std::move(request));
  if (!restored.ok()) return Fail(restored.status());
  board->resumed = -1;
  if (restored->has_value()) {
    if (!(*restored)->fallbacks.empty()) {
      return Fail(cairn::CorruptionError((*restored)->fallbacks.front()));
    }
    training.set_steps((*restored)->step);
    board->resumed = (*restored)->step;
    if (cairn::Status status = training.Step(); !status.ok()) return Fail(status);
  }
  for (;;) {
    const std::int64_t step = training.steps();
    if (cairn::Status saved = SaveAndTrain(&training, &checkpoints); !saved.ok()) {
      return Fail(saved);
    }
    board->acknowledged = step;
  }
}
