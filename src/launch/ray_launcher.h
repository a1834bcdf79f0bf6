#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>

#include <cairn/status.h>

#include "base/clock.h"
#include "launch/launcher.h"

namespace cairn {

struct RayLauncherOptions {
  /// Where each launch has its directory; on a file system that Ray's nodes share with this
  /// machine, under the same path. Made when missing, for this user alone. One launcher at a time.
  /// What it holds: docs/format/launches.md.
  std::string directory;
  std::string address;     // the URL of Ray's dashboard; "": see FindRay (ray_client.h)
  std::string token_file;  // holds the token that Ray asks for; "": see FindRay
  /// Slots of launches that are handed to Ray at once; the others wait here. Ray has a queue of its
  /// own, so there are many.
  int slots = 1000;
  std::string shim;  // as LocalLauncherOptions::shim; lies under the same path on the nodes
  /// Time that a run has to save when somebody else stops its job (`ray job stop`).
  std::chrono::seconds warning{60};
  /// Calls of Ray's head, at most, whatever the number of launches; two may come at once.
  double calls_per_second = 2;
  /// How often Ray is asked for all jobs together. What goes well is seen sooner, by files.
  std::chrono::nanoseconds poll = std::chrono::seconds(2);
  /// How often the directories of living launches are looked at.
  std::chrono::nanoseconds look = std::chrono::milliseconds(100);
  /// A head that has not answered for so long may be gone, and its launches with it: those of which
  /// nothing is heard either are lost.
  std::chrono::nanoseconds head_patience = std::chrono::seconds(30);
  /// A shim of which nothing was heard for so long, when there is reason to ask, is dead. It tells
  /// each second that it lives.
  std::chrono::nanoseconds shim_patience = std::chrono::seconds(10);
  /// Records of jobs that ended which Ray keeps for people to look at; older ones of this launcher
  /// are removed there, because every question for jobs is answered with all of them.
  int keep_jobs = 100;
  LaunchListener listener;
  Clock* clock = Clock::System();  // borrowed

  Status Validate() const;
};

/// Launches as jobs of Ray (its Jobs REST), each kept on its node by a shim, with what launcher.h
/// promises and these differences:
///  - A launch that was handed to Ray and waits there is kQueued, with Ray's message, and survives
///    the owner. Those that wait here (no slot, Ray does not answer) do not. Ray gives up a job
///    that waits for 15 minutes: it is handed over again.
///  - A launch that is stopped while it waits in Ray has ended at once; its job stays in Ray's
///    queue until its turn comes, and then does nothing.
///  - Ray never starts a job again by itself. A job that somebody stops, whose node is lost, or
///    that a new head does not know, ends the launch (`stopped`: it is nobody's failure), and
///    whoever wants it again submits another one.
///  - When a node vanishes, nobody can know that its processes are gone: the launch is kLost when
///    Ray says so and nothing is heard of its shim, which, should it live, ends it as soon as it
///    sees the file system.
///  - With outlive_owner false the end of the owner is noticed within 5 s.
///  - LaunchSpec::resources: see ReadRayResources (ray_client.h). With `nodes` the ranks are shared
///    by so many nodes, which are reserved together; while Ray has not got them the launch is
///    kQueued, and its wall time does not count.
/// A head that cannot be reached, or that refuses the token, is no error here: launches say so.
Result<std::unique_ptr<Launcher>> OpenRayLauncher(RayLauncherOptions options);

/// Moves what is said about Ray itself (address, token_file) out of resources, into options.
void TakeRayOptions(std::map<std::string, std::string>* resources, RayLauncherOptions* options);

}  // namespace cairn
