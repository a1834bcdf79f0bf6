#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <cairn/status.h>
#include <cairn/trainer.h>

#include "base/clock.h"

namespace cairn {

Status ValidateCheckpointConfig(const CheckpointConfig& config, int num_trainers);

/// After which steps a save is due, and whether saving costs too much. Time is handed in. For one
/// thread.
class SaveSchedule {
 public:
  explicit SaveSchedule(const CheckpointConfig& config) : config_(config) {}

  /// The training (goes on) at `now`.
  void Start(Clock::Duration now);
  /// The step was completed at `now`: save?
  bool Due(std::int64_t epoch, std::int64_t step, Clock::Duration now);
  /// A save was made, and held the training up for `stall`.
  void Saved(Clock::Duration now, double stall_seconds);

  double stall_seconds() const { return stall_seconds_; }
  /// A warning, once, when saving has held up more than a twentieth of the time since Start: with
  /// the figure, and the interval that would be right.
  std::optional<std::string> CostWarning(Clock::Duration now);

 private:
  const CheckpointConfig config_;
  Clock::Duration started_{};
  Clock::Duration last_save_{};
  std::int64_t steps_ = 0;
  std::int64_t epoch_ = 0;        // the last step's …
  std::int64_t last_step_ = 0;    // … and its number there
  std::int64_t epoch_steps_ = 0;  // of the longest epoch that ended; 0: none did
  std::int64_t saves_ = 0;
  double stall_seconds_ = 0;
  bool warned_ = false;
};

}  // namespace cairn
