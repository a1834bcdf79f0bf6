#include "cli/doctor_slurm.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/status_macros.h"
#include "cli/output.h"
#include "launch/rendezvous.h"
#include "launch/run_command.h"
#include "launch/slurm_launcher.h"
#include "launch/slurm_programs.h"
#include "launch/slurm_rest.h"

namespace cairn::cli {
namespace {

constexpr auto kPatience = std::chrono::minutes(2);

/// A directory below the one that is tried; gone afterwards.
class Scratch {
 public:
  explicit Scratch(const std::string& parent)
      : path_(parent + "/.cairn-doctor-" + IdSource::System()->NewUuid().substr(0, 8)) {}
  ~Scratch() {
    std::error_code left_behind;
    std::filesystem::remove_all(path_, left_behind);
  }
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

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

struct JobFindings {
  std::string node;
  double seconds = 0;  // from the submission to its first line
};

/// A job like a trial's.
Result<JobFindings> TryJob(const DoctorSlurmOptions& options, Console* console) {
  const Scratch scratch(options.directory);
  ASSIGN_OR_RETURN(const auto launcher, OpenSlurmLauncher({.directory = scratch.path()}));
  LaunchSpec spec;
  spec.id = "doctor";
  spec.argv = {"/bin/sh", "-c", "echo $SLURMD_NODENAME"};
  if (!options.partition.empty()) spec.resources["partition"] = options.partition;
  const auto begin = console->clock()->Now();
  RETURN_IF_ERROR(launcher->Submit(spec));
  JobFindings findings;
  Result<LaunchInfo> info = launcher->Get(spec.id);
  while (info.ok() && info->state != LaunchState::kEnded) {
    if (Console::interrupted()) break;
    if (console->clock()->Now() > begin + kPatience) break;
    info = launcher->Wait(spec.id, std::chrono::milliseconds(100));
    if (info.status().Is(Code::kDeadlineExceeded)) info = launcher->Get(spec.id);
  }
  RETURN_IF_ERROR(info.status());
  if (info->state != LaunchState::kEnded) {
    const std::string reason = info->reason;
    launcher->Close(Launcher::CloseMode::kStopAll, std::chrono::seconds(0))
        .IgnoreError("it is told below");
    return DeadlineExceededError("a job did not run within two minutes: " + Printable(reason) +
                                 "; name another partition with --partition, or look again later");
  }
  if (!info->exit->succeeded()) {
    return FailedPreconditionError(
        "a job did not run as it should: " + Printable(info->exit->message) +
        "; do the nodes see " + Printable(options.directory) +
        " and this program under the same paths?");
  }
  findings.seconds = std::chrono::duration<double>(console->clock()->Now() - begin).count();
  ASSIGN_OR_RETURN(const LaunchLogPage page, launcher->ReadLog(spec.id, 0));
  for (const LaunchLogLine& line : page.lines) {
    if (line.rank == 0) findings.node = line.text;
  }
  return findings;
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
    ASSIGN_OR_RETURN(const JobFindings job, TryJob(options, console));
    out.text += fmt::format(
        "a job          {:.1f} s      from its submission to its end, on {}\n"
        "directory      shared     its output was seen here\n",
        job.seconds, Printable(job.node));
    found["job"] =
        Value::Object{{"node", job.node}, {"seconds", job.seconds}, {"sees_directory", true}};
  }
  out.json = Value::Object{{"slurm", std::move(found)}};
  return out;
}

}  // namespace cairn::cli
