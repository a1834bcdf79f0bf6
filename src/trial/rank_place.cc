#include "trial/rank_place.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "base/status_macros.h"
#include "format/json.h"
#include "net/token.h"

namespace cairn::core {
namespace {

struct LauncherNames {
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
  std::array<const char*, 2> job;  // tell jobs on one machine apart
};
constexpr LauncherNames kOurs = {
    "CAIRN_RANK", "CAIRN_WORLD_SIZE", "CAIRN_LOCAL_RANK", "CAIRN_LOCAL_SIZE", {}};
constexpr char kTasksPerNode[] = "SLURM_STEP_TASKS_PER_NODE";
constexpr std::array<LauncherNames, 4> kOthers = {{
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", {"TORCHELASTIC_RUN_ID"}},
    {"OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE",
     {"PMIX_NAMESPACE"}},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", {"PMI_JOBID"}},
    // The number of tasks is that of a step: a batch script has the job's too, and is one process.
    {"SLURM_PROCID",
     "SLURM_STEP_NUM_TASKS",
     "SLURM_LOCALID",
     kTasksPerNode,
     {"SLURM_JOB_ID", "SLURM_STEP_ID"}},
}};

Result<int> NumberOf(const Variables& variables, const char* name, int fallback) {
  const auto text = variables(name);
  if (!text.has_value()) return fallback;
  int number = 0;
  const char* end = text->data() + text->size();
  const auto [stopped, error] = std::from_chars(text->data(), end, number);
  if (error != std::errc() || stopped != end) {
    return InvalidArgumentError(
        fmt::format("{} must be an integer, not {}", name, QuoteForMessage(*text)));
  }
  return number;
}

bool AreSet(const Variables& variables, const LauncherNames& names) {
  return variables(names.rank).has_value() && variables(names.size).has_value();
}

/// Whose variables say where this process stands; null: it is alone. Those of our launcher. But
/// where that started one process, and the process is a launcher with ranks of its own, the ranks
/// are those: all of them have the one's variables.
Result<const LauncherNames*> NamesFrom(const Variables& variables) {
  const bool ours = AreSet(variables, kOurs);
  if (ours) {
    ASSIGN_OR_RETURN(const int size, NumberOf(variables, kOurs.size, 1));
    if (size != 1) return &kOurs;
  }
  for (const LauncherNames& names : kOthers) {
    if (!AreSet(variables, names)) continue;
    if (!ours) return &names;
    ASSIGN_OR_RETURN(const int size, NumberOf(variables, names.size, 1));
    if (size > 1) return &names;
  }
  return ours ? &kOurs : nullptr;
}

std::optional<int> DigitsOf(std::string_view text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 0) return std::nullopt;
  return number;
}

/// Tasks on this node, of "2(x3),1": three nodes with two tasks each, then one with one.
Result<int> TasksHere(const Variables& variables, std::string_view all) {
  ASSIGN_OR_RETURN(int node, NumberOf(variables, "SLURM_NODEID", 0));
  for (std::string_view rest = all; !rest.empty();) {
    const std::size_t comma = rest.find(',');
    std::string_view part = rest.substr(0, comma);
    rest = comma == std::string_view::npos ? "" : rest.substr(comma + 1);
    std::optional<int> times = 1;
    if (const std::size_t open = part.find("(x"); open != std::string_view::npos) {
      if (!part.ends_with(')')) break;
      times = DigitsOf(part.substr(open + 2, part.size() - open - 3));
      part = part.substr(0, open);
    }
    const std::optional<int> tasks = DigitsOf(part);
    if (!tasks || !times) break;
    node -= *times;
    if (node < 0) return *tasks;
  }
  return InvalidArgumentError(fmt::format("{} does not say how many tasks are here: {}",
                                          kTasksPerNode, QuoteForMessage(std::string(all))));
}

Result<int> LocalSize(const Variables& variables, const LauncherNames& names, int size) {
  const auto text = variables(names.local_size);
  if (text && std::string_view(names.local_size) == kTasksPerNode) {
    return TasksHere(variables, *text);
  }
  return NumberOf(variables, names.local_size, size);
}

/// A file of an older job of the same name is noticed (its token is wrong) and read again.
std::string JobHash(const Variables& variables, const LauncherNames& names) {
  std::string job;
  for (const char* name : names.job) {
    if (name == nullptr) continue;
    if (name != names.job.front()) job += '.';
    job += variables(name).value_or("");
  }
  return HashToken(job + ' ' + variables("MASTER_PORT").value_or("") + ' ' +
                   variables("TORCHELASTIC_RESTART_COUNT").value_or(""))
      .substr(0, 16);
}

Result<std::string> DefaultChief(const Variables& variables, bool one_machine,
                                 const std::string& job) {
  if (one_machine) {
    std::error_code error;
    const std::filesystem::path temporary = std::filesystem::temp_directory_path(error);
    return fmt::format("file:{}/cairn-chief-{}/{}", error ? "/tmp" : temporary.string(), getuid(),
                       job);
  }
  const auto host = variables("MASTER_ADDR");
  if (host.has_value() && !variables("MASTER_PORT").value_or("").empty()) {
    ASSIGN_OR_RETURN(const int number, NumberOf(variables, "MASTER_PORT", 0));
    return fmt::format("{}:{}", *host, number + 1);
  }
  return InvalidArgumentError(
      "the ranks are on several machines and nothing says how they find rank 0: set CAIRN_CHIEF to "
      "its host:port and CAIRN_CHIEF_TOKEN to a secret that they share");
}

}  // namespace

Result<DistributedOptions> RankPlaceFrom(const Variables& variables) {
  DistributedOptions place;
  ASSIGN_OR_RETURN(const LauncherNames* names, NamesFrom(variables));
  if (names == nullptr) return place;
  ASSIGN_OR_RETURN(place.rank, NumberOf(variables, names->rank, 0));
  ASSIGN_OR_RETURN(place.size, NumberOf(variables, names->size, 1));
  ASSIGN_OR_RETURN(place.local_rank, NumberOf(variables, names->local_rank, place.rank));
  ASSIGN_OR_RETURN(place.local_size, LocalSize(variables, *names, place.size));
  const bool one_machine = place.local_size == place.size;
  place.chief = variables("CAIRN_CHIEF").value_or("");
  if (names != &kOurs && variables(kOurs.rank) && place.chief.starts_with("file:")) {
    // Our launcher's, of the one process that these ranks are below: it tells runs apart.
    place.chief = one_machine ? place.chief + '-' + JobHash(variables, *names) : "";
  }
  if (place.chief.empty() && place.size > 1) {
    ASSIGN_OR_RETURN(place.chief, DefaultChief(variables, one_machine, JobHash(variables, *names)));
  }
  for (const char* secret : {"CAIRN_CHIEF_TOKEN", "CAIRN_LAUNCH_KEY", "CAIRN_RUN_TOKEN"}) {
    if (place.token.empty()) place.token = variables(secret).value_or("");
  }
  return place;
}

}  // namespace cairn::core
