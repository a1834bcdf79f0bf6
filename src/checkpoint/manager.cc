#include "checkpoint/manager.h"

#include <unistd.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <new>
#include <set>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/short_slices.h"
#include "base/status_macros.h"
#include "base/worker_pool.h"
#include "checkpoint/arena.h"
#include "checkpoint/committer.h"
#include "checkpoint/coverage.h"
#include "checkpoint/generation.h"
#include "checkpoint/manager_input.h"
#include "checkpoint/names.h"
#include "checkpoint/plan_cache.h"
#include "checkpoint/removal.h"
#include "checkpoint/repository.h"
#include "checkpoint/restorer.h"
#include "checkpoint/save_task.h"
#include "checkpoint/save_turn.h"
#include "checkpoint/snapshot.h"
#include "checkpoint/stored_tables.h"

namespace cairn {
namespace {

constexpr std::chrono::hours kLong{1};
// Between looks for the word of the rank that decides.
constexpr std::chrono::milliseconds kFirstLook{1};
constexpr std::chrono::milliseconds kLastLook{50};
constexpr std::chrono::milliseconds kSayAgain{200};  // what a full disk kept from being written

class Manager final : public CheckpointManager, public SaveTurns {
 public:
  Manager(ManagerOptions options, Environment env, LayoutLimits limits)
      : options_(std::move(options)),
        env_(std::move(env)),
        limits_(limits),
        plans_({.participant = Self(),
                .rank = Collective() ? options_.rank : 0,
                .world_size = Collective() ? options_.world_size : 1,
                .limits = limits,
                .index_file = !Collective()}),
        reader_(env_.store.get(), env_.rules),
        owner_pid_(getpid()) {}
  ~Manager() override;
  /// A forked child has copies of the waiting threads' locks and none of the threads: there nothing
  /// of it may be destroyed, which would wait for them for ever, and its memory goes with the
  /// child.
  static void operator delete(Manager* manager, std::destroying_delete_t) {
    if (getpid() != manager->owner_pid_) return;
    manager->~Manager();
    ::operator delete(manager);
  }

  Status Start();

  Result<SaveHandle> Save(SaveRequest request) override EXCLUDES(mu_);
  Result<std::optional<SaveHandle>> AwaitTurn(std::int64_t step) override EXCLUDES(mu_);
  bool TurnWithin(std::chrono::nanoseconds patience) override EXCLUDES(mu_);
  bool IdleWithin(std::chrono::nanoseconds patience) override EXCLUDES(mu_);
  void AddStall(std::chrono::nanoseconds stall) override { prepared_ = stall; }
  Result<std::optional<Restored>> Restore(RestoreRequest request) override;
  Result<std::vector<CheckpointInfo>> List() override;
  Result<std::optional<CheckpointInfo>> Latest() override;
  Status WaitAll() override EXCLUDES(mu_);
  Status Pin(const std::string& id) override;
  Status Unpin(const std::string& id) override;
  Status AddMetrics(const std::string& id, Value metrics) override;
  Status Delete(const std::string& id) override;
  Status Close() override EXCLUDES(mu_);
  std::uint64_t generation() const override { return generation_ ? generation_->number() : 0; }
  const std::string& job() const override { return job_; }

