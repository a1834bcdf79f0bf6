#include "cli/ps_commands.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <system_error>

#include "base/ids.h"
#include "base/status_macros.h"
#include "base/variables.h"
#include "cli/ps_save_notifier.h"
#include "cli/service_reporter.h"
#include "format/json.h"
#include "launch/local_launcher.h"
#include "launch/ray_launcher.h"
#include "launch/rendezvous.h"
#include "launch/slurm_launcher.h"
#include "paramserver/supervisor.h"
#include "rpc/token.h"
#include "storage/open_store.h"

namespace cairn::cli {
namespace {

Result<ps::ServerOptions> ServerOptionsOf(const PserverOptions& options) {
  ps::ServerOptions server = options.server;
  server.mode = options.mode == "sync" ? ps::Mode::kSync : ps::Mode::kAsync;
  server.recovery = options.recovery == "log"       ? ps::Recovery::kLog
                    : options.recovery == "partial" ? ps::Recovery::kPartial
                                                    : ps::Recovery::kExact;
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

/// `--address auto`: this machine's name and the port that the server got.
constexpr char kAuto[] = "auto";

/// Where the records of a job's launches are; for a repository that is no directory, a place of
/// their own on this machine.
Result<std::string> LaunchesOf(const PsRunOptions& options) {
  if (!options.launch_directory.empty()) return options.launch_directory;
  const std::string& repository = options.server.server.directory;
  if (!IsUrl(repository)) return repository + "/launches";
  if (options.launcher != "local") {
    return InvalidArgumentError(
        "--launch-dir must name a directory that the nodes share: the repository is none");
  }
  std::string made = (std::filesystem::temp_directory_path() / "cairn-ps-XXXXXX").string();
  if (mkdtemp(made.data()) == nullptr) return UnavailableError("no temporary directory");
  return made;
}

/// Says in `job` who starts its processes and where.
Status ChooseLauncher(const PsRunOptions& options, ps::JobOptions* job) {
  ASSIGN_OR_RETURN(const std::string directory, LaunchesOf(options));
  for (const std::string& word : options.resources) {
    const std::size_t equals = word.find('=');
    if (equals == std::string::npos) {
      return InvalidArgumentError("--resource is NAME=VALUE, not \"" + word + "\"");
    }
    job->resources[word.substr(0, equals)] = word.substr(equals + 1);
  }
  if (options.launcher == "local") {
    if (!job->resources.empty()) {
      return InvalidArgumentError("--resource is for a cluster: name a --launcher");
    }
    job->open_launcher = [directory](LaunchListener listener) {
      return OpenLocalLauncher({.directory = directory, .listener = std::move(listener)});
    };
    return Status::Ok();
  }
  if (options.launcher != "slurm" && options.launcher != "ray") {
    return InvalidArgumentError("--launcher is local, slurm or ray, not \"" + options.launcher +
                                "\"");
  }
  job->remote = true;
  // Others on the network reach the servers: strangers are kept out.
  std::string& token = job->server.security.token;
  if (token.empty()) token = IdSource::System()->NewUuid() + IdSource::System()->NewUuid();
  std::string& repository = job->server.directory;
  if (!IsUrl(repository)) {
    std::error_code error;
    repository = std::filesystem::absolute(repository, error).string();
  }
  if (options.launcher == "ray") {
    RayLauncherOptions ray = {.directory = directory};
    TakeRayOptions(&job->resources, &ray);
    job->open_launcher = [ray](LaunchListener listener) {
      RayLauncherOptions with = ray;
      with.listener = std::move(listener);
      return OpenRayLauncher(std::move(with));
    };
    return Status::Ok();
  }
  job->open_launcher = [directory](LaunchListener listener) {
    return OpenSlurmLauncher({.directory = directory, .listener = std::move(listener)});
  };
  return Status::Ok();
}

/// The last part of a path or URL.
std::string NameOf(std::string directory) {
  while (directory.ends_with('/')) directory.pop_back();
  return directory.substr(directory.rfind('/') + 1);
}

/// What a page shows of a server: how far it is, what it holds, and how much of that is safe. The
/// rest of its status is for who looks into it.
Value::Object FactsOf(const ps::Server& server) {
  const auto status = DecodeJson(server.StatusText());
  if (!status.ok() || !status->is_object()) return {};
  static constexpr std::pair<std::string_view, std::string_view> kShown[] = {
      {"server", "server"},
      {"servers", "servers"},
      {"state", "state"},
      {"mode", "mode"},
      {"step", "global_step"},
      {"cuts", "cuts"},
      {"increments", "saved_increments"},
      {"checkpoints", "saves"},
      {"failed_saves", "failed_saves"},
      {"saved_step", "saved_step"},
      {"unsaved_changes", "unsaved_changes"},
      {"lost_changes", "lost_changes"},
      {"restored_step", "restored_step"},
      {"generation", "generation"}};
  Value::Object facts;
  for (const auto& [name, of] : kShown) {
    if (const Value* value = status->Find(of)) facts[std::string(name)] = *value;
  }
  const Value* tables = status->Find("tables");
  if (tables == nullptr || tables->if_list() == nullptr) return facts;
  std::uint64_t rows = 0;
  for (const Value& table : *tables->if_list()) {
    if (const Value* count = table.Find("rows")) rows += static_cast<std::uint64_t>(count->AsInt());
  }
  facts["rows"] = rows;
  return facts;
}

/// Of the server that commits; null for others, and where nobody wants to be told.
Result<std::unique_ptr<PsSaveNotifier>> StartNotifier(const PserverOptions& options,
                                                      const ps::Server& server) {
  if (options.server.index != 0) return std::unique_ptr<PsSaveNotifier>();
  const Variables variables = ProcessVariables();
  PsSaveNotifierOptions notifier;
  notifier.url =
      !options.notify.empty() ? options.notify : variables("CAIRN_PS_NOTIFY").value_or("");
  notifier.token = variables("CAIRN_TOKEN").value_or("");
  notifier.ca = options.server.security.ca;
  notifier.saves = [&server]() -> std::optional<std::int64_t> {
    const auto status = DecodeJson(server.StatusText());
    const Value* saves = status.ok() ? status->Find("saves") : nullptr;
    if (saves == nullptr) return std::nullopt;
    return saves->AsInt();
  };
  return PsSaveNotifier::Start(std::move(notifier));
}

/// How a server ended that did not just stop. What another start would only end with again is told
/// as any error, with a code by which whoever starts servers knows that it is no use.
Result<Output> Ended(const Status& why, Console* console) {
  if (!ps::IsLasting(why)) return why;
  console->Note("cairn: " + std::string(why.message()));
  Output output;
  output.json = Value::Object{
      {"error", Value::Object{{"code", CodeName(why.code())}, {"message", why.message()}}}};
  output.exit_code = ps::kNoUseAgain;
  return output;
}

}  // namespace

Result<Output> Pserver(const PserverOptions& options, Console* console) {
  ASSIGN_OR_RETURN(ps::ServerOptions server_options, ServerOptionsOf(options));
  if (server_options.address == kAuto) {
    ASSIGN_OR_RETURN(const std::string host, HostName());
    server_options.address = host + ":0";
  }
  console->CatchInterrupts();
  auto started = ps::Server::Start(server_options);
  if (!started.ok()) return Ended(started.status(), console);
  const std::unique_ptr<ps::Server> server = *std::move(started);
  console->Note("ps_" + std::to_string(server_options.index) + " listens on port " +
                std::to_string(server->port()));
  if (server->metrics_port() != 0) {
    console->Note("metrics are at port " + std::to_string(server->metrics_port()));
  }
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
  auto notifies = StartNotifier(options, *server);
  if (!notifies.ok()) return Ended(notifies.status(), console);
  std::unique_ptr<PsSaveNotifier> notifier = *std::move(notifies);
  auto ended = std::async(std::launch::async, [&] { return server->Wait(); });
  while (ended.wait_for(std::chrono::milliseconds(50)) != std::future_status::ready) {
    if (!Console::interrupted()) continue;
    notifier = nullptr;  // tells of the last save, which a stopped server knows no more
    server->Stop();
  }
  if (const Status end = ended.get(); !end.ok()) return Ended(end, console);
  Output output;
  output.json = Value::Object{{"stopped", true}};
  return output;
}

Result<Output> PsRun(const PsRunOptions& options, Console* console) {
  ps::JobOptions job;
  ASSIGN_OR_RETURN(job.server, ServerOptionsOf(options.server));
  job.command = options.command;
  RETURN_IF_ERROR(ChooseLauncher(options, &job));
  job.max_restarts = options.max_restarts;
  job.interrupted = [] { return Console::interrupted(); };
  job.on_interrupted = [console] { console->Note("interrupted: a last checkpoint is made"); };
  std::error_code error;
  job.program = std::filesystem::read_symlink("/proc/self/exe", error).string();
  if (error) return UnavailableError("cannot find this program: " + error.message());
  if (!options.server.master.empty()) {
    setenv("CAIRN_PS_MASTER", options.server.master.c_str(), 1);  // no other thread lives yet
  }
  if (!options.server.notify.empty()) {
    setenv("CAIRN_PS_NOTIFY", options.server.notify.c_str(), 1);
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
  output.exit_code = report.interrupted || report.unsaved ? 1 : 0;
  return output;
}

}  // namespace cairn::cli
