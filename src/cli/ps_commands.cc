#include "cli/ps_commands.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <system_error>

#include "base/status_macros.h"
#include "base/variables.h"
#include "cli/service_reporter.h"
#include "format/json.h"
#include "paramserver/supervisor.h"
#include "rpc/token.h"

namespace cairn::cli {
namespace {

Result<ps::ServerOptions> ServerOptionsOf(const PserverOptions& options) {
  ps::ServerOptions server = options.server;
  if (options.mode != "sync" && options.mode != "async") {
    return InvalidArgumentError("--mode is sync or async, not \"" + options.mode + "\"");
  }
  server.mode = options.mode == "sync" ? ps::Mode::kSync : ps::Mode::kAsync;
  if (options.recovery == "exact") {
    server.recovery = ps::Recovery::kExact;
  } else if (options.recovery == "partial") {
    server.recovery = ps::Recovery::kPartial;
  } else if (options.recovery == "log") {
    server.recovery = ps::Recovery::kLog;
  } else {
    return InvalidArgumentError("--recovery is exact, partial or log, not \"" + options.recovery +
                                "\"");
  }
  if (options.log_level != "written" && options.log_level != "synced") {
    return InvalidArgumentError("--log-level is written or synced, not \"" + options.log_level +
                                "\"");
  }
  server.log_level = options.log_level == "synced" ? ps::LogLevel::kSynced : ps::LogLevel::kWritten;
  const auto positive = [](auto number, auto* out) {
    out->reset();
    if (number > 0) *out = number;
  };
  positive(options.full_secs, &server.full_secs);
  positive(options.incremental_secs, &server.incremental_secs);
  positive(options.full_steps, &server.full_steps);
  positive(options.incremental_steps, &server.incremental_steps);
  if (!options.token_file.empty()) {
    ASSIGN_OR_RETURN(server.security.token, rpc::ReadTokenFile(options.token_file));
  } else if (const auto token = ProcessVariables()("CAIRN_PS_TOKEN")) {
    server.security.token = *token;
  }
  return server;
}

/// The last part of a path or URL.
std::string NameOf(std::string directory) {
  while (directory.ends_with('/')) directory.pop_back();
  return directory.substr(directory.rfind('/') + 1);
}

/// What a page shows of a server: of its tables only how many rows there are.
Value::Object FactsOf(const ps::Server& server) {
  const auto status = DecodeJson(server.StatusText());
  if (!status.ok() || !status->is_object()) return {};
  Value::Object facts;
  std::uint64_t rows = 0;
  for (const auto& [name, value] : *status->if_object()) {
    const auto* tables = name == "tables" ? value.if_list() : nullptr;
    for (const Value& table : tables == nullptr ? Value::List{} : *tables) {
      if (const Value* count = table.Find("rows"))
        rows += static_cast<std::uint64_t>(count->AsInt());
    }
    if (value.is_number() || value.is_string() || value.is_bool()) facts[name] = value;
  }
  facts["rows"] = rows;
  return facts;
}

}  // namespace

Result<Output> Pserver(const PserverOptions& options, Console* console) {
  ASSIGN_OR_RETURN(ps::ServerOptions server_options, ServerOptionsOf(options));
  console->CatchInterrupts();
  ASSIGN_OR_RETURN(const auto server, ps::Server::Start(server_options));
  console->Note("ps_" + std::to_string(server_options.index) + " listens on port " +
                std::to_string(server->port()));
  // A job's own servers are told by `ps run` through the environment.
  const std::string master =
      !options.master.empty() ? options.master : ProcessVariables()("CAIRN_PS_MASTER").value_or("");
  ASSIGN_OR_RETURN(const auto reporter,
                   ServiceReporter::Start({.master = master,
                                           .kind = "paramserver",
                                           .name = fmt::format("ps_{}-{}", server_options.index,
                                                               NameOf(server_options.directory)),
                                           .repository = server_options.directory,
                                           .facts = [&] { return FactsOf(*server); }},
                                          console));
  auto ended = std::async(std::launch::async, [&] { return server->Wait(); });
  while (ended.wait_for(std::chrono::milliseconds(50)) != std::future_status::ready) {
    if (Console::interrupted()) server->Stop();
  }
  RETURN_IF_ERROR(ended.get());
  Output output;
  output.json = Value::Object{{"stopped", true}};
  return output;
}

Result<Output> PsRun(const PsRunOptions& options, Console* console) {
  ps::JobOptions job;
  ASSIGN_OR_RETURN(job.server, ServerOptionsOf(options.server));
  job.command = options.command;
  job.max_restarts = options.max_restarts;
  job.interrupted = [] { return Console::interrupted(); };
  job.on_interrupted = [console] { console->Note("interrupted: a last checkpoint is made"); };
  std::error_code error;
  job.program = std::filesystem::read_symlink("/proc/self/exe", error).string();
  if (error) return UnavailableError("cannot find this program: " + error.message());
  if (!options.server.master.empty()) {
    setenv("CAIRN_PS_MASTER", options.server.master.c_str(), 1);  // no other thread lives yet
  }
  console->CatchInterrupts();
  ASSIGN_OR_RETURN(const ps::JobReport report, ps::RunJob(job));
  Output output;
  output.json = Value::Object{{"interrupted", report.interrupted},
                              {"server_restarts", report.server_restarts},
                              {"trainer_restarts", report.trainer_restarts},
                              {"lost_changes", report.lost_changes},
                              {"saved", report.saved},
                              {"step", report.step}};
  output.text = report.interrupted ? "interrupted" : "done";
  output.text += report.saved ? "; the last checkpoint is of step " + std::to_string(report.step)
                              : "; there is no checkpoint";
  output.text += "; servers started again: " + std::to_string(report.server_restarts) +
                 ", trainers: " + std::to_string(report.trainer_restarts);
  if (report.lost_changes > 0) {
    output.text += "; changes lost with servers: " + std::to_string(report.lost_changes);
  }
  output.text += "\n";
  output.exit_code = report.interrupted ? 1 : 0;
  return output;
}

}  // namespace cairn::cli
