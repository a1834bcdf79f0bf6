#include "launch/slurm_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <utility>

#include "base/status_macros.h"
#include "format/json.h"
#include "launch/launcher.h"

namespace cairn {
namespace {

constexpr std::array<std::pair<std::string_view, std::string_view>, 9> kFlags = {{
    {"partition", "--partition"},
    {"account", "--account"},
    {"qos", "--qos"},
    {"time", "--time"},
    {"gres", "--gres"},
    {"mem", "--mem"},
    {"cpus_per_task", "--cpus-per-task"},
    {"constraint", "--constraint"},
    {"reservation", "--reservation"},
}};
constexpr char kNodes[] = "nodes";
constexpr char kWarning[] = "warning";
constexpr int kLongestWarning = 65535;  // that Slurm takes
/// That the launcher says itself, and depends on.
constexpr std::string_view kOurs[] = {
    "--array",    "-a",      "--job-name", "-J",       "--requeue", "--no-requeue",
    "--parsable", "--wrap",  "--output",   "-o",       "--error",   "-e",
    "--export",   "--nodes", "-N",         "--ntasks", "-n",        "--ntasks-per-node",
    "--signal"};

/// Job states in which something of the job is, or will be.
constexpr std::string_view kLiving[] = {
    "PENDING",     "RUNNING",      "SUSPENDED",    "CONFIGURING",  "COMPLETING",
    "STAGE_OUT",   "SIGNALING",    "STOPPED",      "RESIZING",     "REQUEUED",
    "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"};

std::vector<std::string> Words(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\n";
  std::vector<std::string> words;
  for (std::size_t at = text.find_first_not_of(kSpaces); at != std::string_view::npos;) {
    const std::size_t end = std::min(text.find_first_of(kSpaces, at), text.size());
    words.emplace_back(text.substr(at, end - at));
    at = text.find_first_not_of(kSpaces, end);
  }
  return words;
}

Result<int> Number(const std::map<std::string, std::string>& resources, const std::string& key,
                   int most, int otherwise) {
  const auto found = resources.find(key);
  if (found == resources.end()) return otherwise;
  const std::string& text = found->second;
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 1 || number > most) {
    return InvalidArgumentError(fmt::format("slurm: {} must be a number of 1 to {}, not {}", key,
                                            most, QuoteForMessage(text)));
  }
  return number;
}

}  // namespace

bool SlurmJob::ended() const { return std::ranges::find(kLiving, state) == std::end(kLiving); }

Result<std::vector<std::string>> SlurmFlags(const std::map<std::string, std::string>& resources) {
  std::vector<std::string> flags;
  for (const auto& [key, value] : resources) {
    if (value.find('\0') != std::string::npos) {
      return InvalidArgumentError("slurm: " + key + " holds a NUL");
    }
    if (key == "extra") continue;
    if (key == kNodes) {
      RETURN_IF_ERROR(SlurmNodes(resources).status());
      continue;
    }
    if (key == kWarning) {
      RETURN_IF_ERROR(SlurmWarning(resources, {}).status());
      continue;
    }
    const auto* known = std::ranges::find(kFlags, key, [](const auto& flag) { return flag.first; });
    if (known == kFlags.end()) {
      std::vector<std::string_view> names;
      names.reserve(kFlags.size());
      for (const auto& flag : kFlags) names.push_back(flag.first);
      return InvalidArgumentError(
          fmt::format("slurm: {} is not known; known: {}, nodes, warning, extra",
                      QuoteForMessage(key), fmt::join(names, ", ")));
    }
    flags.push_back(fmt::format("{}={}", known->second, value));
  }
  const auto extra = resources.find("extra");
  if (extra == resources.end()) return flags;
  for (std::string& word : Words(extra->second)) {
    const std::string_view name = std::string_view(word).substr(0, word.find('='));
    if (std::ranges::find(kOurs, name) != std::end(kOurs)) {
      return InvalidArgumentError(fmt::format("slurm: extra: {} is the launcher's own", name));
    }
    flags.push_back(std::move(word));
  }
  return flags;
}

Result<int> SlurmNodes(const std::map<std::string, std::string>& resources) {
  return Number(resources, kNodes, kMaxLaunchProcesses, 1);
}

Result<std::chrono::seconds> SlurmWarning(const std::map<std::string, std::string>& resources,
                                          std::chrono::seconds otherwise) {
  ASSIGN_OR_RETURN(const int seconds, Number(resources, kWarning, kLongestWarning,
                                             static_cast<int>(otherwise.count())));
  return std::chrono::seconds(seconds);
}

std::map<std::string, std::string> SlurmEnvironment() {
  std::map<std::string, std::string> environment;
  for (const char* name : {"PATH", "HOME", "USER", "LOGNAME", "SLURM_CONF", "KRB5CCNAME"}) {
    if (const char* value = std::getenv(name); value != nullptr) environment[name] = value;
  }
  return environment;
}

}  // namespace cairn
