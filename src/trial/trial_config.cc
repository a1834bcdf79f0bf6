#include "trial/trial_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "format/json.h"
#include "format/member_reader.h"

namespace cairn {
namespace {

Value Texts(const std::vector<std::string>& texts) {
  return Value::List(texts.begin(), texts.end());
}

/// As long as nobody waits; clocks count nanoseconds, and end after three times that.
constexpr std::chrono::milliseconds kLongestTime = std::chrono::hours(24 * 365 * 100);

Status ReadMillis(const MemberReader& members, std::string_view key,
                  std::chrono::milliseconds* out) {
  std::int64_t count = out->count();
  RETURN_IF_ERROR(members.OptionalInt(key, &count));
  *out = std::min(std::chrono::milliseconds(count), kLongestTime);
  return Status::Ok();
}

Status ReadSmall(const MemberReader& members, std::string_view key, int* out) {
  std::int64_t number = *out;
  RETURN_IF_ERROR(members.OptionalInt(key, &number));
  if (number < -1000000 || number > 1000000) {
    return InvalidArgumentError(fmt::format("\"{}\": {} is out of range", key, number));
  }
  *out = static_cast<int>(number);
  return Status::Ok();
}

Value ToValue(const LaunchLimits& limits) {
  Value::Object out;
  if (limits.address_space_bytes > 0) out["address_space_bytes"] = limits.address_space_bytes;
  if (limits.open_files > 0) out["open_files"] = limits.open_files;
  if (limits.nice != 0) out["nice"] = limits.nice;
  const auto wall_time = std::chrono::ceil<std::chrono::milliseconds>(limits.wall_time);
  if (wall_time.count() != 0) out["wall_time_ms"] = wall_time.count();
  return out;
}

Status ReadLimits(const Value& value, LaunchLimits* out) {
  const MemberReader members(*value.if_object());
  std::chrono::milliseconds wall_time{0};
  RETURN_IF_ERROR(members.OptionalUint("address_space_bytes", &out->address_space_bytes));
  RETURN_IF_ERROR(members.OptionalUint("open_files", &out->open_files));
  RETURN_IF_ERROR(ReadSmall(members, "nice", &out->nice));
  RETURN_IF_ERROR(ReadMillis(members, "wall_time_ms", &wall_time));
  out->wall_time = wall_time;
  return Status::Ok();
}

/// Neither a path nor a URL begins with it.
constexpr std::string_view kDataDirectory = "{data}/";

}  // namespace

std::string InDataDirectory(std::string_view name) {
  return fmt::format("{}{}", kDataDirectory, name);
}

std::string Located(std::string_view place, std::string_view data_directory) {
  if (!place.starts_with(kDataDirectory)) return std::string(place);
  return fmt::format("{}/{}", data_directory, place.substr(kDataDirectory.size()));
}

bool IsTrialId(std::string_view id) {
  return !id.empty() && id.size() <= 64 && id.front() != '.' && std::ranges::all_of(id, [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  });
}

Status TrialConfig::Validate() const {
  if (!IsTrialId(experiment)) {
    return InvalidArgumentError(
        fmt::format("experiment {}: 1 to 64 letters, digits, points, dashes, underscores",
                    QuoteForMessage(experiment)));
  }
  if (!hparams.is_object()) return InvalidArgumentError("hparams must be an object");
  RETURN_IF_ERROR(ValidateJsonValue(hparams).WithContext("hparams"));
  if (argv.empty() && !detached) return InvalidArgumentError("argv: there is no command");
  if (storage.empty()) return InvalidArgumentError("storage: name a directory or URL");
  if (world_size < 1) return InvalidArgumentError("world_size must be at least 1");
  if (slots < 0) return InvalidArgumentError("slots must not be negative");
  if (preemption_timeout.count() < 0 || kill_grace.count() < 0) {
    return InvalidArgumentError("preemption_timeout and kill_grace must not be negative");
  }
  if (limits.wall_time.count() < 0) return InvalidArgumentError("wall_time must not be negative");
  return retention.Validate();
}

Value ToValue(const TrialConfig& config) {
  Value::Object env;
  for (const auto& [name, value] : config.env) env[name] = value;
  Value::Object resources;
  for (const auto& [name, value] : config.resources) resources[name] = value;
  Value::Object out{{"experiment", config.experiment},
                    {"hparams", config.hparams},
                    {"argv", Texts(config.argv)},
                    {"cwd", config.cwd},
                    {"env", std::move(env)},
                    {"storage", config.storage},
                    {"world_size", config.world_size},
                    {"slots", config.slots},
                    {"priority", config.priority},
                    {"max_restarts", config.max_restarts},
                    {"preemption_timeout_ms", config.preemption_timeout.count()},
                    {"kill_grace_ms", config.kill_grace.count()},
                    {"retention", ToValue(config.retention)},
                    {"detached", config.detached},
                    {"external_id", config.external_id},
                    {"outlive_engine", config.outlive_engine}};
  if (!config.launcher.empty()) out["launcher"] = config.launcher;
  if (!resources.empty()) out["resources"] = std::move(resources);
  if (Value limits = ToValue(config.limits); !limits.if_object()->empty()) {
    out["limits"] = std::move(limits);
  }
  return out;
}

Result<TrialConfig> TrialConfigFromValue(const Value& value) {
  if (!value.is_object()) return InvalidArgumentError("trial config: not an object");
  const MemberReader members(*value.if_object());
  TrialConfig config;
  Value env = Value::Object{};
  Value retention = Value::Object{};
  RETURN_IF_ERROR(members.OptionalText("experiment", &config.experiment));
  RETURN_IF_ERROR(members.OptionalObject("hparams", &config.hparams));
  RETURN_IF_ERROR(members.OptionalTexts("argv", &config.argv));
  RETURN_IF_ERROR(members.OptionalText("cwd", &config.cwd));
  RETURN_IF_ERROR(members.OptionalObject("env", &env));
  RETURN_IF_ERROR(members.OptionalText("storage", &config.storage));
  RETURN_IF_ERROR(ReadSmall(members, "world_size", &config.world_size));
  RETURN_IF_ERROR(ReadSmall(members, "slots", &config.slots));
  RETURN_IF_ERROR(ReadSmall(members, "priority", &config.priority));
  RETURN_IF_ERROR(members.OptionalUint("max_restarts", &config.max_restarts));
  RETURN_IF_ERROR(ReadMillis(members, "preemption_timeout_ms", &config.preemption_timeout));
  RETURN_IF_ERROR(ReadMillis(members, "kill_grace_ms", &config.kill_grace));
  RETURN_IF_ERROR(members.OptionalObject("retention", &retention));
  RETURN_IF_ERROR(members.OptionalBool("detached", &config.detached));
  RETURN_IF_ERROR(members.OptionalText("external_id", &config.external_id));
  RETURN_IF_ERROR(members.OptionalBool("outlive_engine", &config.outlive_engine));
  Value resources = Value::Object{};
  RETURN_IF_ERROR(members.OptionalText("launcher", &config.launcher));
  RETURN_IF_ERROR(members.OptionalObject("resources", &resources));
  Value limits = Value::Object{};
  RETURN_IF_ERROR(members.OptionalObject("limits", &limits));
  RETURN_IF_ERROR(ReadLimits(limits, &config.limits));
  ASSIGN_OR_RETURN(config.retention, RetentionPolicyFromValue(retention));
  for (const auto& [name, text] : *env.if_object()) {
    if (!text.is_string()) return InvalidArgumentError(fmt::format("env \"{}\": not a text", name));
    config.env[name] = *text.if_string();
  }
  for (const auto& [name, text] : *resources.if_object()) {
    if (!text.is_string()) {
      return InvalidArgumentError(fmt::format("resources \"{}\": not a text", name));
    }
    config.resources[name] = *text.if_string();
  }
  return config;
}

}  // namespace cairn
