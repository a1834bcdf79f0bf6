#include "cli/doctor_slurm.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "cli/doctor_job.h"
#include "cli/output.h"
#include "launch/rendezvous.h"
#include "launch/run_command.h"
#include "launch/slurm_launcher.h"
#include "launch/slurm_programs.h"
#include "launch/slurm_rest.h"

namespace cairn::cli {
namespace {

std::vector<std::string> Environment() {
  std::vector<std::string> entries;
  for (const char* name : {"PATH", "HOME", "SLURM_CONF"}) {
    if (const char* value = std::getenv(name); value != nullptr) {
      entries.push_back(fmt::format("{}={}", name, value));
    }
  }
  return entries;
}

Result<std::vector<std::string>> Partitions() {
  ASSIGN_OR_RETURN(const CommandOutcome outcome,
                   RunCommand({"sinfo", "--noheader", "--format=%R"}, Environment(), "",
                              std::chrono::seconds(30)));
  if (outcome.code != 0) {
    return UnavailableError("Slurm's controller does not answer: " +
                            Printable(outcome.err.substr(0, outcome.err.find('\n'))) +
                            " (is SLURM_CONF right, does slurmctld run?)");
  }
  std::vector<std::string> names;
  std::string_view rest(outcome.out);
  while (!rest.empty()) {
    names.emplace_back(rest.substr(0, rest.find('\n')));
    rest.remove_prefix(std::min(names.back().size() + 1, rest.size()));
  }
  std::ranges::sort(names);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

}  // namespace

Result<Output> DoctorSlurm(const DoctorSlurmOptions& options, Console* console) {
  RETURN_IF_ERROR(FindSlurmPrograms("").status());
  const char* rest = std::getenv("CAIRN_SLURMRESTD");
  if (rest != nullptr && *rest == '\0') rest = nullptr;
  if (rest != nullptr) RETURN_IF_ERROR(OpenSlurmRest(rest).status());
  ASSIGN_OR_RETURN(const std::vector<std::string> partitions, Partitions());
  ASSIGN_OR_RETURN(const std::string host, HostName());
  const bool srun = FindProgram("srun").ok();
  Output out;
  out.text = fmt::format(
      "Slurm\nprograms       yes        sbatch, squeue, scancel\n"
      "srun           {}\n"
      "controller     answers{}\n"
      "this machine   {}    nodes reach a master here by --advertise, a tuner by host=\n"
      "partitions     {}\n",
      srun ? "yes        trials over several nodes need it on nodes"
           : "no         trials over several nodes need it on nodes",
      rest == nullptr ? "" : "    and slurmrestd, which jobs are handed to", Printable(host),
      Printable(fmt::format("{}", fmt::join(partitions, ", "))));
  Value::Object found{{"ok", true},
                      {"srun", srun},
                      {"slurmrestd", rest != nullptr},
                      {"host", host},
                      {"partitions", Value::List(partitions.begin(), partitions.end())},
                      {"job", Value()}};
  if (options.directory.empty()) {
    out.text += "\nName a directory that the nodes share to try a job: cairn doctor --slurm DIR\n";
  } else {
    console->CatchInterrupts();
    LaunchSpec spec;
    spec.id = "doctor";
    spec.argv = {"/bin/sh", "-c", "echo $SLURMD_NODENAME"};
    if (!options.partition.empty()) spec.resources["partition"] = options.partition;
    const auto open = [](const std::string& scratch) {
      return OpenSlurmLauncher({.directory = scratch});
    };
    RETURN_IF_ERROR(
        TryDoctorJob({.directory = options.directory,
                      .open = open,
                      .spec = spec,
                      .late = "a job",
                      .advice = "name another partition with --partition, or look again later",
                      .node_as = "node"},
                     console, &out.text, &found));
  }
  out.json = Value::Object{{"slurm", std::move(found)}};
  return out;
}

}  // namespace cairn::cli
