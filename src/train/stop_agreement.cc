#include "train/stop_agreement.h"

#include <algorithm>
#include <cmath>

#include "base/status_macros.h"
#include "checkpoint/names.h"
#include "format/sealed_json.h"

namespace cairn {
namespace {

// Signals reach the processes of a job one after the other.
constexpr double kSecondsAhead = 1.0;
constexpr double kMostStepsAhead = 1e6;
constexpr std::uint64_t kMaxBytes = 4096;
constexpr std::string_view kRecord = "last_step";

}  // namespace

Status StopAgreement::Choose(std::int64_t global_step, double seconds_per_step) {
  double ahead = 1;
  if (seconds_per_step > 0) ahead = std::ceil(kSecondsAhead / seconds_per_step);
  last_step_ = global_step + static_cast<std::int64_t>(std::clamp(ahead, 1.0, kMostStepsAhead));
  SealedJsonWriter record;
  record.Text("record", kRecord);
  record.Uint("generation", generation_);
  record.Int("step", *last_step_);
  return PublishRecord(env_, names::LastStep(generation_), record.Seal());
}

Status StopAgreement::Look() {
  const std::string name = names::LastStep(generation_);
  RETURN_IF_ERROR(env_.store->Refresh(name.substr(0, name.rfind('/'))));
  auto bytes = env_.store->Get(name, kMaxBytes);
  if (bytes.status().Is(Code::kNotFound)) return Status::Ok();
  if (!bytes.ok()) return bytes.status();
  auto members = DecodeSealedJson(*bytes);
  if (!members.ok()) return members.status().WithContext(name);
  const Value record(*std::move(members));
  const Value* kind = record.Find("record");
  const Value* step = record.Find("step");
  if (kind == nullptr || !(*kind == Value(kRecord)) || step == nullptr || !step->is_int()) {
    return CorruptionError(name + " is no record of a last step");
  }
  last_step_ = step->AsInt();
  return Status::Ok();
}

Result<bool> StopAgreement::LastStep(std::int64_t global_step, double seconds_per_step) {
  if (!asked_) asked_ = env_.clock->Now();
  if (!last_step_) {
    RETURN_IF_ERROR(chooses_ ? Choose(global_step, seconds_per_step) : Look());
  }
  if (!last_step_) {
    if (env_.clock->Now() - *asked_ < patience_) return false;
    return DeadlineExceededError(
        "a signal to end came, but trainer_0 did not say after which step to end: it got no such "
        "signal. Nothing was saved for it");
  }
  if (global_step > *last_step_) {
    return FailedPreconditionError(
        "the signal to end came after step " + std::to_string(global_step) +
        ", but trainer_0 ends after step " + std::to_string(*last_step_) +
        ": all trainers must make their steps together");
  }
  return global_step == *last_step_;
}

}  // namespace cairn
