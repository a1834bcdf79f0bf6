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
#include "launch/run_command.h"

namespace cairn {
namespace {

/// Slurm's programs wait for their controller by themselves; this is for when they hang.
constexpr std::chrono::seconds kPatience{30};

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
/// That the launcher says itself, and depends on.
constexpr std::string_view kOurs[] = {
    "--array",    "-a",      "--job-name", "-J",       "--requeue", "--no-requeue",
    "--parsable", "--wrap",  "--output",   "-o",       "--error",   "-e",
    "--export",   "--nodes", "-N",         "--ntasks", "-n",        "--ntasks-per-node"};

/// Job states in which something of the job is, or will be.
constexpr std::string_view kLiving[] = {
    "PENDING",     "RUNNING",      "SUSPENDED",    "CONFIGURING",  "COMPLETING",
    "STAGE_OUT",   "SIGNALING",    "STOPPED",      "RESIZING",     "REQUEUED",
    "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"};

/// Refusals that no second try can change. Everything else may be a controller that is away.
constexpr std::string_view kRefusals[] = {"Invalid",
                                          "invalid",
                                          "not permitted",
                                          "not available",
                                          "Unable to allocate",
                                          "violates",
                                          "exceeds",
                                          "Requested",
                                          "Access",
                                          "denied",
                                          "unrecognized",
                                          "ambiguous",
                                          "Unspecified",
                                          "PartitionTimeLimit"};

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

/// "sbatch: error: Batch job submission failed: Invalid qos specification" without the noise.
std::string Said(const CommandOutcome& outcome) {
  std::string said;
  std::string_view rest(outcome.err.empty() ? outcome.out : outcome.err);
  while (!rest.empty()) {
    std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    if (const std::size_t error = line.find("error: "); error != std::string_view::npos) {
      line.remove_prefix(error + 7);
    }
    if (line.empty() || said.size() > 500) continue;
    if (!said.empty()) said += "; ";
    said += line;
  }
  return said.empty() ? fmt::format("ended with code {}", outcome.code) : said;
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
    const auto* known = std::ranges::find(kFlags, key, [](const auto& flag) { return flag.first; });
    if (known == kFlags.end()) {
      std::vector<std::string_view> names;
      for (const auto& flag : kFlags) names.push_back(flag.first);
      return InvalidArgumentError(fmt::format("slurm: {} is not known; known: {}, nodes, extra",
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
  const auto found = resources.find(kNodes);
  if (found == resources.end()) return 1;
  const std::string& text = found->second;
  int nodes = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), nodes);
  if (error != std::errc() || end != text.data() + text.size() || nodes < 1 ||
      nodes > kMaxLaunchProcesses) {
    return InvalidArgumentError(fmt::format("slurm: nodes must be a number of 1 to {}, not {}",
                                            kMaxLaunchProcesses, QuoteForMessage(text)));
  }
  return nodes;
}

std::vector<SlurmJob> ParseSqueue(std::string_view text) {
  std::vector<SlurmJob> jobs;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    // id|index|state|node|reason|name: a name may hold anything, so it comes last.
    std::array<std::string_view, 6> fields;
    std::string_view rest = line;
    bool whole = true;
    for (std::size_t i = 0; i + 1 < fields.size(); ++i) {
      const std::size_t bar = rest.find('|');
      if (bar == std::string_view::npos) {
        whole = false;
        break;
      }
      fields[i] = rest.substr(0, bar);
      rest.remove_prefix(bar + 1);
    }
    if (!whole || fields[0].empty()) continue;
    SlurmJob job;
    job.id = fields[0];
    std::from_chars(fields[1].data(), fields[1].data() + fields[1].size(), job.index);  // or "N/A"
    job.state = fields[2];
    job.node = fields[3];
    job.reason = fields[4];
    job.name = rest;
    jobs.push_back(std::move(job));
  }
  return jobs;
}

Result<SlurmClient> SlurmClient::Find(const std::string& programs) {
  SlurmClient client;
  const std::pair<const char*, std::string*> wanted[] = {
      {"sbatch", &client.sbatch_}, {"squeue", &client.squeue_}, {"scancel", &client.scancel_}};
  for (const auto& [name, path] : wanted) {
    auto found = FindProgram(programs.empty() ? name : programs + "/" + name);
    if (!found.ok()) {
      return NotFoundError(fmt::format(
          "Slurm is not here: {}; install its client, or name the directory of its programs",
          found.status().message()));
    }
    *path = *std::move(found);
  }
  // A job inherits the environment of sbatch: as little as possible, and none of our tokens. Asking
  // sbatch for none at all would make it load the user's login files, which takes a second.
  for (const char* name : {"PATH", "HOME", "USER", "LOGNAME", "SLURM_CONF", "KRB5CCNAME"}) {
    if (const char* value = std::getenv(name); value != nullptr) {
      client.environment_.push_back(fmt::format("{}={}", name, value));
    }
  }
  return client;
}

Status SlurmClient::Submit(const std::vector<std::string>& flags, std::string_view script) const {
  std::vector<std::string> argv = {sbatch_, "--parsable", "--no-requeue", "--export=ALL"};
  argv.insert(argv.end(), flags.begin(), flags.end());
  auto outcome = RunCommand(argv, environment_, script, kPatience);
  if (!outcome.ok()) return UnavailableError("sbatch: " + std::string(outcome.status().message()));
  if (outcome->code == 0) return Status::Ok();
  const std::string said = Said(*outcome);
  const bool refused = std::ranges::any_of(
      kRefusals, [&](std::string_view word) { return said.find(word) != std::string::npos; });
  return refused ? InvalidArgumentError("Slurm refuses the job: " + said)
                 : UnavailableError("sbatch: " + said);
}

Result<std::vector<SlurmJob>> SlurmClient::Jobs() const {
  auto outcome = RunCommand(
      {squeue_, "--me", "--noheader", "--array", "--states=all", "--format=%i|%K|%T|%B|%r|%j"},
      environment_, "", kPatience);
  if (!outcome.ok()) return UnavailableError("squeue: " + std::string(outcome.status().message()));
  if (outcome->code != 0) return UnavailableError("squeue: " + Said(*outcome));
  return ParseSqueue(outcome->out);
}

Status SlurmClient::Cancel(const std::vector<std::string>& ids, bool pending_only) const {
  std::vector<std::string> argv = {scancel_, "--quiet"};
  if (pending_only) argv.emplace_back("--state=PENDING");
  argv.insert(argv.end(), ids.begin(), ids.end());
  auto outcome = RunCommand(argv, environment_, "", kPatience);
  if (!outcome.ok()) return UnavailableError("scancel: " + std::string(outcome.status().message()));
  const std::string said = Said(*outcome);
  // Also when one of several has just ended by itself, or begun: of that it says nothing.
  if (outcome->code == 0 || outcome->err.empty() ||
      said.find("Invalid job id") != std::string::npos ||
      said.find("already completing") != std::string::npos) {
    return Status::Ok();
  }
  return UnavailableError("scancel: " + said);
}

}  // namespace cairn
