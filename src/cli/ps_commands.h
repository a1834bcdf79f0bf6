#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <cairn/ps.h>
#include <cairn/status.h>

#include "cli/console.h"

namespace cairn::cli {

/// Words and numbers as ps_flags.cc has checked them.
struct PserverOptions {
  ps::ServerOptions server;
  std::string mode = "sync";
  std::string recovery = "exact";
  std::string log_level = "written";
  std::string token_file;
  std::string master;  // that is told how the server does; "": CAIRN_PS_MASTER, or none
  /// What is POSTed to after each commit, by the server that commits (token: CAIRN_TOKEN); "":
  /// CAIRN_PS_NOTIFY, or none.
  std::string notify;
  double full_secs = 600;
  double incremental_secs = 0;
  std::int64_t full_steps = 0;
  std::int64_t incremental_steps = 0;
};

/// Serves until SIGINT or SIGTERM, or until it cannot go on.
Result<Output> Pserver(const PserverOptions& options, Console* console);

struct PsRunOptions {
  PserverOptions server;
  std::vector<std::string> command;
  int max_restarts = 20;
  std::string launcher = "local";  // "slurm" or "ray"
  std::string launch_directory;    // of its records; "": launches/ in the repository
  std::vector<std::string>
      resources;  // "partition=gpu": what a cluster is asked for, of each process
};

/// Runs a whole job: servers and trainers.
Result<Output> PsRun(const PsRunOptions& options, Console* console);

}  // namespace cairn::cli
