#include "cli/doctor_ray.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/status_macros.h"
#include "cli/output.h"
#include "launch/ray_client.h"
#include "launch/ray_launcher.h"
#include "launch/rendezvous.h"

namespace cairn::cli {
namespace {

constexpr auto kPatience = std::chrono::minutes(2);

struct JobFindings {
  std::string host;
  double seconds = 0;  // from the submission to its end
};

/// A job like a trial's, in a directory that is gone afterwards.
Result<JobFindings> TryJob(const DoctorRayOptions& options, const std::string& scratch,
                           Console* console) {
  ASSIGN_OR_RETURN(const auto launcher, OpenRayLauncher({.directory = scratch,
                                                         .address = options.address,
                                                         .token_file = options.token_file}));
  LaunchSpec spec;
  spec.id = "cairn-doctor";
  spec.argv = {"/bin/sh", "-c", "hostname"};
  spec.cwd = "/";
  const auto begin = console->clock()->Now();
  RETURN_IF_ERROR(launcher->Submit(spec));
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
    return DeadlineExceededError("a job of one core did not run within two minutes: " +
                                 Printable(reason) + "; look at `ray status`");
  }
  if (!info->exit->succeeded()) {
    return FailedPreconditionError(
        "a job did not run as it should: " + Printable(info->exit->message) +
        "; do the nodes see " + Printable(options.directory) +
        " and this program under the same paths?");
  }
  JobFindings findings;
  findings.seconds = std::chrono::duration<double>(console->clock()->Now() - begin).count();
  ASSIGN_OR_RETURN(const LaunchLogPage page, launcher->ReadLog(spec.id, 0));
  for (const LaunchLogLine& line : page.lines) {
    if (line.rank == 0) findings.host = line.text;
  }
  return findings;
}

}  // namespace

Result<Output> DoctorRay(const DoctorRayOptions& options, Console* console) {
  ASSIGN_OR_RETURN(const RayAddress address, FindRay(options.address, options.token_file));
  ASSIGN_OR_RETURN(const auto client, RayClient::Open(address));
  ASSIGN_OR_RETURN(const std::string version, client->Version());
  ASSIGN_OR_RETURN(const std::vector<RayJob> jobs, client->Jobs());
  const auto waiting = std::ranges::count_if(jobs, &RayJob::pending);
  ASSIGN_OR_RETURN(const std::string host, HostName());
  Output out;
  out.text = fmt::format(
      "Ray\nhead           answers    {}, Ray {}\n"
      "token          {}\n"
      "jobs           {} on record, {} of them wait\n"
      "this machine   {}    nodes reach a master here by --advertise, a tuner by host=\n",
      Printable(client->url()), Printable(version),
      address.token.empty() ? "none       and none is asked for" : "accepted", jobs.size(), waiting,
      Printable(host));
  Value::Object found{{"ok", true},
                      {"address", client->url()},
                      {"version", version},
                      {"token", !address.token.empty()},
                      {"jobs", static_cast<std::uint64_t>(jobs.size())},
                      {"waiting", static_cast<std::int64_t>(waiting)},
                      {"host", host},
                      {"job", Value()}};
  if (options.directory.empty()) {
    out.text += "\nName a directory that the nodes share to try a job: cairn doctor --ray DIR\n";
  } else {
    console->CatchInterrupts();
    const std::string scratch =
        options.directory + "/.cairn-doctor-" + IdSource::System()->NewUuid().substr(0, 8);
    const auto job = TryJob(options, scratch, console);
    std::error_code left_behind;
    std::filesystem::remove_all(scratch, left_behind);
    RETURN_IF_ERROR(job.status());
    out.text += fmt::format(
        "a job          {:.1f} s      from its submission to its end, on {}\n"
        "directory      shared     its output was seen here\n",
        job->seconds, Printable(job->host));
    found["job"] =
        Value::Object{{"host", job->host}, {"seconds", job->seconds}, {"sees_directory", true}};
  }
  out.json = Value::Object{{"ray", std::move(found)}};
  return out;
}

}  // namespace cairn::cli