 private:
  std::string Self() const { return names::Participant(options_.participant, options_.rank); }
  bool Collective() const { return options_.world_size > 1 && !options_.private_parts; }
  Status CheckUsable(bool writing) const;
  Status CheckSpace(const SavePlan& plan);
  SaveHandle Skip(std::int64_t step);
  /// With several ranks: an attempt has this rank's save neither now nor later. The others count
  /// attempts, so it takes its number, and a background thread tells them.
  void Decline(std::int64_t step) REQUIRES(mu_);
  /// What is to become of the next save.
  enum class Turn : std::uint8_t {
    kOurs,     // nothing is in flight
    kSkipped,  // by this rank, or by the one that decides
    kUnknown,  // not within that time
  };
  Turn WaitForTurn(std::chrono::nanoseconds patience) EXCLUDES(mu_);
  bool Committing() const { return !Collective() || options_.rank == 0; }
  /// Whether saves are declined while another is in flight, and others wait for that word.
  bool HasTeller() const {
    return Collective() && Committing() && options_.on_busy == OnBusy::kSkip;
  }
  bool Idle() const REQUIRES(mu_) { return task_ == nullptr && skips_.empty(); }
  Result<SavePlan> Plan(const SaveRequest& request, bool streamed);
  void WaitIdle() REQUIRES(mu_);
  /// Of the last save, once.
  Status TakeSaveFailure() REQUIRES(mu_);
  /// That, or what failed beside the saves.
  Status TakeFailure() REQUIRES(mu_);
  /// How retention's last pass ended. A checkpoint too many is no reason not to make the next one,
  /// so it is logged, and told to who waits.
  void NoteRemovals(const Status& status) REQUIRES(mu_);
  void Background(std::stop_token stop) EXCLUDES(mu_);
  void TellSkips(std::stop_token stop) EXCLUDES(mu_);
  /// Of the first of `skips_`.
  void TellSkip(const SaveTask& skip) EXCLUDES(mu_);
  void RunTask(SaveTask* task);
  Status Note(const std::string& id, NoteKind kind, Value values);
  /// For lists: what is missing there is told once.
  Result<RepositoryView> ReadForList() EXCLUDES(mu_);

  const ManagerOptions options_;
  const Environment env_;
  const LayoutLimits limits_;
  PlanCache plans_;  // as the committer: by the background thread, or while it is idle
  RepositoryReader reader_;
  const pid_t owner_pid_;
  std::string job_;
  std::unique_ptr<Generation> generation_;  // null when read-only
  std::unique_ptr<Committer> committer_;    // used by the background thread, or while it is idle
  std::unique_ptr<WorkerPool> pool_;
  Arena arena_;                    // written by Save while idle, read by the background thread
  std::uint64_t last_number_ = 0;  // of the attempts; by the caller of Save
  std::chrono::nanoseconds prepared_{0};  // how long the caller prepared the save; likewise

  Mutex mu_;
  CondVar changed_;
  std::unique_ptr<SaveTask> task_ GUARDED_BY(mu_);               // in flight
  std::deque<std::unique_ptr<SaveTask>> skips_ GUARDED_BY(mu_);  // announcements still to be made
  std::shared_ptr<SaveHandle::State> last_ GUARDED_BY(mu_);      // shared with the caller's handle
  Status decline_failure_ GUARDED_BY(mu_);      // others could not be told: no handle reports it
  Status removal_failure_ GUARDED_BY(mu_);      // of retention's last pass; no handle reports it
  std::string logged_removal_ GUARDED_BY(mu_);  // its message, when it was logged
  bool saved_ GUARDED_BY(mu_) = false;          // something was committed in this opening
  bool closed_ GUARDED_BY(mu_) = false;
  std::set<std::string> told_unread_ GUARDED_BY(mu_);  // directories

