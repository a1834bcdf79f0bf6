#include "train/train_checkpoints.h"

#include <fmt/format.h>

#include <utility>

#include "base/log.h"
#include "base/status_macros.h"
#include "checkpoint/manager.h"
#include "checkpoint/repository.h"
#include "train/lost_tables.h"

namespace cairn {
namespace {

ManagerOptions MakeManagerOptions(const TrainerOptions& options) {
  const CheckpointConfig& config = *options.checkpoint_config;
  ManagerOptions manager;
  manager.directory = config.checkpoint_dir;
  manager.job = options.job;
  manager.run = options.run;
  manager.retention.keep_last = std::nullopt;
  if (config.max_num_checkpoints) {
    manager.retention.keep_last = static_cast<std::uint64_t>(*config.max_num_checkpoints);
  }
  manager.rank = options.trainer_id;
  manager.world_size = options.num_trainers;
  manager.participant = "trainer";
  manager.naming = Naming::kSerial;
  manager.deadline = config.deadline;
  manager.join_deadline = config.join_deadline;
  manager.private_parts = options.private_parts;
  manager.takeover = options.takeover;
  return manager;
}

/// What the step function returned, as the metrics of a checkpoint.
Value MakeMetrics(const Value& metrics) {
  if (metrics.is_null()) return Value::Object{};
  if (metrics.is_object()) return metrics;
  return Value::Object{{"loss", metrics}};
}

}  // namespace

Status RefuseUnmergedParts(const Environment& env) {
  RepositoryReader reader(env.store.get(), env.rules);
  ASSIGN_OR_RETURN(const RepositoryView view, reader.Read());
  const Checkpoint* latest = view.Latest();
  if (latest == nullptr || latest->manifest->lineage.Find("private") == nullptr) {
    return Status::Ok();
  }
  return FailedPreconditionError(
      "\"" + env.store->Describe() + "\" holds one trainer's parts only (" + latest->directory +
      "); bring the parts of all trainers together with `cairn checkpoint merge` and start each "
      "trainer on a copy of the merged directory");
}

Result<std::unique_ptr<TrainCheckpoints>> TrainCheckpoints::Open(const TrainerOptions& options,
                                                                 const Environment& env) {
  auto checkpoints = std::unique_ptr<TrainCheckpoints>(new TrainCheckpoints(options, env));
  for (const MutableTensor& variable : options.model) {
    const bool own = variable.shard.has_value() || variable.group != TensorGroup::kModel;
    if (options.trainer_id != 0 && !own) continue;
    Tensor tensor;
    tensor.name = variable.name;
    tensor.dtype = variable.dtype;
    tensor.shape = variable.shape;
    tensor.data = variable.data;
    tensor.shard = variable.shard;
    tensor.group = variable.group;
    checkpoints->own_tensors_.push_back(std::move(tensor));
  }
  ASSIGN_OR_RETURN(checkpoints->manager_, OpenManager(MakeManagerOptions(options), env));
  checkpoints->tables_ = std::make_unique<TableCheckpoints>(
      checkpoints->manager_.get(), options.tables, options.arrays, TableCheckpoints::Options{});
  return checkpoints;
}

Result<std::optional<TrainCheckpoints::Resumed>> TrainCheckpoints::Restore() {
  if (options_.private_parts && options_.num_trainers > 1) {
    RETURN_IF_ERROR(RefuseUnmergedParts(env_));
  }
  RestoreRequest request{.into = options_.model, .strict = options_.strict};
  // Of several trainers others may have them.
  const bool alone =
      options_.num_trainers == 1 && options_.tables.empty() && options_.arrays.empty();
  if (alone && options_.strict) {
    request.prepare = [](const Restored& head, RestoreRequest*) { return RefuseLostTables(head); };
  }
  ASSIGN_OR_RETURN(auto restored, tables_->Restore(std::move(request)));
  if (!restored) return std::optional<Resumed>();
  for (const auto& [name, reason] : restored->skipped) {
    LogWarning(fmt::format("resume: \"{}\" was not restored: {}", name, reason));
  }
  Resumed resumed;
  resumed.info = restored->info;
  resumed.skipped = std::move(restored->skipped);
  auto state = DecodeTrainerState(restored->state_files);
  if (!state.ok()) return state.status().WithContext("resume from \"" + resumed.info.path + "\"");
  resumed.state = *std::move(state);
  return std::optional(std::move(resumed));
}

Status TrainCheckpoints::RestoreRows(const std::string& id) {
  auto restored = tables_->Restore({.id = id, .strict = false}, {.strict = options_.strict});
  return restored.status();
}

Status TrainCheckpoints::Save(const TrainerState& state, const Value& metrics,
                              double* stall_seconds) {
  SaveRequest request;
  request.step = state.progress.global_step;
  request.tensors = own_tensors_;
  request.counters = Value::Object{{"epoch", state.progress.epoch},
                                   {"step", state.progress.next_step - 1},
                                   {"global_step", state.progress.global_step}};
  request.metrics = MakeMetrics(metrics);
  ASSIGN_OR_RETURN(request.state_files, EncodeTrainerState(state));
  const Clock::Duration begun = env_.clock->Now();
  in_flight_.reset();  // Save waits for it, and reports its failure
  ASSIGN_OR_RETURN(in_flight_, tables_->Save(std::move(request)));
  *stall_seconds = std::chrono::duration<double>(env_.clock->Now() - begun).count();
  return Status::Ok();
}

Status TrainCheckpoints::Check() {
  if (!in_flight_ || !in_flight_->Done()) return Status::Ok();
  tables_->Settle();
  auto info = std::exchange(in_flight_, std::nullopt)->Wait();
  if (!info.ok()) return info.status();
  saved_ = *std::move(info);
  return Status::Ok();
}

Status TrainCheckpoints::Wait() {
  tables_->Wait();
  RETURN_IF_ERROR(manager_->WaitAll());
  return Check();
}

Status TrainCheckpoints::Close() {
  tables_->Wait();
  return manager_->Close();
}

}  // namespace cairn
