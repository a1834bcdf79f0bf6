#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <climits>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include <cairn/core.h>
#include <cairn/transfer.h>

#include "base/checksum.h"
#include "base/ids.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/thread_annotations.h"
#include "checkpoint/damage.h"
#include "format/json.h"
#include "trial/client_run.h"
#include "trial/core_signals.h"

namespace cairn::core {
namespace {

namespace fs = std::filesystem;

constexpr char kStaging[] = ".cairn-staging";
constexpr int kExitTerminated = 143;  // 128 + SIGTERM, as a shell says it

std::string Env(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool IsRemote(const std::string& where) {
  return where.find("://") != std::string::npos && !where.starts_with("file://");
}

std::string LocalPath(const std::string& where) {
  return where.starts_with("file://") ? where.substr(7) : where;
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
  char host[HOST_NAME_MAX + 1] = {};
  gethostname(host, sizeof(host) - 1);
  std::ifstream command("/proc/self/cmdline", std::ios::binary);
  std::string whole = std::string(host) + '\0' + fs::current_path(error).string() + '\0';
  whole.append(std::istreambuf_iterator<char>(command), {});
  const std::uint64_t hash = Xxh3(std::string_view(whole));
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  return fmt::format("{}-{:016x}", error ? "program" : program.stem().string(), hash);
}

/// The metadata's steps, or why it is refused.
Result<std::int64_t> StepsOf(const Value& metadata) {
  const Value* steps = metadata.Find("steps_completed");
  if (!metadata.is_object() || steps == nullptr) {
    return InvalidArgumentError(
        "metadata must hold 'steps_completed', the number of steps that are done");
  }
  if (!steps->is_int() || steps->AsInt(-1) < 0) {
    return InvalidArgumentError(
        "metadata['steps_completed'] must be an integer that is not negative");
  }
  return steps->AsInt();
}

/// The files below a directory, by name.
Result<std::vector<UserFile>> FilesIn(const std::string& directory, const Selector& selector) {
  std::vector<UserFile> files;
  std::error_code error;
  if (!fs::is_directory(directory, error)) {
    return NotFoundError("there is no directory " + QuoteForMessage(directory));
  }
  auto entry = fs::recursive_directory_iterator(directory, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    if (entry->is_directory(error)) continue;
    if (!entry->is_regular_file(error)) {
      return InvalidArgumentError(QuoteForMessage(entry->path().string()) +
                                  " is neither a file nor a directory");
    }
    const std::string name = entry->path().lexically_relative(directory).generic_string();
    if (selector && !selector(name)) continue;
    files.push_back({.name = name, .path = fs::absolute(entry->path()).string(), .bytes = ""});
  }
  if (error) return UnavailableError("list " + directory + ": " + error.message());
  std::sort(files.begin(), files.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  return files;
}

/// Removed with all that is in it when its owner goes.
class ScratchDirectory {
 public:
  static Result<std::unique_ptr<ScratchDirectory>> Make(const fs::path& parent) {
    const fs::path path = parent / ("core-" + IdSource::System()->NewUuid());
    std::error_code error;
    fs::create_directories(path, error);
    if (error) return UnavailableError("make " + path.string() + ": " + error.message());
    return std::unique_ptr<ScratchDirectory>(new ScratchDirectory(path));
  }
  ~ScratchDirectory() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
    if (path_.parent_path().filename() == kStaging) fs::remove(path_.parent_path(), ignored);
  }
  std::string path() const { return path_.string(); }

 private:
  explicit ScratchDirectory(fs::path path) : path_(std::move(path)) {}
  const fs::path path_;
};

class ContextImpl final : public Context {
 public:
  ~ContextImpl() override { Close(1).IgnoreError("whoever wants to know closes it"); }

  Status Open(InitOptions options) {
    if (const std::string size = Env("CAIRN_WORLD_SIZE"); !size.empty() && size != "1") {
      return UnimplementedError("the Core API of C++ is for one process, and CAIRN_WORLD_SIZE is " +
                                size + "; several ranks have it in Python");
    }
    if (options.watch_signals) signals_ = std::make_unique<StopSignals>();
    ASSIGN_OR_RETURN(info_, GetClusterInfo());
    ManagerOptions manager;
    const std::string join_token = Env("CAIRN_JOIN_TOKEN");
    if (info_.has_value()) {
      RETURN_IF_ERROR(Connect());
      RETURN_IF_ERROR(FollowDescription(&manager));
    } else if (!join_token.empty() && !Env("CAIRN_TRIAL_URL").empty()) {
      RETURN_IF_ERROR(Join(options, join_token));
      RETURN_IF_ERROR(FollowDescription(&manager));
    } else {
      storage_ = !options.storage.empty() ? options.storage : Env("CAIRN_STORAGE");
      if (storage_.empty()) storage_ = DefaultStorage();
      if (!IsRemote(storage_)) storage_ = fs::absolute(LocalPath(storage_)).string();
      manager.retention = options.retention;
    }
    manager.directory = storage_;
    ASSIGN_OR_RETURN(manager_, CheckpointManager::Open(std::move(manager)));
    if (!IsRemote(storage_)) {  // what killed processes left half-written
      std::error_code ignored;
      fs::remove_all(fs::path(LocalPath(storage_)) / kStaging, ignored);
    }
    if (!info_.has_value()) {
      ASSIGN_OR_RETURN(const std::optional<CheckpointInfo> latest, NewestWhole(storage_));
      if (latest.has_value()) latest_ = latest->id;
      return Status::Ok();
    }
    char host[HOST_NAME_MAX + 1] = {};
    gethostname(host, sizeof(host) - 1);
    return client_->Ready(0, getpid(), host);
  }

  const std::optional<ClusterInfo>& info() const override { return info_; }
  const std::optional<std::string>& latest_checkpoint() const override { return latest_; }
  const std::string& storage() const override { return storage_; }

  Status ReportMetrics(const std::string& group, std::int64_t steps_completed,
                       const Value& metrics) override {
    if (group.empty()) return InvalidArgumentError("a group of metrics must have a name");
    if (steps_completed < 0) return InvalidArgumentError("steps_completed must not be negative");
    if (!metrics.is_object()) return InvalidArgumentError("metrics must be an object");
    RETURN_IF_ERROR(ValidateJsonValue(metrics));
    if (client_ != nullptr) return client_->Report(group, steps_completed, metrics);
    LogInfo(group + " metrics at step " + std::to_string(steps_completed) + ": " +
            EncodeJson(metrics));
    if (group != "validation") return Status::Ok();
    // It may come before its checkpoint.
    Value score = ScoreOf(steps_completed);
    for (const auto& [name, value] : *metrics.if_object()) (*score.if_object())[name] = value;
    validated_ = {steps_completed, std::move(score)};
    if (newest_.second.empty() || newest_.first != steps_completed) return Status::Ok();
    RETURN_IF_ERROR(WaitSaved());
    return manager_->AddMetrics(newest_.second, metrics);
  }

  Status ReportProgress(double progress) override {
    if (!(progress >= 0 && progress <= 1)) {
      return InvalidArgumentError("progress must be from 0 to 1");
    }
    return client_ == nullptr ? Status::Ok() : client_->ReportProgress(progress);
  }

  Status SetStatus(const std::string& status) override {
    return client_ == nullptr ? Status::Ok() : client_->SetStatus(status);
  }

  Result<std::string> StorePath(const Value& metadata, const PathBody& body,
                                const StoreOptions& options) override {
    ASSIGN_OR_RETURN(const std::int64_t steps, StepsOf(metadata));
    const fs::path parent = IsRemote(storage_) ? fs::temp_directory_path() / kStaging
                                               : fs::path(LocalPath(storage_)) / kStaging;
    ASSIGN_OR_RETURN(const auto scratch, ScratchDirectory::Make(parent));
    RETURN_IF_ERROR(body(scratch->path()));
    ASSIGN_OR_RETURN(std::vector<UserFile> files, FilesIn(scratch->path(), {}));
    return StoreFiles(steps, metadata, std::move(files), options);
  }

  Result<std::string> Upload(const std::string& directory, const Value& metadata,
                             const Selector& selector, const StoreOptions& options) override {
    ASSIGN_OR_RETURN(const std::int64_t steps, StepsOf(metadata));
    ASSIGN_OR_RETURN(std::vector<UserFile> files, FilesIn(directory, selector));
    return StoreFiles(steps, metadata, std::move(files), options);
  }

  Result<std::string> Save(SaveRequest request, const StoreOptions& options) override {
    ASSIGN_OR_RETURN(request.step, StepsOf(request.metadata));
    RETURN_IF_ERROR(WaitSaved());
    const std::string id = IdSource::System()->NewUuid();
    request.lineage = Value::Object{{"registration", id}};
    if (client_ != nullptr) {
      RETURN_IF_ERROR(client_->RegisterCheckpoint(id, request.step, 1, request.metadata));
    }
    const std::int64_t steps = request.step;
    Value metrics = ScoreOf(steps);
    if (const Value::Object* own = request.metrics.if_object()) {
      for (const auto& [name, value] : *own) (*metrics.if_object())[name] = value;
    }
    request.metrics = std::move(metrics);
    auto handle = manager_->Save(std::move(request));
    if (!handle.ok()) return Abandoned(id, handle.status());
    pending_.emplace(id, *handle);
    if (options.awaits_score) awaiting_.insert(id);
    newest_ = {steps, id};
    return id;
  }

  Status WaitSaved() override {
    Status first;
    for (auto& [id, handle] : std::exchange(pending_, {})) {
      auto saved = handle.Wait();
      Status outcome = saved.ok() ? Completed(*saved) : Abandoned(id, saved.status());
      if (first.ok()) first = std::move(outcome);
    }
    return first;
  }

  Status RestorePath(const std::string& id, const PathBody& body) override {
    ASSIGN_OR_RETURN(const CheckpointInfo info, Find(id));
    bool reading = true;
    const Status status = ReadInto(info, [&](const std::string& path) {
      reading = false;  // what fails from here on is the body's
      return body(path);
    });
    if (reading && !status.ok()) NoteDamage(info, status);
    return status;
  }

  Status ReadInto(const CheckpointInfo& info, const PathBody& body) {
    const fs::path inside = fs::path(info.path) / "files";
    std::error_code error;
    if (!IsRemote(info.path) && fs::is_directory(inside, error)) {
      ASSIGN_OR_RETURN(const std::vector<std::string> names, UserFilesOf(info.path));
      for (const std::string& name : names) {  // compared with their checksums
        RETURN_IF_ERROR(FetchUserFile(info.path, name, "/dev/null"));
      }
      return body(inside.string());
    }
    ASSIGN_OR_RETURN(const auto scratch, ScratchDirectory::Make(fs::temp_directory_path()));
    RETURN_IF_ERROR(Fetch(info, scratch->path(), {}));
    return body(scratch->path());
  }

  Status Download(const std::string& id, const std::string& directory,
                  const Selector& selector) override {
    ASSIGN_OR_RETURN(const CheckpointInfo info, Find(id));
    Status status = Fetch(info, directory, selector);
    if (!status.ok()) NoteDamage(info, status);
    return status;
  }

  Result<std::optional<Restored>> Restore(RestoreRequest request) override {
    RETURN_IF_ERROR(WaitSaved());
    if (request.id.empty() && latest_.has_value() && newest_.second.empty()) request.id = *latest_;
    if (!request.id.empty()) {  // it may be another trial's
      ASSIGN_OR_RETURN(const CheckpointInfo info, Find(request.id));
      request.id.clear();
      request.path = info.path;
    }
    return manager_->Restore(std::move(request));
  }

  Result<Value> GetMetadata(const std::string& id) override {
    ASSIGN_OR_RETURN(CheckpointInfo info, Find(id));
    return std::move(info.metadata);
  }

  Result<std::vector<CheckpointInfo>> List() override { return manager_->List(); }

  Status Delete(const std::string& id) override {
    RETURN_IF_ERROR(WaitSaved());
    RETURN_IF_ERROR(manager_->Delete(id));
    return client_ == nullptr ? Status::Ok() : client_->CheckpointDeleted(id);
  }

  bool ShouldPreempt() override {
    const bool asked = client_ != nullptr && client_->preempt();
    if (asked && !acknowledged_) {
      const Status told = client_->AcknowledgePreemption();
      if (!told.ok()) LogWarning("preemption could not be acknowledged: " + told.ToString());
      acknowledged_ = told.ok();
    }
    return asked || (signals_ != nullptr && signals_->received());
  }

  Status Close(int code) override {
    if (manager_ == nullptr) return Status::Ok();
    Status first = WaitSaved();
    if (Status closed = manager_->Close(); first.ok()) first = std::move(closed);
    manager_.reset();
    const bool by_signal =
        client_ != nullptr && !acknowledged_ && signals_ != nullptr && signals_->received();
    if (client_ != nullptr && detached_) {
      if (code == 0 && !first.ok()) code = 1;
      if (code == 0 && by_signal) code = kExitTerminated;
      if (Status told = client_->Exit(code, first.ok() ? "" : first.ToString()); first.ok()) {
        first = std::move(told);
      }
    }
    client_.reset();
    signals_.reset();
    if (by_signal && first.ok()) {
      return CancelledError(
          "stopped by a signal that the trial engine does not know of: exit with another code than "
          "0, or the trial counts as complete");
    }
    return first;
  }

 private:
  /// Meets the trial engine, which says where the checkpoints are and with which one to begin.
  Status Connect() {
    RunClientOptions options;
    options.url = info_->master_url;
    options.ca = Env("CAIRN_MASTER_CA");
    options.token = Env("CAIRN_RUN_TOKEN");
    options.trial = info_->trial.trial_id;
    options.run = info_->trial.run_id;
    ASSIGN_OR_RETURN(client_, RunClient::Open(std::move(options)));
    return Status::Ok();
  }

  /// Becomes a run of a trial, as a process that was started by hand.
  Status Join(const InitOptions& wanted, const std::string& token) {
    RunClientOptions options;
    options.url = Env("CAIRN_TRIAL_URL");
    options.ca = Env("CAIRN_MASTER_CA");
    options.token = token;
    JoinRequest request;
    request.external_id = !wanted.external_id.empty() ? wanted.external_id : ExternalId();
    request.storage = !wanted.storage.empty() ? wanted.storage : Env("CAIRN_STORAGE");
    ClusterInfo info;
    info.master_url = options.url;
    ASSIGN_OR_RETURN(client_, RunClient::Join(std::move(options), request));
    const Value& description = client_->description();
    const auto text = [&](std::string_view name) {
      const Value* value = description.Find(name);
      return value == nullptr || value->if_string() == nullptr ? "" : *value->if_string();
    };
    info.storage = text("storage");
    info.trial.trial_id = client_->trial();
    info.trial.run_id = client_->run();
    info.trial.experiment_id = text("experiment_id");
    info.trial.resume_mode = text("resume_mode");
    if (const Value* hparams = description.Find("hparams"); hparams && hparams->is_object()) {
      info.trial.hparams = *hparams;
    }
    if (const std::string latest = text("latest_checkpoint/id"); !latest.empty()) {
      info.latest_checkpoint = latest;
    }
    info_ = std::move(info);
    return Status::Ok();
  }

  /// What the engine says of this run: where its checkpoints are, and with which one to begin.
  Status FollowDescription(ManagerOptions* manager) {
    const Value& description = client_->description();
    const Value* repository = description.Find("repository");
    if (repository == nullptr || repository->if_string() == nullptr) {
      return CorruptionError("the trial engine does not say where the checkpoints are");
    }
    storage_ = *repository->if_string();
    const Value* detached = description.Find("detached");
    detached_ = detached != nullptr && detached->if_bool() != nullptr && *detached->if_bool();
    if (const Value* id = description.Find("latest_checkpoint/id"); id && id->if_string()) {
      latest_ = *id->if_string();
    }
    if (const Value* at = description.Find("latest_checkpoint/repository"); at && at->if_string()) {
      elsewhere_ = *at->if_string();
    }
    manager->run = info_->trial.run_id;  // an older run that still lives is fenced out
    manager->takeover = true;
    manager->retention.keep_last = std::nullopt;  // the engine says what goes
    return Status::Ok();
  }

  /// So that the next start of the trial begins with an older checkpoint instead of failing for
  /// ever.
  static void NoteDamage(const CheckpointInfo& info, const Status& why) {
    if (!why.Is(Code::kCorruption) && !why.Is(Code::kNotFound)) return;
    const std::size_t slash = info.path.rfind('/');
    const Status noted =
        NoteDamaged(info.path.substr(0, slash), info.id, std::string(why.message()));
    if (!noted.ok())
      LogWarning("the damage of " + info.path + " was not noted: " + noted.ToString());
  }

  /// What was validated at that step, for a checkpoint that comes after it.
  Value ScoreOf(std::int64_t steps) const {
    return validated_.first == steps ? validated_.second : Value(Value::Object{});
  }

  Result<std::string> StoreFiles(std::int64_t steps, const Value& metadata,
                                 std::vector<UserFile> files, const StoreOptions& options) {
    SaveRequest request;
    request.step = steps;
    request.metadata = metadata;
    request.files = std::move(files);
    request.blocking = true;
    ASSIGN_OR_RETURN(std::string id, Save(std::move(request), options));
    RETURN_IF_ERROR(WaitSaved());
    return id;
  }

  Status Abandoned(const std::string& id, const Status& why) {
    if (client_ != nullptr) {
      client_->AbandonCheckpoint(id, why.ToString())
          .IgnoreError("the save's error is the one to show");
    }
    return why;
  }

  Status Completed(const CheckpointInfo& info) {
    if (client_ == nullptr) return Status::Ok();
    CompletedCheckpoint checkpoint;
    checkpoint.id = info.id;
    checkpoint.steps_completed = info.step;
    checkpoint.metadata = info.metadata;
    checkpoint.metrics = info.metrics;
    checkpoint.bytes = info.bytes;
    checkpoint.generation = info.generation;
    checkpoint.sequence = info.sequence;
    checkpoint.kind = info.kind;
    checkpoint.base = info.base;
    checkpoint.awaits_score = awaiting_.erase(info.id) > 0;
    ASSIGN_OR_RETURN(const std::vector<std::string> remove,
                     client_->CompleteCheckpoint(checkpoint));
    for (const std::string& unwanted : remove) {
      const Status removed = manager_->Delete(unwanted);
      if (!removed.ok() && !removed.Is(Code::kNotFound)) {
        LogWarning("checkpoint " + unwanted + " was not removed: " + removed.ToString());
        continue;  // the engine does it after the run
      }
      RETURN_IF_ERROR(client_->CheckpointDeleted(unwanted));
    }
    return Status::Ok();
  }

  Result<CheckpointInfo> Find(const std::string& id) {
    RETURN_IF_ERROR(WaitSaved());
    ASSIGN_OR_RETURN(const std::vector<CheckpointInfo> own, manager_->List());
    for (const CheckpointInfo& info : own) {
      if (info.id == id) return info;
    }
    if (!elsewhere_.empty() && latest_ == id) {
      ASSIGN_OR_RETURN(const auto reader,
                       CheckpointManager::Open({.directory = elsewhere_, .read_only = true}));
      ASSIGN_OR_RETURN(const std::vector<CheckpointInfo> others, reader->List());
      for (const CheckpointInfo& info : others) {
        if (info.id == id) return info;
      }
    }
    return NotFoundError(storage_ + " has no checkpoint " + id);
  }

  static Status Fetch(const CheckpointInfo& info, const std::string& directory,
                      const Selector& selector) {
    ASSIGN_OR_RETURN(const std::vector<std::string> names, UserFilesOf(info.path));
    for (const std::string& name : names) {
      if (selector && !selector(name)) continue;
      const fs::path path = fs::path(directory) / name;
      std::error_code error;
      fs::create_directories(path.parent_path(), error);
      if (error) return UnavailableError("make " + path.string() + ": " + error.message());
      RETURN_IF_ERROR(FetchUserFile(info.path, name, path.string()));
    }
    return Status::Ok();
  }

  std::optional<ClusterInfo> info_;
  std::optional<std::string> latest_;
  std::string elsewhere_;  // the repository of latest_, when it is another trial's
  std::string storage_;
  bool detached_ = false;
  bool acknowledged_ = false;
  std::unique_ptr<StopSignals> signals_;
  std::unique_ptr<RunClient> client_;
  std::unique_ptr<CheckpointManager> manager_;
  std::map<std::string, SaveHandle> pending_;
  std::set<std::string, std::less<>> awaiting_;  // ids whose score is still to come
  std::pair<std::int64_t, std::string> newest_;  // steps and id of the last one stored here
  // Steps and metrics of the last validation, without a master.
  std::pair<std::int64_t, Value> validated_ = {-1, Value::Object{}};
};

}  // namespace

Result<std::optional<ClusterInfo>> GetClusterInfo() {
  const std::string url = Env("CAIRN_TRIAL_URL");
  const std::string trial = Env("CAIRN_TRIAL_ID");
  if (url.empty() || trial.empty()) return std::optional<ClusterInfo>();
  ClusterInfo info;
  info.master_url = url;
  info.storage = Env("CAIRN_STORAGE");
  info.trial.trial_id = trial;
  info.trial.experiment_id = Env("CAIRN_EXPERIMENT_ID");
  const std::string run = Env("CAIRN_RUN_ID");
  const char* end = run.data() + run.size();
  const auto [stopped, error] = std::from_chars(run.data(), end, info.trial.run_id);
  if (error != std::errc() || stopped != end) {
    return InvalidArgumentError("CAIRN_RUN_ID is no number: " + QuoteForMessage(run));
  }
  if (const std::string hparams = Env("CAIRN_HPARAMS"); !hparams.empty()) {
    auto value = DecodeJson(hparams);
    if (!value.ok() || !value->is_object()) {
      return InvalidArgumentError("CAIRN_HPARAMS is no JSON object: " + QuoteForMessage(hparams));
    }
    info.trial.hparams = *std::move(value);
  }
  if (const std::string latest = Env("CAIRN_LATEST_CHECKPOINT"); !latest.empty()) {
    info.latest_checkpoint = latest;
  }
  info.trial.resume_mode = Env("CAIRN_RESUME_MODE");
  if (info.trial.resume_mode.empty()) {
    info.trial.resume_mode = info.latest_checkpoint ? "resume" : "fresh";
  }
  return std::optional<ClusterInfo>(std::move(info));
}

Result<std::unique_ptr<Context>> Init(InitOptions options) {
  auto context = std::make_unique<ContextImpl>();
  RETURN_IF_ERROR(context->Open(std::move(options)));
  return std::unique_ptr<Context>(std::move(context));
}

}  // namespace cairn::core
