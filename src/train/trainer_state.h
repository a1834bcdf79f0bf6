#pragma once

#include <cstdint>
#include <map>
#include <string>

#include <cairn/status.h>
#include <cairn/value.h>

namespace cairn {

/// How far a training is. Counts from 0; `next_step` is within the epoch.
struct TrainProgress {
  std::int64_t epoch = 0;
  std::int64_t next_step = 0;
  std::int64_t global_step = 0;  // completed steps
  bool epoch_complete = false;   // the epoch's end was reached, and its event given

  friend bool operator==(const TrainProgress&, const TrainProgress&) = default;
};

/// One trainer's own arguments, as they stand in a checkpoint.
struct TrainerState {
  TrainProgress progress;
  int trainer_id = 0;
  int num_trainers = 1;
  Value reader;                                   // null: the reader cannot seek
  std::map<std::string, Value> values;            // registered by the program
  std::map<std::string, Value> epoch_generators;  // of these, generators as the epoch found them
};

/// The files trainer_<id>/epoch_id, step_id (the last completed ones, as text) and state.json.
/// Doubles come back with their exact bits, infinities and NaNs too. InvalidArgument names a value
/// that JSON cannot hold.
Result<std::map<std::string, std::string>> EncodeTrainerState(const TrainerState& state);

/// FailedPrecondition: not a checkpoint of a Trainer. Corruption: damaged.
Result<TrainerState> DecodeTrainerState(const std::map<std::string, std::string>& files);

}  // namespace cairn
