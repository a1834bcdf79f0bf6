#include "train/save_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

namespace cairn {
namespace {

constexpr double kMostOfTheTime = 0.05;
// Fewer saves, or less time, say nothing yet: the first save also makes directories and memory.
constexpr std::int64_t kFewestSaves = 3;
constexpr double kLeastSeconds = 1.0;

double Seconds(Clock::Duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

Status ValidateCheckpointConfig(const CheckpointConfig& config, int num_trainers) {
  if (config.checkpoint_dir.empty()) return InvalidArgumentError("checkpoint_dir is empty");
  if (config.max_num_checkpoints && *config.max_num_checkpoints < 1) {
    return InvalidArgumentError(
        fmt::format("max_num_checkpoints must be at least 1, or none to keep all; it is {}",
                    *config.max_num_checkpoints));
  }
  if (config.epoch_interval < 1) {
    return InvalidArgumentError(
        fmt::format("epoch_interval must be at least 1; it is {}", config.epoch_interval));
  }
  if (config.step_interval < 1) {
    return InvalidArgumentError(
        fmt::format("step_interval must be at least 1; it is {}", config.step_interval));
  }
  if (!config.save_seconds) return Status::Ok();
  if (!std::isfinite(*config.save_seconds) || *config.save_seconds <= 0) {
    return InvalidArgumentError(
        fmt::format("save_seconds must be above 0; it is {}", *config.save_seconds));
  }
  if (num_trainers > 1) {
    return InvalidArgumentError(
        "save_seconds is for a single trainer: the clocks of several would not agree on the step; "
        "use step_interval");
  }
  return Status::Ok();
}

void SaveSchedule::Start(Clock::Duration now) {
  started_ = now;
  last_save_ = now;
  steps_ = 0;
  saves_ = 0;
  stall_seconds_ = 0;
}

bool SaveSchedule::Due(std::int64_t epoch, std::int64_t step, Clock::Duration now) {
  if (steps_ > 0 && epoch != epoch_) epoch_steps_ = std::max(epoch_steps_, last_step_ + 1);
  epoch_ = epoch;
  last_step_ = step;
  ++steps_;
  if (epoch % config_.epoch_interval == 0 && step % config_.step_interval == 0) return true;
  return config_.save_seconds && Seconds(now - last_save_) >= *config_.save_seconds;
}

void SaveSchedule::Saved(Clock::Duration now, double stall_seconds) {
  last_save_ = now;
  ++saves_;
  stall_seconds_ += stall_seconds;
}

std::optional<std::string> SaveSchedule::CostWarning(Clock::Duration now) {
  const double elapsed = Seconds(now - started_);
  if (warned_ || saves_ < kFewestSaves || elapsed < kLeastSeconds ||
      stall_seconds_ <= kMostOfTheTime * elapsed) {
    return std::nullopt;
  }
  warned_ = true;
  const double one_save = stall_seconds_ / static_cast<double>(saves_);
  // A stall of s after every n seconds of training is a share s / (n + s) of the time.
  const double seconds_between = one_save * (1 - kMostOfTheTime) / kMostOfTheTime;
  std::string remedy;
  if (config_.save_seconds && *config_.save_seconds < seconds_between) {
    remedy = fmt::format("save_seconds={:.0f}", std::ceil(seconds_between + one_save));
  }
  const double one_step = (elapsed - stall_seconds_) / static_cast<double>(steps_);
  const double interval = one_step > 0 ? std::ceil(seconds_between / one_step) : 0;
  const auto longer = [&](std::string_view name, double than, double value) {
    if (value <= than) return;
    remedy += fmt::format("{}{}={:.0f}", remedy.empty() ? "" : " and ", name, value);
  };
  const auto epoch_steps = static_cast<double>(epoch_steps_);
  const auto step_interval = static_cast<double>(config_.step_interval);
  if (epoch_steps_ > 0 && interval > epoch_steps) {
    // Step 0 of an epoch is always saved: what is longer than an epoch is counted in epochs.
    longer("epoch_interval", static_cast<double>(config_.epoch_interval),
           std::ceil(interval / epoch_steps));
    longer("step_interval", step_interval, epoch_steps);
  } else {
    longer("step_interval", step_interval, interval);
  }
  return fmt::format(
      "saving held the training up for {:.2f} s of {:.2f} s ({:.1f} %, {} saves); {} would keep it "
      "under {:.0f} %",
      stall_seconds_, elapsed, 100 * stall_seconds_ / elapsed, saves_,
      remedy.empty() ? "a longer interval" : remedy, 100 * kMostOfTheTime);
}

}  // namespace cairn
