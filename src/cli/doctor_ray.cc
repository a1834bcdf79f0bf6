#include "cli/doctor_ray.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "cli/doctor_job.h"
#include "cli/output.h"
#include "launch/ray_client.h"
#include "launch/ray_launcher.h"
#include "launch/rendezvous.h"

namespace cairn::cli {

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
    LaunchSpec spec;
    spec.id = "cairn-doctor";
    spec.argv = {"/bin/sh", "-c", "hostname"};
    spec.cwd = "/";
    const auto open = [&](const std::string& scratch) {
      return OpenRayLauncher(
          {.directory = scratch, .address = options.address, .token_file = options.token_file});
    };
    RETURN_IF_ERROR(TryDoctorJob({.directory = options.directory,
                                  .open = open,
                                  .spec = spec,
                                  .late = "a job of one core",
                                  .advice = "look at `ray status`",
                                  .node_as = "host"},
                                 console, &out.text, &found));
  }
  out.json = Value::Object{{"ray", std::move(found)}};
  return out;
}

}  // namespace cairn::cli
