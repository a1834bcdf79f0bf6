#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include <cairn/core.h>

#include "base/ids.h"
#include "base/log.h"
#include "base/signal_watch.h"
#include "base/status_macros.h"
#include "base/thread_annotations.h"
#include "checkpoint/damage.h"
#include "format/json.h"
#include "storage/open_store.h"
#include "trial/client_run.h"
#include "trial/core_files.h"
#include "trial/core_repository.h"
#include "trial/core_run.h"
#include "trial/refuse_nuls.h"
#include "trial/report_limits.h"
#include "trial/run_output.h"

namespace cairn::core {
namespace {

namespace fs = std::filesystem;

constexpr int kExitTerminated = 143;  // 128 + SIGTERM, as a shell says it

/// A second Ctrl-C ends the process.
SignalWatchOptions StopSignals() {
  return {.signals = {SIGTERM, SIGUSR1, SIGINT}, .sigint_ends_after = 1};
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

/// With and without a master the same is refused.
Status CheckStorable(const Value& values, const std::string& what) {
  RETURN_IF_ERROR(ValidateJsonValue(values).WithContext(what));
  return RefuseNuls(values, what);
}

Status CheckText(const std::string& text, const std::string& what, std::size_t limit) {
  RETURN_IF_ERROR(ValidateJsonValue(text).WithContext(what));
  if (text.size() <= limit) return Status::Ok();
  return InvalidArgumentError(
      fmt::format("{} has {} bytes; at most {} are taken", what, text.size(), limit));
}

/// Why a part of the metadata cannot be taken, whatever the other ranks have.
Status CheckPart(const Value& metadata) {
  if (metadata.is_null()) return Status::Ok();
  if (!metadata.is_object()) return InvalidArgumentError("metadata must be an object");
  RETURN_IF_ERROR(CheckStorable(metadata, "metadata"));
  if (metadata.Find("steps_completed") == nullptr) return Status::Ok();
  return StepsOf(metadata).status();
}

class ContextImpl final : public Context {
 public:
  ~ContextImpl() override { Close(1).IgnoreError("whoever wants to know closes it"); }

  Status Open(InitOptions options) {
    if (options.watch_signals) signals_ = std::make_unique<SignalWatch>(StopSignals());
    preempt_mode_ = options.preempt_mode;
    ranks_ = options.distributed;
    if (ranks_ == nullptr) {
      ASSIGN_OR_RETURN(own_ranks_, DistributedContext::FromEnv());
      ranks_ = own_ranks_.get();
    }
    ASSIGN_OR_RETURN(CoreRun run, CoreRun::Begin(options, ranks_));
    info_ = std::move(run.info);
    client_ = std::move(run.client);
    storage_ = std::move(run.storage);
    latest_ = std::move(run.latest);
    elsewhere_ = std::move(run.elsewhere);
    detached_ = run.detached;
    repository_ = std::make_unique<CoreRepository>(std::move(run.manager), ranks_);
    RETURN_IF_ERROR(FindBeginning());
    if (detached_ && options.send_output) {
      output_ = std::make_unique<RunOutput>(client_.get(), ranks_->rank());
    }
    return client_ == nullptr ? Status::Ok() : client_->Ready(ranks_->rank(), getpid(), HostName());
  }

  const std::optional<ClusterInfo>& info() const override { return info_; }
  const std::optional<std::string>& latest_checkpoint() const override { return latest_; }
  const std::string& storage() const override { return storage_; }
  DistributedContext& distributed() override { return *ranks_; }

  Status ReportMetrics(const std::string& group, std::int64_t steps_completed,
                       const Value& metrics) override {
    RETURN_IF_ERROR(CheckChief("report"));
    if (group.empty()) return InvalidArgumentError("a group of metrics must have a name");
    if (steps_completed < 0) return InvalidArgumentError("steps_completed must not be negative");
    if (!metrics.is_object()) return InvalidArgumentError("metrics must be an object");
    RETURN_IF_ERROR(CheckText(group, "group", kMaxGroupBytes));
    RETURN_IF_ERROR(RefuseNuls(group, "group"));
    RETURN_IF_ERROR(CheckStorable(metrics, "metrics"));
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
    ASSIGN_OR_RETURN(CheckpointManager* const manager, repository_->Owner());
    return manager->AddMetrics(newest_.second, metrics);
  }

  Status ReportProgress(double progress) override {
    RETURN_IF_ERROR(CheckChief("report"));
    if (!(progress >= 0 && progress <= 1)) {
      return InvalidArgumentError("progress must be from 0 to 1");
    }
    return client_ == nullptr ? Status::Ok() : client_->ReportProgress(progress);
  }

  Status SetStatus(const std::string& status) override {
    RETURN_IF_ERROR(CheckChief("report"));
    RETURN_IF_ERROR(CheckText(status, "status", kMaxStatusBytes));
    return client_ == nullptr ? Status::Ok() : client_->SetStatus(status);
  }

  Result<std::string> StorePath(const Value& metadata, const PathBody& body,
                                const StoreOptions& options) override {
    ASSIGN_OR_RETURN(const Beginning begun, Begin(metadata, options.shard, "StorePath"));
    const fs::path parent =
        IsRemote(storage_) ? fs::temp_directory_path() / kStaging : fs::path(storage_) / kStaging;
    const std::string prefix = fmt::format("rank_{}-", ranks_->rank());
    const auto scratch = ScratchDirectory::Make(parent, prefix);
    RETURN_IF_ERROR(Agree(options.shard, scratch.ok() ? body((*scratch)->path())  //
                                                      : scratch.status()));
    return StoreFiles(begun, FilesIn((*scratch)->path(), {}), options);
  }

  Result<std::string> Upload(const std::string& directory, const Value& metadata,
                             const Selector& selector, const StoreOptions& options) override {
    ASSIGN_OR_RETURN(const Beginning begun, Begin(metadata, options.shard, "Upload"));
    if (directory.empty() && options.shard)
      return StoreFiles(begun, std::vector<UserFile>(), options);
    return StoreFiles(begun, FilesIn(directory, selector), options);
  }

  Result<std::string> Save(SaveRequest request, const StoreOptions& options) override {
    const bool together = ranks_->size() > 1;
    ASSIGN_OR_RETURN(const Beginning begun, Begin(request.metadata, together, "Save"));
    if (Status saved = SaveAs(begun, std::move(request), together, options); !saved.ok()) {
      return saved;
    }
    return begun.id;
  }

  Status WaitSaved() override {
    Status first;
    for (auto& [id, handle] : std::exchange(pending_, {})) {
      auto saved = repository_->Wait(id, handle);
      Status outcome = saved.ok() ? Completed(*saved) : Abandoned(id, saved.status());
      if (first.ok()) first = std::move(outcome);
    }
    return first;
  }

  Status RestorePath(const std::string& id, const PathBody& body, const Selector& selector,
                     DownloadMode mode) override {
    const bool shared = IsShared(mode);
    std::string path;
    std::unique_ptr<ScratchDirectory> scratch;
    Status read;
    if (!shared || ranks_->local_rank() == 0) {
      auto found = Find(id);
      read = found.status();
      if (found.ok()) {
        read = MakeReadable(*found, selector, &scratch, &path);
        if (!read.ok()) NoteDamage(*found, read);
      }
    }
    RETURN_IF_ERROR(Agree(shared, std::move(read)));
    if (!shared) return body(path);
    ASSIGN_OR_RETURN(const Value told, ranks_->BroadcastLocal(path));
    if (told.if_string() == nullptr) return CorruptionError("rank 0 sent no path");
    return Agree(shared, body(*told.if_string()));  // and nobody reads any more
  }

  Status Download(const std::string& id, const std::string& directory, const Selector& selector,
                  DownloadMode mode) override {
    const bool shared = IsShared(mode);
    Status read;
    if (!shared || ranks_->local_rank() == 0) {
      auto found = Find(id);
      read = found.status();
      if (found.ok()) {
        read = FetchFiles(*found, directory, selector);
        if (!read.ok()) NoteDamage(*found, read);
      }
    }
    return Agree(shared, std::move(read));
  }

  Result<std::optional<Restored>> Restore(RestoreRequest request) override {
    RETURN_IF_ERROR(CheckOpen());
    RETURN_IF_ERROR(WaitSaved());
    if (request.id.empty() && ranks_->size() > 1) {
      ASSIGN_OR_RETURN(request.id, LatestId());
      if (request.id.empty()) return std::optional<Restored>();
    }
    if (request.id.empty() && latest_.has_value() && newest_.second.empty()) request.id = *latest_;
    std::string where = storage_;
    if (!request.id.empty()) {  // it may be another trial's
      ASSIGN_OR_RETURN(const CheckpointInfo info, Find(request.id));
      request.id.clear();
      request.path = info.path;
      where = info.path.substr(0, info.path.rfind('/'));
    }
    if (ranks_->is_chief()) {
      ASSIGN_OR_RETURN(CheckpointManager* const manager, repository_->Owner());
      return manager->Restore(std::move(request));
    }
    ASSIGN_OR_RETURN(const auto reader, CheckpointManager::Open({.directory = where,
                                                                 .rank = ranks_->rank(),
                                                                 .world_size = ranks_->size(),
                                                                 .read_only = true}));
    return reader->Restore(std::move(request));
  }

  Result<Value> GetMetadata(const std::string& id) override {
    ASSIGN_OR_RETURN(CheckpointInfo info, Find(id));
    return std::move(info.metadata);
  }

  Result<std::vector<CheckpointInfo>> List() override {
    ASSIGN_OR_RETURN(std::vector<CheckpointInfo> infos, repository_->List());
    std::erase_if(infos, [](const CheckpointInfo& info) { return info.foreign; });
    return infos;
  }

  Status Delete(const std::string& id) override {
    RETURN_IF_ERROR(CheckChief("Delete"));
    RETURN_IF_ERROR(WaitSaved());
    ASSIGN_OR_RETURN(CheckpointManager* const manager, repository_->Owner());
    RETURN_IF_ERROR(manager->Delete(id));
    return client_ == nullptr ? Status::Ok() : client_->CheckpointDeleted(id);
  }

  bool ShouldPreempt(bool acknowledge) override {
    const bool alone = ranks_->size() == 1;
    if (preempt_mode_ == PreemptMode::kChiefOnly && !ranks_->is_chief()) {
      return Unasked(InvalidArgumentError(fmt::format(
          "rank {} asks whether to stop, and in PreemptMode::kChiefOnly only rank 0 does",
          ranks_->rank())));
    }
    asked_ = client_ != nullptr && client_->preempt();
    bool told = asked_ || (signals_ != nullptr && signals_->received());
    if (!alone && preempt_mode_ == PreemptMode::kWorkersAskChief) {
      const auto answer = ranks_->Broadcast(Value::List{told, asked_});
      if (!answer.ok()) return Unasked(answer.status().WithContext("ask whether to stop"));
      const Value::List* both = answer->if_list();
      if (both == nullptr || both->size() != 2) {
        return Unasked(CorruptionError("ask whether to stop: rank 0 gave no answer"));
      }
      told = (*both)[0] == Value(true);
      asked_ = (*both)[1] == Value(true);
    }
    if (told && acknowledge && !acknowledged_) {
      const Status status = AcknowledgePreemption();
      if (!status.ok()) LogWarning("preemption could not be acknowledged: " + status.ToString());
    }
    return told;
  }

  Status AcknowledgePreemption() override {
    // Told by a signal alone: the engine has asked for nothing.
    if (client_ == nullptr || !(asked_ || client_->preempt())) return Status::Ok();
    if (ranks_->is_chief()) RETURN_IF_ERROR(client_->AcknowledgePreemption());
    acknowledged_ = true;
    return Status::Ok();
  }

  Status Close(int code) override {
    if (closed_) return Status::Ok();
    closed_ = true;
    Status first = std::exchange(unasked_, Status::Ok());
    if (repository_ != nullptr) {
      if (Status saved = WaitSaved(); first.ok()) first = std::move(saved);
      if (Status closed = repository_->Close(); first.ok()) first = std::move(closed);
    }
    const bool by_signal =
        client_ != nullptr && !acknowledged_ && signals_ != nullptr && signals_->received();
    output_.reset();  // a run that said how it ended sends no more lines
    if (client_ != nullptr && detached_ && ranks_->is_chief()) {
      if (code == 0 && !first.ok()) code = 1;
      if (code == 0 && by_signal) code = kExitTerminated;
      if (Status told = client_->Exit(code, first.ok() ? "" : first.ToString()); first.ok()) {
        first = std::move(told);
      }
    }
    client_.reset();
    signals_.reset();
    if (own_ranks_ != nullptr) own_ranks_->Close();
    if (by_signal && first.ok()) {
      return CancelledError(
          "stopped by a signal that the trial engine does not know of: exit with another code than "
          "0, or the trial counts as complete");
    }
    return first;
  }

 private:
  /// A checkpoint that is about to be stored: what all ranks know of it.
  struct Beginning {
    std::string id;
    std::int64_t steps = 0;
    Value metadata = Value::Object{};
  };

  /// Opens the repository, at the chief, and tells all ranks with which checkpoint to begin.
  Status FindBeginning() {
    std::optional<CheckpointInfo> newest;
    std::optional<std::string> whole;
    Status opened;
    if (ranks_->is_chief()) opened = OpenRepository(&newest, &whole);
    if (ranks_->size() == 1) {
      RETURN_IF_ERROR(opened);
    }
    Value id = newest ? Value(newest->id) : Value();
    if (client_ == nullptr) id = whole ? Value(*whole) : Value();
    const Value age = Value::List{newest ? newest->generation : std::uint64_t{0},
                                  newest ? newest->sequence : std::uint64_t{0}};
    const Value error = opened.ok() ? Value() : Value("rank 0: " + opened.ToString());
    ASSIGN_OR_RETURN(const Value told, ranks_->Broadcast(Value::List{std::move(id), age, error}));
    const Value::List* words = told.if_list();
    const Value::List* numbers =
        words == nullptr || words->size() != 3 ? nullptr : (*words)[1].if_list();
    if (numbers == nullptr || numbers->size() != 2) {
      return CorruptionError("rank 0 did not say with which checkpoint to begin");
    }
    if (const std::string* why = (*words)[2].if_string()) {
      return opened.ok() ? FailedPreconditionError(*why) : opened;
    }
    age_ = {(*numbers)[0].AsInt(), (*numbers)[1].AsInt()};
    if (client_ == nullptr && (*words)[0].if_string()) latest_ = *(*words)[0].if_string();
    return Status::Ok();
  }

  Status OpenRepository(std::optional<CheckpointInfo>* newest, std::optional<std::string>* whole) {
    ASSIGN_OR_RETURN(CheckpointManager* const manager, repository_->Alone());
    ASSIGN_OR_RETURN(*newest, manager->Latest());
    if (client_ == nullptr) {  // otherwise the engine passes over what is damaged
      ASSIGN_OR_RETURN(const std::optional<CheckpointInfo> good, NewestWhole(storage_));
      if (good.has_value()) *whole = good->id;
    }
    if (!IsRemote(storage_)) {  // what killed processes left half-written
      std::error_code ignored;
      fs::remove_all(fs::path(storage_) / kStaging, ignored);
    }
    return Status::Ok();
  }

  /// Afterwards nobody would know of what is stored or reported.
  Status CheckOpen() const {
    return closed_ ? FailedPreconditionError("this context is closed") : Status::Ok();
  }

  Status CheckChief(std::string_view what) const {
    RETURN_IF_ERROR(CheckOpen());
    if (ranks_->is_chief()) return Status::Ok();
    return InvalidArgumentError(fmt::format(
        "{}: rank {} calls it, and only rank 0 may; shard is for all ranks", what, ranks_->rank()));
  }

  bool IsShared(DownloadMode mode) const {
    return mode == DownloadMode::kLocalWorkersShareDownload && ranks_->size() > 1;
  }

  bool Unasked(Status why) {
    LogError(why.ToString());
    if (unasked_.ok()) unasked_ = std::move(why);
    return true;
  }

  /// The error; where all ranks take part, one rank's error is everybody's.
  Status Agree(bool together, Status mine) {
    if (!together || ranks_->size() == 1) return mine;
    const auto said = ranks_->AllGather(mine.ok() ? Value() : Value(mine.ToString()));
    RETURN_IF_ERROR(mine);
    RETURN_IF_ERROR(said.status());
    for (std::size_t rank = 0; rank < said->size(); ++rank) {
      if ((*said)[rank].if_string() == nullptr) continue;
      return FailedPreconditionError(fmt::format("rank {} failed, so nothing is stored or read: {}",
                                                 rank, *(*said)[rank].if_string()));
    }
    return Status::Ok();
  }

  /// The checkpoint's id and metadata, refused before a byte is written.
  Result<Beginning> Begin(const Value& metadata, bool together, std::string_view what) {
    RETURN_IF_ERROR(CheckOpen());
    Beginning begun{.id = IdSource::System()->NewUuid(), .metadata = metadata};
    if (!together) {
      RETURN_IF_ERROR(CheckChief(what));
      RETURN_IF_ERROR(CheckPart(metadata));
    } else {
      RETURN_IF_ERROR(Agree(together, CheckPart(metadata)));
      ASSIGN_OR_RETURN(const std::vector<Value> parts, ranks_->AllGather(metadata));
      ASSIGN_OR_RETURN(begun.metadata, MergeMetadata(parts));
    }
    ASSIGN_OR_RETURN(begun.steps, StepsOf(begun.metadata));
    if (together) {
      ASSIGN_OR_RETURN(const Value id, ranks_->Broadcast(begun.id));
      if (id.if_string() == nullptr) return CorruptionError("rank 0 sent no id");
      begun.id = *id.if_string();
    }
    return begun;
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

  /// The directory where the checkpoint's files can be read, after their checksums were compared.
  static Status MakeReadable(const CheckpointInfo& info, const Selector& selector,
                             std::unique_ptr<ScratchDirectory>* scratch, std::string* path) {
    const fs::path inside = fs::path(info.path) / "files";
    std::error_code error;
    if (!selector && !IsRemote(info.path) && fs::is_directory(inside, error)) {
      *path = inside.string();
      return FetchFiles(info, *path, {}, FetchHow::kCheck);
    }
    ASSIGN_OR_RETURN(*scratch, ScratchDirectory::Make(fs::temp_directory_path(), "cairn-restore-"));
    *path = (*scratch)->path();
    return FetchFiles(info, *path, selector);
  }

  /// What was validated at that step, for a checkpoint that comes after it.
  Value ScoreOf(std::int64_t steps) const {
    return validated_.first == steps ? validated_.second : Value(Value::Object{});
  }

  Result<std::string> StoreFiles(const Beginning& begun, Result<std::vector<UserFile>> found,
                                 const StoreOptions& options) {
    RETURN_IF_ERROR(Agree(options.shard, found.status()));
    const bool together = options.shard && ranks_->size() > 1;
    SaveRequest request;
    request.files = *std::move(found);
    if (together) {
      ASSIGN_OR_RETURN(request.files, SettleConflicts(std::move(request.files), ranks_));
    }
    request.blocking = true;
    RETURN_IF_ERROR(SaveAs(begun, std::move(request), together, options));
    return begun.id;
  }

  /// Registers and begins the save; when it blocks, also ends it. Otherwise WaitSaved tells how it
  /// ended.
  Status SaveAs(const Beginning& begun, SaveRequest request, bool together,
                const StoreOptions& options) {
    RETURN_IF_ERROR(WaitSaved());
    ASSIGN_OR_RETURN(CheckpointManager* const manager,
                     together ? repository_->Together() : repository_->Alone());
    request.step = begun.steps;
    request.metadata = begun.metadata;
    request.lineage = Value::Object{{"registration", begun.id}};
    if (client_ != nullptr && ranks_->is_chief()) {
      RETURN_IF_ERROR(client_->RegisterCheckpoint(begun.id, begun.steps,
                                                  together ? ranks_->size() : 1, request.metadata));
    }
    Value metrics = ScoreOf(begun.steps);
    if (const Value::Object* own = request.metrics.if_object()) {
      for (const auto& [name, value] : *own) (*metrics.if_object())[name] = value;
    }
    request.metrics = std::move(metrics);
    // Waited for here, where a rank that was overtaken asks whether its save counts.
    const bool blocking = std::exchange(request.blocking, false);
    if (blocking) request.stream = true;
    auto handle = manager->Save(std::move(request));
    if (!handle.ok()) return Abandoned(begun.id, handle.status());
    pending_.emplace(begun.id, *handle);
    if (options.awaits_score) awaiting_.insert(begun.id);
    if (blocking) RETURN_IF_ERROR(WaitSaved());
    newest_ = {begun.steps, begun.id};
    return Status::Ok();
  }

  Status Abandoned(const std::string& id, const Status& why) {
    if (client_ != nullptr && ranks_->is_chief()) {
      client_->AbandonCheckpoint(id, why.ToString())
          .IgnoreError("the save's error is the one to show");
    }
    return why;
  }

  Status Completed(const CheckpointInfo& info) {
    if (client_ == nullptr || !ranks_->is_chief()) return Status::Ok();
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
    ASSIGN_OR_RETURN(CheckpointManager* const manager, repository_->Owner());
    for (const std::string& unwanted : remove) {
      const Status removed = manager->Delete(unwanted);
      if (!removed.ok() && !removed.Is(Code::kNotFound)) {
        LogWarning("checkpoint " + unwanted + " was not removed: " + removed.ToString());
        continue;  // the engine does it after the run
      }
      RETURN_IF_ERROR(client_->CheckpointDeleted(unwanted));
    }
    return Status::Ok();
  }

  /// Of several ranks: the newest that this run stored (rank 0 may have done it alone), before that
  /// the one to begin with; "" when there is none.
  Result<std::string> LatestId() {
    ASSIGN_OR_RETURN(const std::vector<CheckpointInfo> all, List());
    std::string newest;
    for (const CheckpointInfo& info : all) {
      const std::pair age(static_cast<std::int64_t>(info.generation),
                          static_cast<std::int64_t>(info.sequence));
      if (!latest_.has_value() || age > age_) newest = info.id;
    }
    return newest.empty() ? latest_.value_or("") : newest;
  }

  Result<CheckpointInfo> Find(const std::string& id) {
    RETURN_IF_ERROR(WaitSaved());
    ASSIGN_OR_RETURN(const std::vector<CheckpointInfo> own, List());
    if (auto info = FindById(own, id)) return *std::move(info);
    if (!elsewhere_.empty() && latest_ == id) {
      ASSIGN_OR_RETURN(const std::vector<CheckpointInfo> others,
                       CoreRepository::ListOf(elsewhere_));
      if (auto info = FindById(others, id)) return *std::move(info);
    }
    return NotFoundError(storage_ + " has no checkpoint " + id);
  }

  std::optional<ClusterInfo> info_;
  std::optional<std::string> latest_;
  std::string elsewhere_;  // the repository of latest_, when it is another trial's
  std::string storage_;
  // Generation and sequence of the newest checkpoint when this run began.
  std::pair<std::int64_t, std::int64_t> age_ = {0, 0};
  bool detached_ = false;
  bool closed_ = false;
  PreemptMode preempt_mode_ = PreemptMode::kWorkersAskChief;
  bool asked_ = false;  // by the engine, not by a signal alone
  bool acknowledged_ = false;
  Status unasked_;  // why a question whether to stop could not be asked
  std::unique_ptr<SignalWatch> signals_;
  std::unique_ptr<DistributedContext> own_ranks_;
  DistributedContext* ranks_ = nullptr;
  std::unique_ptr<RunClient> client_;
  std::unique_ptr<RunOutput> output_;  // of a run that nobody launched
  std::unique_ptr<CoreRepository> repository_;
  std::map<std::string, SaveHandle> pending_;
  std::set<std::string, std::less<>> awaiting_;  // ids whose score is still to come
  std::pair<std::int64_t, std::string> newest_;  // steps and id of the last one stored here
  // Steps and metrics of the last validation, without a master.
  std::pair<std::int64_t, Value> validated_ = {-1, Value::Object{}};
};

}  // namespace

Result<std::unique_ptr<Context>> Init(InitOptions options) {
  auto context = std::make_unique<ContextImpl>();
  RETURN_IF_ERROR(context->Open(std::move(options)));
  return std::unique_ptr<Context>(std::move(context));
}

}  // namespace cairn::core