  std::jthread teller_;  // of skipped saves, beside the one in flight (HasTeller)
  std::jthread thread_;  // last: joined first
};

Manager::~Manager() {
  const Status closed = Close();
  if (!closed.ok() && !closed.Is(Code::kFailedPrecondition)) {
    LogError("a save failed and nobody asked: " + closed.ToString());
  }
}

Status Manager::Start() {
  if (options_.read_only) {
    auto record = reader_.ReadRecord();
    if (!record.ok()) return record.status();
    job_ = record->job;
    return Status::Ok();
  }
  GenerationOptions open;
  open.job = options_.job;
  open.run = options_.run;
  open.takeover = options_.takeover;
  open.join_deadline = options_.join_deadline;
  open.cancelled = options_.cancelled;
  if (Collective()) {
    for (int rank = 0; rank < options_.world_size; ++rank) {
      open.participants.push_back(names::Participant(options_.participant, rank));
    }
    open.self = static_cast<std::size_t>(options_.rank);
  } else {
    open.participants = {Self()};
  }
  CommitterOptions commit;
  commit.participants = open.participants;
  commit.self = open.self;
  commit.rank = options_.rank;
  commit.world_size = options_.world_size;
  commit.private_parts = options_.private_parts;
  commit.serial_names = options_.naming == Naming::kSerial;
  commit.retention = options_.retention;
  commit.deadline = options_.deadline;
  commit.pool_bytes = options_.pool_bytes;
  commit.recycle_from_bytes = limits_.recycle_from_bytes;
  switch (options_.disk_writes) {
    case DiskWrites::kAuto:
      commit.mode = WriteMode::kAuto;
      break;
    case DiskWrites::kDirect:
      commit.mode = WriteMode::kDirect;
      break;
    case DiskWrites::kBuffered:
      commit.mode = WriteMode::kBuffered;
      break;
  }
  ASSIGN_OR_RETURN(generation_, Generation::Open(env_, std::move(open)));
  job_ = generation_->job();
  ASSIGN_OR_RETURN(committer_, Committer::Open(env_, generation_.get(), std::move(commit)));
  ASSIGN_OR_RETURN(last_number_, committer_->LastDecidedAttempt());
  pool_ = std::make_unique<WorkerPool>(options_.copy_threads);
  thread_ = std::jthread([this](std::stop_token stop) { Background(std::move(stop)); });
  if (HasTeller()) {
    teller_ = std::jthread([this](std::stop_token stop) { TellSkips(std::move(stop)); });
  }
  return Status::Ok();
}

Status Manager::CheckUsable(bool writing) const {
  if (getpid() != owner_pid_) {
    return FailedPreconditionError(
        "this CheckpointManager was opened by the parent process; open another one after fork");
  }
  if (writing && generation_ == nullptr) {
    return FailedPreconditionError("\"" + env_.store->Describe() + "\" was opened read-only");
  }
  return Status::Ok();
}

Status Manager::CheckSpace(const SavePlan& plan) {
  std::uint64_t needed = 0;
  for (const PlannedFile& file : plan.files) {
    if (!file.expect_unchanged) needed += file.bytes;
  }
  const auto available = [this]() -> Result<std::uint64_t> {
    const auto free = env_.store->FreeBytes();
    if (free.status().code() == Code::kNotFound) {
      return NotFoundError("\"" + env_.store->Describe() +
                           "\" is gone: it was moved or removed while it was open; what was saved "
                           "before is where the directory is now");
    }
    if (!free.ok()) return free.status();
    return *free ? **free + committer_->pooled_bytes() : std::numeric_limits<std::uint64_t>::max();
  };
  ASSIGN_OR_RETURN(std::uint64_t room, available());
  // For names, records and rounding; what the file system takes for them nobody can tell exactly.
  const std::uint64_t beside = (1u << 20) + plan.files.size() * (8u << 10);
  std::uint64_t freed = 0;
  Status removed;
  if (needed + beside > room && Committing()) {
    // Whoever keeps fewer than before gets their room now, not after a save that does not fit.
    const std::uint64_t kept = committer_->kept_bytes();
    removed = committer_->ApplyRetention();
    freed = kept - committer_->kept_bytes();
    ASSIGN_OR_RETURN(room, available());
  }
  // Btrfs counts it as free after half a minute, and gives it to whoever asks before.
  if (needed <= room || needed <= room + freed) return Status::Ok();
  return ResourceExhaustedError("no space: the checkpoint needs " + std::to_string(needed) +
                                " bytes, \"" + env_.store->Describe() + "\" has " +
                                std::to_string(room) +
                                " free; delete checkpoints (`cairn checkpoint rm`) or keep fewer" +
                                (removed.ok() ? "" : " (" + std::string(removed.message()) + ")"));
}

void Manager::WaitIdle() {
  while (!Idle()) changed_.Wait(&mu_);
}

Status Manager::TakeSaveFailure() {
  return last_ == nullptr ? Status::Ok() : last_->TakeUnreportedFailure();
}

Status Manager::TakeFailure() {
  RETURN_IF_ERROR(TakeSaveFailure());
  const Status untold = std::exchange(decline_failure_, Status::Ok());
  // What could not be said at first may have been said since.
  if (!untold.ok() && (untold.Is(Code::kAborted) || committer_->owes_word())) return untold;
  return std::exchange(removal_failure_, Status::Ok());
}

void Manager::NoteRemovals(const Status& status) {
  removal_failure_ = status;
  if (std::exchange(logged_removal_, std::string(status.message())) == status.message()) return;
  if (status.ok()) return;
  LogWarning("\"" + env_.store->Describe() + "\": a checkpoint that need not stay could not be " +
             "removed; saves go on, and it is tried again: " + status.ToString());
}

SaveHandle Manager::Skip(std::int64_t step) {
  auto state = std::make_shared<SaveHandle::State>(env_.clock);
  state->MarkCopied(Status::Ok());
  state->Finish(CancelledError("step " + std::to_string(step) +
                               " was skipped: the save before it is still being written"));
  LogInfo("the save of step " + std::to_string(step) + " was skipped: still busy");
  return SaveHandle(state);
}

void Manager::Decline(std::int64_t step) {
  if (!Collective()) return;
  auto skip = std::make_unique<SaveTask>();
  skip->request.step = step;
  skip->number = ++last_number_;
  skip->skipped = true;
  skips_.push_back(std::move(skip));
  changed_.NotifyAll();
}

Result<SavePlan> Manager::Plan(const SaveRequest& request, bool streamed) {
  env_.Step("save: plan");
  RETURN_IF_ERROR(CheckTableFacts(request.tables, request.tensors));
  RETURN_IF_ERROR(committer_->CheckIncrement(request));
  ASSIGN_OR_RETURN(SavePlan plan, plans_.Plan(request, committer_->history(),
                                              committer_->history_version(), streamed));
  // After the plan, which knows that each shard is inside its array.
  if (!Collective() && !options_.private_parts) {
    RETURN_IF_ERROR(CheckShardsFillArrays(request.tensors));
  }
  RETURN_IF_ERROR(CheckSpace(plan));
  RETURN_IF_ERROR(arena_.Reserve(plan.arena_bytes));
  return plan;
}

Result<std::optional<SaveHandle>> Manager::AwaitTurn(std::int64_t step) {
  RETURN_IF_ERROR(CheckUsable(true));
  Turn turn = Turn::kUnknown;
  while (turn == Turn::kUnknown) turn = WaitForTurn(kLong);
  MutexLock lock(&mu_);
  if (closed_) return FailedPreconditionError("this CheckpointManager is closed");
  if (turn == Turn::kOurs) return std::optional<SaveHandle>();
  if (Committing()) {
    Decline(step);
  } else {
    ++last_number_;  // which was told to be skipped
  }
  return std::optional(Skip(step));
}

Manager::Turn Manager::WaitForTurn(std::chrono::nanoseconds patience) {
  const auto end = std::chrono::steady_clock::now() + patience;
  const bool skips = options_.on_busy == OnBusy::kSkip;
  // Whoever decides may be done with the save before, or it may not: only its word tells. What it
  // has said stays said, and then this rank's own save before is all that is waited for, as when
  // its word cannot be read.
  bool undecided = skips && !Committing();
  std::chrono::nanoseconds pause = kFirstLook;
  for (;;) {
    {
      MutexLock lock(&mu_);
      if (closed_ || Idle()) return Turn::kOurs;
      if (skips && Committing() && task_ != nullptr) return Turn::kSkipped;
    }
    if (undecided) {
      const auto skipped = committer_->IsSkipped(last_number_ + 1);
      if (skipped.ok() && *skipped && **skipped) return Turn::kSkipped;
      undecided = skipped.ok() && !*skipped;
    }
    MutexLock lock(&mu_);
    if (closed_ || Idle()) return Turn::kOurs;
    const auto left = end - std::chrono::steady_clock::now();
    if (left <= left.zero()) return Turn::kUnknown;
    changed_.WaitFor(&mu_, undecided ? std::min(left, pause) : left);
    pause = std::min<std::chrono::nanoseconds>(pause * 2, kLastLook);
  }
}

bool Manager::TurnWithin(std::chrono::nanoseconds patience) {
  if (!CheckUsable(true).ok()) return true;  // as AwaitTurn will say
  return WaitForTurn(patience) != Turn::kUnknown;
}

bool Manager::IdleWithin(std::chrono::nanoseconds patience) {
  if (!CheckUsable(false).ok()) return true;
  const auto end = std::chrono::steady_clock::now() + patience;
  MutexLock lock(&mu_);
  while (!Idle()) {
    const auto left = end - std::chrono::steady_clock::now();
    if (left <= left.zero()) return false;
    changed_.WaitFor(&mu_, left);
  }
  return true;
}

Result<SaveHandle> Manager::Save(SaveRequest request) {
  const Clock::Duration begun = env_.clock->Now() - std::exchange(prepared_, {});
  RETURN_IF_ERROR(CheckUsable(true));
  if (request.step < 0) {
    return InvalidArgumentError("step must not be negative: " + std::to_string(request.step));
  }
  RETURN_IF_ERROR(ValidateValues(request));
  ASSIGN_OR_RETURN(const std::optional<SaveHandle> skipped, AwaitTurn(request.step));
  if (skipped) return *skipped;
  {
    MutexLock lock(&mu_);
    const Status failure = TakeSaveFailure();
    if (!failure.ok()) {
      Decline(request.step);
      return failure;
    }
  }
  // Idle from here until the task is handed over: arena and committer are ours.
  // A caller who waits anyway needs no snapshot: its memory is copied and written piece by piece.
  const bool streamed = request.blocking || request.stream || options_.low_memory;
  const bool blocking = request.blocking;
  const bool stream = request.stream;
  auto plan = Plan(request, streamed);
  if (!plan.ok()) {
    const Status why = committer_->WhyFailed(plan.status());
    MutexLock lock(&mu_);
    Decline(request.step);
    return why;
  }

  auto task = std::make_unique<SaveTask>();
  auto state = std::make_shared<SaveHandle::State>(env_.clock);
  task->state = state;
  task->plan = *std::move(plan);
  task->request = std::move(request);
  task->number = ++last_number_;
  task->copy_in_background = task->request.lazy && !streamed;
  if (!task->copy_in_background) {
    env_.Step("save: snapshot");
    CopyIntoArena(task->request, task->plan, arena_.data(), pool_.get());
    if (!streamed) state->MarkCopied(Status::Ok());
  }
  {
    MutexLock lock(&mu_);
    last_ = state;
    task_ = std::move(task);
  }
  changed_.NotifyAll();
  SaveHandle handle(state);
  Status ended;
  if (blocking) {
    ended = handle.Wait().status();
  } else if (streamed && !stream) {
    ended = handle.Guard();  // low memory
    if (!ended.ok()) ended = handle.Wait().status();
  }
  state->AddStall(env_.clock->Now() - begun);
  if (!ended.ok()) return ended;
  return handle;
}

void Manager::Background(std::stop_token stop) {
  PreferShortSlices();
  // Under the lock: between the loop's look at the token and its wait nothing may be missed.
  std::stop_callback wake(stop, [this] {
    MutexLock lock(&mu_);
    changed_.NotifyAll();
  });
  for (;;) {
    SaveTask* task = nullptr;
    SaveTask* skip = nullptr;
    {
      MutexLock lock(&mu_);
      const auto to_tell = [this]() REQUIRES(mu_) { return !skips_.empty() && !HasTeller(); };
      while (task_ == nullptr && !to_tell() && !stop.stop_requested()) {
        const bool owes = committer_->owes_word();  // also since another thread declined a save
        if (!owes) changed_.Wait(&mu_);
        if (owes && !changed_.WaitFor(&mu_, kSayAgain)) break;
      }
      if (task_ != nullptr) {
        task = task_.get();
      } else if (to_tell()) {
        skip = skips_.front().get();
      } else if (stop.stop_requested()) {
        return;
      }
    }
    if (task == nullptr) {
      skip != nullptr ? TellSkip(*skip) : committer_->SayOwed();
      continue;
    }
    RunTask(task);
    plans_.Return(std::move(task->plan), std::move(task->request.tensors));
    env_.Step("retention");
    const Status removed = committer_->ApplyRetention();
    env_.Step("idle");
    {
      MutexLock lock(&mu_);
      NoteRemovals(removed);
      task_.reset();
    }
    changed_.NotifyAll();
  }
}

void Manager::TellSkips(std::stop_token stop) {
  std::stop_callback wake(stop, [this] {
    MutexLock lock(&mu_);
    changed_.NotifyAll();
  });
  for (;;) {
    SaveTask* skip = nullptr;
    {
      MutexLock lock(&mu_);
      while (skips_.empty() && !stop.stop_requested()) changed_.Wait(&mu_);
      if (skips_.empty()) return;
      skip = skips_.front().get();
    }
    TellSkip(*skip);
  }
}

void Manager::TellSkip(const SaveTask& skip) {
  const Status told = committer_->Decline(skip);
  {
    MutexLock lock(&mu_);
    if (!told.ok()) decline_failure_ = told;
    skips_.pop_front();
  }
  changed_.NotifyAll();
}

void Manager::RunTask(SaveTask* task) {
  if (task->copy_in_background) {
    env_.Step("save: snapshot");
    CopyIntoArena(task->request, task->plan, arena_.data(), pool_.get());
    task->state->MarkCopied(Status::Ok());
  }
  auto info = committer_->Commit(*task, task->plan.arena_bytes == 0 ? nullptr : arena_.data());
  if (!info.ok()) {
    for (const Tensor& tensor : task->request.tensors) {
      if (tensor.source != nullptr) tensor.source->Abandoned();
    }
    task->state->Finish(
        info.status().WithContext("save of step " + std::to_string(task->request.step)));
    return;
  }
  env_.Step("acknowledge");
  {
    MutexLock lock(&mu_);
    saved_ = true;
  }
  task->state->Finish(*std::move(info));
}

Status Manager::WaitAll() {
  RETURN_IF_ERROR(CheckUsable(false));
  MutexLock lock(&mu_);
  WaitIdle();
  return TakeFailure();
}

Status Manager::Close() {
  RETURN_IF_ERROR(CheckUsable(false));
  Status failure;
  {
    MutexLock lock(&mu_);
    if (closed_) return Status::Ok();
    WaitIdle();
    closed_ = true;
  }
  // The last try: others wait for it until their deadline.
  if (committer_ != nullptr && committer_->owes_word()) committer_->SayOwed();
  {
    MutexLock lock(&mu_);
    failure = TakeFailure();
  }
  for (std::jthread* thread : {&thread_, &teller_}) {
    if (!thread->joinable()) continue;
    thread->request_stop();
    thread->join();
  }
  if (generation_ != nullptr) generation_->Release();
  return failure;
}

Result<RepositoryView> Manager::ReadForList() {
  ASSIGN_OR_RETURN(RepositoryView view, reader_.Read());
  MutexLock lock(&mu_);
  for (const DamagedCheckpoint& damaged : view.damaged) {
    if (!damaged.unread || !told_unread_.insert(damaged.directory).second) continue;
    LogWarning("\"" + env_.store->Describe() + "\": " + damaged.directory +
               " cannot be read and is not listed: " + std::string(damaged.status.message()));
  }
  return view;
}

Result<std::vector<CheckpointInfo>> Manager::List() {
  RETURN_IF_ERROR(CheckUsable(false));
  ASSIGN_OR_RETURN(const RepositoryView view, ReadForList());
  std::vector<CheckpointInfo> infos;
  for (const Checkpoint& checkpoint : view.checkpoints) {
    if (checkpoint.counts || checkpoint.foreign) {
      infos.push_back(MakeInfo(*env_.store, checkpoint));
    }
  }
  return infos;
}

Result<std::optional<CheckpointInfo>> Manager::Latest() {
  RETURN_IF_ERROR(CheckUsable(false));
  ASSIGN_OR_RETURN(const RepositoryView view, ReadForList());
  const Checkpoint* latest = view.Latest();
  if (latest == nullptr) return std::optional<CheckpointInfo>();
  return std::optional(MakeInfo(*env_.store, *latest));
}

Result<std::optional<Restored>> Manager::Restore(RestoreRequest request) {
  RETURN_IF_ERROR(CheckUsable(false));
  bool saved = false;
  {
    MutexLock lock(&mu_);
    WaitIdle();
    RETURN_IF_ERROR(TakeSaveFailure());
    saved = saved_;
  }
  Restorer restorer({.env = &env_,
                     .reader = &reader_,
                     .generation = generation_.get(),
                     .committer = committer_.get(),
                     .participant = Self(),
                     .job = job_,
                     .together = Collective() && generation_ != nullptr});
  return restorer.Restore(request, saved);
}

Status Manager::Note(const std::string& id, NoteKind kind, Value values) {
  RETURN_IF_ERROR(CheckUsable(false));
  ASSIGN_OR_RETURN(const RepositoryView view, reader_.Read());
  const Checkpoint* checkpoint = view.Find(id);
  if (checkpoint == nullptr) {
    return NotFoundError("\"" + env_.store->Describe() + "\" has no checkpoint with id " + id);
  }
  NoteRecord note;
  note.kind = kind;
  note.values = std::move(values);
  return AppendNote(env_, checkpoint->directory, id, std::move(note)).status();
}

Status Manager::Pin(const std::string& id) { return Note(id, NoteKind::kPin, Value::Object{}); }
Status Manager::Unpin(const std::string& id) { return Note(id, NoteKind::kUnpin, Value::Object{}); }

Status Manager::AddMetrics(const std::string& id, Value metrics) {
  if (!metrics.is_object()) return InvalidArgumentError("metrics must be an object");
  RETURN_IF_ERROR(Note(id, NoteKind::kScore, std::move(metrics)));
  if (committer_ == nullptr) return Status::Ok();  // the writer looks before it removes
  MutexLock lock(&mu_);
  if (closed_) return FailedPreconditionError("this CheckpointManager is closed");
  WaitIdle();
  RETURN_IF_ERROR(committer_->Reload());
  NoteRemovals(committer_->ApplyRetention());
  return Status::Ok();
}

Status Manager::Delete(const std::string& id) {
  RETURN_IF_ERROR(CheckUsable(true));
  MutexLock lock(&mu_);
  if (closed_) return FailedPreconditionError("this CheckpointManager is closed");
  WaitIdle();
  return committer_->Delete(id);
}

}  // namespace

Result<Environment> EnvironmentAt(const std::string& where, const OpenStoreOptions& options) {
  if (where.empty()) return InvalidArgumentError("the directory's name is empty");
  Environment env;
  ASSIGN_OR_RETURN(env.store, OpenStore(where, options));
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  env.host = host;
  env.pid = getpid();
  return env;
}

Result<std::unique_ptr<CheckpointManager>> OpenManager(ManagerOptions options, Environment env,
                                                       LayoutLimits limits) {
  RETURN_IF_ERROR(ValidateOptions(options));
  auto manager = std::make_unique<Manager>(std::move(options), std::move(env), limits);
  RETURN_IF_ERROR(manager->Start());
  return std::unique_ptr<CheckpointManager>(std::move(manager));
}

Result<std::unique_ptr<CheckpointManager>> CheckpointManager::Open(ManagerOptions options) {
  RETURN_IF_ERROR(ValidateOptions(options));
  ASSIGN_OR_RETURN(Environment env, EnvironmentAt(options.directory, {.create = !options.read_only,
                                                                      .storage = options.storage}));
  return OpenManager(std::move(options), std::move(env));
}

}  // namespace cairn
