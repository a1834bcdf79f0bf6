#include <charconv>
#include <cstdlib>
#include <string>
#include <string_view>

#include <cairn/core.h>

#include "format/json.h"
#include "trial/core_run.h"

namespace cairn::core {
namespace {

std::string Env(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

std::uint32_t SeedOf(std::string_view experiment, std::string_view trial) {
  std::uint32_t hash = 2166136261u;  // FNV-1a, as python/cairn/core/_info.py has it
  const auto add = [&](std::string_view text) {
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  };
  add(experiment);
  add("/");
  add(trial);
  return hash >> 1;
}

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
  info.trial.trial_seed = SeedOf(info.trial.experiment_id, trial);
  if (const std::string seed = Env("CAIRN_TRIAL_SEED"); !seed.empty()) {
    const char* last = seed.data() + seed.size();
    const auto read = std::from_chars(seed.data(), last, info.trial.trial_seed);
    if (read.ec != std::errc() || read.ptr != last || info.trial.trial_seed > 0x7fffffffu) {
      return InvalidArgumentError("CAIRN_TRIAL_SEED is no number below 2^31: " +
                                  QuoteForMessage(seed));
    }
  }
  info.trial.resume_mode = Env("CAIRN_RESUME_MODE");
  if (info.trial.resume_mode.empty()) {
    info.trial.resume_mode = info.latest_checkpoint ? "resume" : "fresh";
  }
  return std::optional<ClusterInfo>(std::move(info));
}

}  // namespace cairn::core
