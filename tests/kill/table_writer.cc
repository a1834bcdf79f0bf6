// Trains real tables and saves full checkpoints and increments in the background, while it goes on
// training, until it is killed. Arguments: see doomed_writer.h. Exit codes: 0 never, 3 an error.

#include <cstdio>
#include <string>

#include "checkpoint/manager.h"
#include "tests/kill/doomed_writer.h"
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
  auto writer = cairn::kill::DoomedWriter::Open(argc, argv);
  if (!writer.ok()) return Fail(writer.status());
  cairn::CheckpointManager* manager = writer->manager.get();
  // Each process has other pieces than the one before.
  cairn::table::RealTraining training(writer->seed, 1 + manager->generation() % 4);
  cairn::TableCheckpoints checkpoints(manager, training.tables(), training.arrays(), {});
  cairn::RestoreRequest request;
  request.into = {training.DenseTarget()};
  auto restored = checkpoints.Restore(std::move(request));
  if (!restored.ok()) return Fail(restored.status());
  writer->board->resumed = -1;
  if (restored->has_value()) {
    if (!(*restored)->fallbacks.empty()) {
      return Fail(cairn::CorruptionError((*restored)->fallbacks.front()));
    }
    training.set_steps((*restored)->step);
    writer->board->resumed = (*restored)->step;
    if (cairn::Status status = training.Step(); !status.ok()) return Fail(status);
  }
  for (;;) {
    const std::int64_t step = training.steps();
    if (cairn::Status saved = SaveAndTrain(&training, &checkpoints); !saved.ok()) {
      return Fail(saved);
    }
    writer->board->acknowledged = step;
  }
}
