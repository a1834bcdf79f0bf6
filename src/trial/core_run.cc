#include "trial/core_run.h"

#include <fmt/format.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>
#include <utility>

#include "base/checksum.h"
#include "base/status_macros.h"
#include "storage/open_store.h"
#include "trial/core_files.h"

namespace cairn::core {
namespace {

namespace fs = std::filesystem;

std::string Env(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string DefaultStorage() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  return "cairn-" + (error ? std::string("program") : program.stem().string());
}

/// How a process that nobody named calls its trial: started again in the same way it is the same.
std::string ExternalId() {
  if (std::string named = Env("CAIRN_EXTERNAL_ID"); !named.empty()) return named;
  std::error_code error;
  std::ifstream command("/proc/self/cmdline", std::ios::binary);
  std::string whole = HostName() + '\0' + fs::current_path(error).string() + '\0';
  whole.append(std::istreambuf_iterator<char>(command), {});
  const std::uint64_t hash = Xxh3(std::string_view(whole));
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  return fmt::format("{}-{:016x}", error ? "program" : program.stem().string(), hash);
}

std::string TextOf(const Value& object, std::string_view name) {
  const Value* value = object.Find(name);
  return value == nullptr || value->if_string() == nullptr ? "" : *value->if_string();
}

/// Meets the engine that started this run.
Status Connect(int rank, CoreRun* run) {
  RunClientOptions options;
  options.url = run->info->master_url;
  options.ca = Env("CAIRN_MASTER_CA");
  options.token = Env("CAIRN_RUN_TOKEN");
  options.trial = run->info->trial.trial_id;
  options.run = run->info->trial.run_id;
  options.rank = rank;
  ASSIGN_OR_RETURN(run->client, RunClient::Open(std::move(options)));
  return Status::Ok();
}

/// What the variables of a run say otherwise, of one that joined.
ClusterInfo DescribedInfo(const RunClient& client) {
  const Value& description = client.description();
  ClusterInfo info;
  info.master_url = Env("CAIRN_TRIAL_URL");
  info.storage = TextOf(description, "storage");
  info.trial.trial_id = client.trial();
  info.trial.run_id = client.run();
  info.trial.experiment_id = TextOf(description, "experiment_id");
  info.trial.resume_mode = TextOf(description, "resume_mode");
  info.trial.trial_seed = SeedOf(info.trial.experiment_id, info.trial.trial_id);
  if (const Value* hparams = description.Find("hparams"); hparams && hparams->is_object()) {
    info.trial.hparams = *hparams;
  }
  if (const std::string latest = TextOf(description, "latest_checkpoint/id"); !latest.empty()) {
    info.latest_checkpoint = latest;
  }
  return info;
}

/// Becomes a run of a trial, as processes that were started by hand. The chief joins, and tells the
/// others as whom.
Status Join(const InitOptions& wanted, const std::string& token, DistributedContext* ranks,
            CoreRun* run) {
  RunClientOptions options;
  options.url = Env("CAIRN_TRIAL_URL");
  options.ca = Env("CAIRN_MASTER_CA");
  options.rank = ranks->rank();
  Status joined;
  Value told;
  if (ranks->is_chief()) {
    options.token = token;
    JoinRequest request;
    request.external_id = !wanted.external_id.empty() ? wanted.external_id : ExternalId();
    request.storage = !wanted.storage.empty() ? wanted.storage : Env("CAIRN_STORAGE");
    request.world_size = ranks->size();
    auto client = RunClient::Join(options, request);
    joined = client.status();
    if (client.ok()) {
      run->client = *std::move(client);
      told = Value::Object{{"trial", run->client->trial()},
                           {"run", run->client->run()},
                           {"token", run->client->token()}};
    } else {
      told = Value::Object{{"error", joined.ToString()}};
    }
  }
  ASSIGN_OR_RETURN(const Value heard, ranks->Broadcast(told));
  RETURN_IF_ERROR(joined);
  if (const Value* error = heard.Find("error"); error && error->if_string()) {
    return UnavailableError("rank 0 could not join: " + *error->if_string());
  }
  if (run->client == nullptr) {
    options.token = TextOf(heard, "token");
    options.trial = TextOf(heard, "trial");
    const Value* number = heard.Find("run");
    options.run = number == nullptr ? 0 : static_cast<std::uint64_t>(number->AsInt());
    ASSIGN_OR_RETURN(run->client, RunClient::Open(std::move(options)));
  }
  run->info = DescribedInfo(*run->client);
  return Status::Ok();
}

/// What the engine says of this run: where its checkpoints are, and with which one to begin.
Status FollowDescription(CoreRun* run) {
  const Value& description = run->client->description();
  run->storage = TextOf(description, "repository");
  if (run->storage.empty()) {
    return CorruptionError("the trial engine does not say where the checkpoints are");
  }
  const Value* detached = description.Find("detached");
  run->detached = detached != nullptr && detached->if_bool() != nullptr && *detached->if_bool();
  if (const Value* id = description.Find("latest_checkpoint/id"); id && id->if_string()) {
    run->latest = *id->if_string();
  }
  run->elsewhere = TextOf(description, "latest_checkpoint/repository");
  run->manager.job = TextOf(description, "job");  // "": an engine whose storage is its own
  run->manager.run = run->info->trial.run_id;     // an older run that still lives is fenced out
  run->manager.takeover = true;
  run->manager.retention.keep_last = std::nullopt;  // the engine says what goes
  return Status::Ok();
}

}  // namespace

std::string HostName() {
  char host[HOST_NAME_MAX + 1] = {};
  gethostname(host, sizeof(host) - 1);
  return host;
}

Result<CoreRun> CoreRun::Begin(const InitOptions& options, DistributedContext* ranks) {
  CoreRun run;
  ASSIGN_OR_RETURN(run.info, GetClusterInfo());
  const std::string join_token = Env("CAIRN_JOIN_TOKEN");
  if (run.info.has_value()) {
    RETURN_IF_ERROR(Connect(ranks->rank(), &run));
    RETURN_IF_ERROR(FollowDescription(&run));
  } else if (!join_token.empty() && !Env("CAIRN_TRIAL_URL").empty()) {
    RETURN_IF_ERROR(Join(options, join_token, ranks, &run));
    RETURN_IF_ERROR(FollowDescription(&run));
  } else {
    run.storage = !options.storage.empty() ? options.storage : Env("CAIRN_STORAGE");
    if (run.storage.empty()) run.storage = DefaultStorage();
    run.manager.retention = options.retention;
  }
  if (!IsRemote(run.storage)) {
    ASSIGN_OR_RETURN(const std::string path, LocalPath(run.storage));
    run.storage = fs::absolute(path).string();
  }
  run.manager.directory = run.storage;
  return run;
}

}  // namespace cairn::core
