// The flags of `cairn ps` and `cairn pserver`.
#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "cli/command_tree.h"
#include "cli/ps_commands.h"

namespace cairn::cli {
namespace {

/// Seconds, steps, times: CLI11's own check takes NaN, and names the largest double there is.
CLI::Validator NotNegative() {
  return {[](std::string& text) {
            constexpr double kMost = 1e9;
            double value = -1;
            if (CLI::detail::lexical_cast(text, value) && value >= 0 && value <= kMost) {
              return std::string();
            }
            return "must be a number from 0 to 1,000,000,000, not " + text;
          },
          "NONNEGATIVE"};
}

/// What all servers of a job have in common.
void AddJobOptions(CLI::App* app, PserverOptions* options) {
  ps::ServerOptions* server = &options->server;
  app->add_option("--servers", server->servers, "How many there are")
      ->check(CLI::Range(1, 1024))
      ->type_name("N")
      ->capture_default_str();
  app->add_option("--trainers", server->trainers, "How many trainers there are")
      ->check(CLI::Range(1, 1'000'000))
      ->type_name("N")
      ->capture_default_str();
  app->add_option("--mode", options->mode, "sync (bit-reproducible) or async")
      ->check(CLI::IsMember({"sync", "async"}))
      ->capture_default_str();
  app->add_option("--recovery", options->recovery,
                  "When a process is lost: exact (all go back to the last checkpoint), partial "
                  "(only a lost server), log (nobody)")
      ->check(CLI::IsMember({"exact", "partial", "log"}))
      ->capture_default_str();
  app->add_option("--log-dir", server->log_directory,
                  "Recovery log: where the update logs are; default: in the repository");
  app->add_option("--log-level", options->log_level,
                  "Recovery log: an acknowledged change survives the server (written) or its "
                  "machine (synced)")
      ->check(CLI::IsMember({"written", "synced"}))
      ->capture_default_str();
  app->add_option("--full-secs", options->full_secs, "Between full checkpoints; 0: not by time")
      ->check(NotNegative())
      ->capture_default_str();
  app->add_option("--incremental-secs", options->incremental_secs,
                  "Between increments; 0: not by time")
      ->check(NotNegative())
      ->capture_default_str();
  app->add_option("--full-steps", options->full_steps, "Between full checkpoints; 0: not by steps")
      ->check(NotNegative())
      ->capture_default_str();
  app->add_option("--incremental-steps", options->incremental_steps,
                  "Between increments; 0: not by steps")
      ->check(NotNegative())
      ->capture_default_str();
  app->add_flag("--quantize", server->quantize,
                "Rows of increments with 8 bits a number; a job that goes back to one is no longer "
                "bit-equal");
  app->add_option("--load", server->load,
                  "An earlier job's checkpoint that a job without any begins with");
  app->add_option("--notify", options->notify,
                  "POSTed to after each commit, so that who serves looks at once (token: "
                  "CAIRN_TOKEN): http://host:port/v2/models/<name>/notify of a `cairn serve`")
      ->type_name("URL");
}

void AddMetrics(CLI::App* app, std::string* metrics, const char* several) {
  app->add_option(
         "--metrics", *metrics,
         std::string("Where HTTP answers /metrics (Prometheus) and /healthz, without a host "
                     "on this machine alone") +
             several)
      ->type_name("[HOST:]PORT");
}

}  // namespace

void AddPsRun(CLI::App* root, Commands* commands) {
  CLI::App* group = root->add_subcommand("ps", "Jobs with parameter servers");
  group->require_subcommand(1);
  auto options = std::make_shared<PsRunOptions>();
  CLI::App* app =
      Leaf(group, "run", "Run the servers and trainers of a job, here, on Slurm or on Ray",
           "  cairn ps run --servers 2 --trainers 2 --dir runs/ctr --incremental-secs 5 "
           "-- python train.py\n"
           "  cairn ps run --launcher slurm --resource partition=cpu --servers 4 --trainers 8 "
           "--dir /shared/ctr -- python train.py\n"
           "Whatever dies is started again. Ctrl-C ends it after a last checkpoint; the "
           "same command\n"
           "goes on from there.");
  app->add_option("--dir", options->server.server.directory, "The job's repository: a path or URL")
      ->required();
  AddJobOptions(app, &options->server);
  AddMetrics(app, &options->server.server.metrics, "; server i at PORT + i");
  app->add_option("--token-file", options->server.token_file,
                  "A file with the token that all must have");
  app->add_option("--max-restarts", options->max_restarts,
                  "A process lost more often than this in a row ends the job")
      ->check(NotNegative())
      ->capture_default_str();
  app->add_option("--launcher", options->launcher,
                  "Who starts the processes: local (this machine), slurm or ray (a job each)")
      ->check(CLI::IsMember({"local", "slurm", "ray"}))
      ->capture_default_str();
  app->add_option("--resource", options->resources,
                  "What Slurm is asked for, of each process: partition, account, qos, time, gres, "
                  "mem, cpus_per_task, constraint, reservation, warning, extra; or Ray: num_cpus, "
                  "num_gpus, memory, custom, and where it is: address, token_file")
      ->type_name("NAME=VALUE")
      ->allow_extra_args(false);
  app->add_option("--launch-dir", options->launch_directory,
                  "Records and output of the processes; on a cluster shared by the nodes (default: "
                  "launches in the repository)");
  AddReportsTo(app, &options->server.master);
  app->add_option("COMMAND", options->command, "The trainers' command, after --")->required();
  commands->Add(app, [options](Console* console) { return PsRun(*options, console); });
}

void AddPserver(CLI::App* root, Commands* commands) {
  auto options = std::make_shared<PserverOptions>();
  CLI::App* app =
      Leaf(root, "pserver", "Run one parameter server of a job",
           "  cairn pserver --listen 0.0.0.0:7000 --address host1:7000 --dir /shared/run --index 0 "
           "--servers 2 --trainers 4\n"
           "`cairn ps run` starts all processes of a job on one machine.");
  ps::ServerOptions* server = &options->server;
  app->add_option("--listen", server->listen, "host:port; port 0: any free one")
      ->capture_default_str();
  app->add_option("--address", server->address,
                  "That others reach it by, where it is another one; auto: this machine's name");
  app->add_option("--dir", server->directory, "The job's repository: a path or URL")->required();
  app->add_option("--index", server->index, "Which of the servers it is, from 0")
      ->check(CLI::Range(0, 1023))
      ->type_name("N")
      ->capture_default_str();
  AddJobOptions(app, options.get());
  AddMetrics(app, &server->metrics, "");
  app->add_option("--token-file", options->token_file, "A file with the token that all must have");
  app->add_option("--tls-cert", server->security.certificate, "PEM file of its certificate");
  app->add_option("--tls-key", server->security.key, "PEM file of its key");
  app->add_option("--tls-ca", server->security.ca,
                  "PEM file of who signed the other servers' certificates");
  AddReportsTo(app, &options->master);
  app->add_option("--max-message", server->max_message_bytes, "Larger messages are refused")
      ->transform(CLI::AsSizeValue(false))
      ->type_name("BYTES");
  commands->Add(app, [options](Console* console) { return Pserver(*options, console); });
}

}  // namespace cairn::cli
