#pragma once

#include <functional>
#include <string>
#include <vector>

#include <cairn/ps.h>
#include <cairn/status.h>

namespace cairn::ps {

/// A job with parameter servers on one machine.
struct JobOptions {
  ServerOptions server;              // of every server; listen, index and address are set for each
  std::vector<std::string> command;  // of every trainer
  std::string program;               // whose `pserver` command is a server: the program `cairn`
  /// A process that was lost is started again so often; one that lived for a minute counts anew.
  int max_restarts = 20;
  /// Asked a few times a second; true: a last checkpoint, then everything is stopped.
  std::function<bool()> interrupted;
  std::function<void()> on_interrupted;  // called once, when that was seen
};

/// How a job ended.
struct JobReport {
  bool interrupted = false;
  std::uint64_t server_restarts = 0;
  std::uint64_t trainer_restarts = 0;
  std::uint64_t lost_changes = 0;  // recovery partial: acknowledged, and lost with a server
  std::int64_t step = 0;           // of the last checkpoint
  bool saved = false;              // whether there is one
};

/// Starts the servers and trainers of a job as processes, starts again whatever dies, with growing
/// pauses, and passes their output on, each line with the name of who wrote it. When all trainers
/// ended with 0, the servers write a last checkpoint and are stopped. The processes die with this
/// one, whatever kills it. ResourceExhausted when a process was lost too often.
Result<JobReport> RunJob(const JobOptions& options);

}  // namespace cairn::ps
