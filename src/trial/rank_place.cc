#include "trial/rank_place.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <filesystem>
#include <string>

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
  const char* job;  // tells jobs on one machine apart
};
constexpr std::array<LauncherNames, 4> kLaunchers = {{
    {"CAIRN_RANK", "CAIRN_WORLD_SIZE", "CAIRN_LOCAL_RANK", "CAIRN_LOCAL_SIZE", ""},
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE"},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_JOBID"},
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

Result<std::string> DefaultChief(const Variables& variables, bool one_machine,
                                 const std::string& job) {
  const std::string port = variables("MASTER_PORT").value_or("");
  if (one_machine) {
    // A file of an older job of the same name is noticed (its token is wrong) and read again.
    const std::string whole =
        job + ' ' + port + ' ' + variables("TORCHELASTIC_RESTART_COUNT").value_or("");
    std::error_code error;
    const std::filesystem::path temporary = std::filesystem::temp_directory_path(error);
    return fmt::format("file:{}/cairn-chief-{}/{}", error ? "/tmp" : temporary.string(), getuid(),
                       HashToken(whole).substr(0, 16));
  }
  const auto host = variables("MASTER_ADDR");
  if (host.has_value() && !port.empty()) {
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
  for (const LauncherNames& names : kLaunchers) {
    if (!variables(names.rank) || !variables(names.size)) continue;
    ASSIGN_OR_RETURN(place.rank, NumberOf(variables, names.rank, 0));
    ASSIGN_OR_RETURN(place.size, NumberOf(variables, names.size, 1));
    ASSIGN_OR_RETURN(place.local_rank, NumberOf(variables, names.local_rank, place.rank));
    ASSIGN_OR_RETURN(place.local_size, NumberOf(variables, names.local_size, place.size));
    place.chief = variables("CAIRN_CHIEF").value_or("");
    if (place.chief.empty() && place.size > 1) {
      ASSIGN_OR_RETURN(place.chief, DefaultChief(variables, place.local_size == place.size,
                                                 variables(names.job).value_or("")));
    }
    for (const char* secret : {"CAIRN_CHIEF_TOKEN", "CAIRN_LAUNCH_KEY", "CAIRN_RUN_TOKEN"}) {
      if (place.token.empty()) place.token = variables(secret).value_or("");
    }
    return place;
  }
  return place;
}

}  // namespace cairn::core
