#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <cairn/ps.h>
#include <cairn/status.h>

#include "launch/launcher.h"

namespace cairn::ps {

/// A job with parameter servers.
struct JobOptions {
  ServerOptions server;              // of every server; listen, index and address are set for each
  std::vector<std::string> command;  // of every trainer
  std::string program;               // whose `pserver` command is a server: the program `cairn`
  /// Makes what starts the processes; called once, with the listener that it has to call. What it
  /// knows from an earlier life of the job is stopped and forgotten first.
  std::function<Result<std::unique_ptr<Launcher>>(LaunchListener listener)> open_launcher;
  /// The processes run on other machines: servers listen on all addresses and register under their
  /// machine's name, and trainers look for them in the repository.
  bool remote = false;
  std::map<std::string, std::string> resources;  // of each process: LaunchSpec::resources
  /// A process that was lost is started again so often; one that lived for a minute counts anew.
  /// One whose machine was taken away is started again without being counted.
  int max_restarts = 20;
  /// Asked a few times a second; true: a last checkpoint, then everything is stopped.
  std::function<bool()> interrupted;
  std::function<void()> on_interrupted;  // called once, when that was seen
};

/// What a server's process ends with when starting it again would most likely come to the same: the
/// job cannot begin with what it was told to, no checkpoint is whole, the directory is another
/// job's.
inline constexpr int kNoUseAgain = 3;

/// Whether that is so.
bool IsLasting(const Status& status);

/// How a job ended.
struct JobReport {
  bool interrupted = false;
  std::uint64_t server_restarts = 0;
  std::uint64_t trainer_restarts = 0;
  std::uint64_t lost_changes = 0;  // recovery partial: acknowledged, and lost with a server
  std::int64_t step = 0;           // of the last checkpoint
  bool saved = false;              // whether there is one
  bool unsaved = false;  // the last one did not come about: what came after `step` is lost
};

/// Starts the servers and trainers of a job, a launch each, starts again whatever dies, with
/// growing pauses, and passes their output on, each line with the name of who wrote it. A trainer
/// that ended with 0 has left the job, whether it said so or not. When all have, the servers write
/// a last checkpoint and are stopped. The processes do not outlive this one, whatever kills it.
/// ResourceExhausted when a process was lost too often; FailedPrecondition, with a server's last
/// words, when it ended three times in a row with kNoUseAgain, or when the trainers' command cannot
/// be started here.
Result<JobReport> RunJob(const JobOptions& options);

}  // namespace cairn::ps
