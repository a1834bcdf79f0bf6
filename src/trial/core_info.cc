#include <charconv>
#include <cstdlib>
#include <string>

#include <cairn/core.h>

#include "format/json.h"

namespace cairn::core {
namespace {

std::string Env(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

Result<std::optional<ClusterInfo>> GetClusterInfo() {
  const std::string url = Env("CAIRN_TRIAL_URL");
  const std::string trial = Env("CAIRN_TRIAL_ID");
  if (url.empty() || trial.empty()) return std::optional<ClusterInfo>();
  ClusterInfo info;
  info.master_url = url;
  info.storage = Env("CAIRN_STORAGE");
  info.trial.trial_id = trial;
  info.trial.experiment_id = Env("CAIRN_EXPERIMENT_ID");
  const std::string run = Env("CAIRN_RUN_ID");
  const char* end = run.data() + run.size();
  const auto [stopped, error] = std::from_chars(run.data(), end, info.trial.run_id);
  if (error != std::errc() || stopped != end) {
    return InvalidArgumentError("CAIRN_RUN_ID is no number: " + QuoteForMessage(run));
  }
  if (const std::string hparams = Env("CAIRN_HPARAMS"); !hparams.empty()) {
    auto value = DecodeJson(hparams);
    if (!value.ok() || !value->is_object()) {
      return InvalidArgumentError("CAIRN_HPARAMS is no JSON object: " + QuoteForMessage(hparams));
    }
    info.trial.hparams = *std::move(value);
  }
  if (const std::string latest = Env("CAIRN_LATEST_CHECKPOINT"); !latest.empty()) {
    info.latest_checkpoint = latest;
  }
  info.trial.resume_mode = Env("CAIRN_RESUME_MODE");
  if (info.trial.resume_mode.empty()) {
    info.trial.resume_mode = info.latest_checkpoint ? "resume" : "fresh";
  }
  return std::optional<ClusterInfo>(std::move(info));
}

}  // namespace cairn::core
