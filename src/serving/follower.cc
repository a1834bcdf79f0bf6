#include "serving/follower.h"

#include <algorithm>
#include <exception>
#include <filesystem>
#include <new>
#include <system_error>
#include <utility>

#include "base/log.h"
#include "base/status_macros.h"
#include "checkpoint/table_restore.h"
#include "serving/update_sink.h"
#include "storage/interruptible_store.h"
#include "storage/open_store.h"

namespace cairn::serving {
namespace {

constexpr std::uint64_t kBlockBytes = 1u << 20;
constexpr std::chrono::milliseconds kBurst{20};
constexpr std::size_t kRemembered = 10'000;  // reports that are not repeated

/// What an exception that came out of an update is to those who are told.
Status StatusOf(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    return ResourceExhaustedError("there is no memory for an update");
  }
  return InternalError(error.what());
}

}  // namespace

Result<std::unique_ptr<Follower>> Follower::Open(FollowerOptions options, Versions* versions,
                                                 DenseLoader* dense,
                                                 std::function<void(const UpdateReport&)> report) {
  if (options.repository.empty()) return InvalidArgumentError("no repository to follow was named");
  if (!(options.cpu_share > 0)) return InvalidArgumentError("cpu_share must be over 0");
  if (options.poll <= std::chrono::nanoseconds(0)) {
    return InvalidArgumentError("the period of polling must be over 0");
  }
  std::string path;
  if (!IsRemote(options.repository)) {
    ASSIGN_OR_RETURN(path, LocalPath(options.repository));
    // The process may work in another directory later.
    std::error_code error;
    if (auto whole = std::filesystem::absolute(path, error); !error) path = whole.string();
    options.repository = path;
    while (path.size() > 1 && path.back() == '/') path.pop_back();
  }
  ASSIGN_OR_RETURN(auto watch, DirectoryWatch::Open(std::move(path)));
  std::unique_ptr<Follower> follower(
      new Follower(std::move(options), versions, dense, std::move(report), std::move(watch)));
  if (IsRemote(follower->options_.repository) && !follower->options_.open) {
    // A place that cannot be will not come, unlike one that is not there. Nobody is asked yet.
    auto store = follower->OpenRepository();
    if (store.status().Is(Code::kInvalidArgument)) return store.status();
    if (store.ok()) follower->SetStore(*std::move(store));
  }
  return follower;
}

Follower::Follower(FollowerOptions options, Versions* versions, DenseLoader* dense,
                   std::function<void(const UpdateReport&)> report,
                   std::unique_ptr<DirectoryWatch> watch)
    : options_(std::move(options)),
      versions_(versions),
      dense_(dense),
      report_(std::move(report)),
      watch_(std::move(watch)),
      job_(options_.job),
      setbacks_(options_.clock, options_.poll) {
  state_.increments = options_.increments;
}

Follower::~Follower() { Stop(); }

void Follower::Stop() {
  stopping_ = true;
  {
    const MutexLock lock(&mu_);
    if (store_ != nullptr) Interrupt(store_.get());
  }
  if (thread_.joinable()) {
    thread_.request_stop();
    watch_->Wake();
    thread_.join();
  }
}

void Follower::Start() {
  thread_ = std::jthread([this](const std::stop_token& stop) { Run(stop); });
}

void Follower::Run(const std::stop_token& stop) {
  Pace::StandBehind();
  while (!stop.stop_requested()) {
    LookInTurn().IgnoreError("reported; the version that is there stays");
    if (stop.stop_requested()) break;
    watch_->Wait(setbacks_.UntilNext(options_.poll));
  }
}

// ---------------------------------------------------------------- one look

Status Follower::Look() { return LookWith(Effort::kAll); }
Status Follower::LookInTurn() { return LookWith(Effort::kDue); }

Status Follower::LookWith(Effort effort) {
  static const Status no_memory = ResourceExhaustedError("there is no memory to look with");
  const auto used = [this] {
    const auto own = options_.cpu_time ? options_.cpu_time() : Pace::ThreadTime();
    return own + (dense_ == nullptr ? std::chrono::nanoseconds(0) : dense_->elsewhere());
  };
  try {
    Pace pace({.clock = options_.clock,
               .share = options_.cpu_share,
               .burst = kBurst,
               .used = used,
               .stopped = [this] { return stopping_.load(); }});
    try {
      Status looked = LookOnce(effort, &pace);
      if (effort == Effort::kDue) pace.Pause();
      return looked;
    } catch (const std::exception& error) {
      Status failed = StatusOf(error);
      Unreachable(failed, "");
      return state_.tip ? Status::Ok() : failed;
    }
  } catch (const std::exception&) {
    return no_memory;  // not even to say so
  }
}

Result<RepositoryView> Follower::ReadRepository() {
  if (store_ == nullptr) {
    ASSIGN_OR_RETURN(auto store, OpenRepository());
    SetStore(std::move(store));
  }
  RepositoryReader reader(store_.get());
  auto view = reader.Read();
  if (!view.ok()) SetStore(nullptr);  // the directory may come back as another one
  return view;
}

Result<std::unique_ptr<Store>> Follower::OpenRepository() const {
  if (options_.open) return options_.open();
  return OpenUnasked(options_.repository, options_.storage);
}

void Follower::SetStore(std::unique_ptr<Store> store) {
  {
    const MutexLock lock(&mu_);
    store_.swap(store);
    if (store_ != nullptr && stopping_) Interrupt(store_.get());
  }
  // The one before goes here: whatever it waits for, nobody else does.
}

/// A directory that now holds another job's repository is not what was being followed.
Status Follower::CheckJob(const RepositoryView& view) {
  if (job_.empty()) job_ = view.record.job;
  if (view.record.job == job_) return Status::Ok();
  return OwnedByAnotherJobError("the repository belongs to the job " + view.record.job + ", and " +
                                job_ + " is being followed");
}

Status Follower::LookOnce(Effort effort, Pace* pace) {
  watch_->Arm();
  auto view = ReadRepository();
  Status readable = view.ok() ? CheckJob(*view) : view.status();
  if (!readable.ok()) {
    if (!stopping_) Unreachable(readable, "");
    versions_->Collect();
    return state_.tip ? Status::Ok() : readable;
  }
  SetAside(*view, effort);
  {
    const MutexLock lock(&mu_);
    stats_.reachable = !setbacks_.HoldsTold();
  }
  // It is reachable: the next failure is news.
  unreachable_for_.clear();
  if (reported_.erase({UpdateReport::Kind::kUnreachable, ""}) > 0 && state_.tip) {
    LogInfo("the repository can be read again");
  }
  NoteDamaged(*view, effort);
  NoteNewest(*view);
  Status outcome;
  while (!stopping_) {
    const FollowPlan plan = Judge(*view, &state_);
    for (const auto& [id, step, why] : plan.passed_over) {
      ReportOnce({.kind = UpdateReport::Kind::kPassedOver, .id = id, .step = step, .message = why});
    }
    if (plan.tip_abandoned) {
      ReportOnce({.kind = UpdateReport::Kind::kAbandoned,
                  .id = state_.tip->id,
                  .message = "it counts no longer: its writer had been overtaken"});
    }
    if (plan.kind == FollowPlan::Kind::kNothing) break;
    const Status applied = Apply(*view, plan, effort, pace);
    if (applied.ok()) {
      outcome = applied;
      break;
    }
    if (outcome.ok()) outcome = applied;  // the newest one's is what people want to know
    const std::string& id = plan.target()->manifest->id;
    if (!state_.refused.contains(id) && !state_.aside.contains(id)) break;  // later, perhaps
  }
  versions_->Collect();
  if (state_.tip) return Status::Ok();
  return outcome.ok() ? NotFoundError("there is no checkpoint yet") : outcome;
}

void Follower::SetAside(const RepositoryView& view, Effort effort) {
  std::set<std::string> there;
  for (const Checkpoint& checkpoint : view.checkpoints) there.insert(checkpoint.manifest->id);
  setbacks_.KeepOnly(there);
  state_.aside = effort == Effort::kAll ? std::set<std::string>() : setbacks_.NotDue();
}

/// Checkpoints whose manifest or notes could not be read. Each look reads them anew; whether it
/// will stay so is known when it still is after a while.
void Follower::NoteDamaged(const RepositoryView& view, Effort effort) {
  constexpr std::chrono::seconds kWhile{1};
  const Clock::Duration now = options_.clock->Now();
  std::map<std::string, Clock::Duration> since;
  for (const DamagedCheckpoint& damaged : view.damaged) {
    const auto before = damaged_since_.find(damaged.directory);
    const Clock::Duration began = before == damaged_since_.end() ? now : before->second;
    since.emplace(damaged.directory, began);
    if (effort == Effort::kDue && now - began < std::min<Clock::Duration>(kWhile, options_.poll)) {
      continue;
    }
    ReportOnce({.kind = UpdateReport::Kind::kRefused,
                .id = damaged.directory,
                .message = std::string(damaged.status.message())});
  }
  damaged_since_ = std::move(since);
}

void Follower::NoteNewest(const RepositoryView& view) {
  const Checkpoint* latest = view.Latest();
  const MutexLock lock(&mu_);
  stats_.newest_step = latest == nullptr ? -1 : latest->manifest->step;
  stats_.newest_committed = latest == nullptr ? 0 : latest->manifest->time;
}

Status Follower::Apply(const RepositoryView& view, const FollowPlan& plan, Effort effort,
                       Pace* pace) {
  const Checkpoint& target = *plan.target();
  UpdateReport report;
  report.id = target.manifest->id;
  report.step = target.manifest->step;
  report.full = plan.kind == FollowPlan::Kind::kReplace;
  FollowState::Tip tip = TipOf(target);
  const Clock::Duration began = options_.clock->Now();
  bool guard = false;
  Status done = Update(plan, pace, &report, &guard);
  if (effort == Effort::kAll && done.Is(Code::kCorruption)) {
    setbacks_.Note(report.id, done, guard);
    done = Update(plan, pace, &report, &guard);
  }
  if (!done.ok()) {
    done = done.WithContext(target.directory);
    Failed(done, guard, std::move(report));
    return done;
  }
  report.seconds = std::chrono::duration<double>(options_.clock->Now() - began).count();
  Applied(view, plan, std::move(tip), report);
  if (effort == Effort::kDue) pace->Pause();
  return done;
}

void Follower::Applied(const RepositoryView& view, const FollowPlan& plan, FollowState::Tip tip,
                       const UpdateReport& report) {
  state_.tip = std::move(tip);
  setbacks_.Forget(report.id);
  if (plan.tip_abandoned) Forget(view);
  {
    const MutexLock lock(&mu_);
    stats_.reachable = !setbacks_.HoldsTold();
    ++stats_.applied;
    stats_.rows += report.rows;
    stats_.last_seconds = report.seconds;
    stats_.seconds += report.seconds;
  }
  if (report_) report_(report);
}

void Follower::Failed(const Status& failure, bool guard, UpdateReport report) {
  const Setback setback = setbacks_.Note(report.id, failure, guard);
  if (setback.refused) {
    state_.refused.insert(report.id);
    report.kind = UpdateReport::Kind::kRefused;
    report.message = std::string(failure.message());
    ReportOnce(std::move(report));
    return;
  }
  if (setback.aside) state_.aside.insert(report.id);
  if (setback.told) Unreachable(failure, report.id);
}

/// Versions of a branch that was given up are nothing to go back to.
void Follower::Forget(const RepositoryView& view) {
  std::vector<std::string> gone;
  for (const VersionFacts& facts : versions_->kept()) {
    const Checkpoint* checkpoint = view.Find(facts.id);
    const bool counts = checkpoint != nullptr && checkpoint->counts;
    const bool of_older = view.newest_seal && facts.generation < view.newest_seal->generation;
    if (!counts && of_older) gone.push_back(facts.id);
  }
  versions_->Forget(gone);
}

// ---------------------------------------------------------------- one update

Status Follower::Update(const FollowPlan& plan, Pace* pace, UpdateReport* report, bool* guard) {
  Status done;
  bool begun = false;
  try {
    ASSIGN_OR_RETURN(const OpenRestorePoint files,
                     OpenRestorePoint::Open(store_.get(), plan.steps));
    RETURN_IF_ERROR(versions_->Begin(report->full));
    begun = true;
    auto dense = Prepare(plan, files, pace, report, guard);
    if (dense.ok()) {
      versions_->Commit();
      newest_dense_ = *std::move(dense);
      return Status::Ok();
    }
    done = dense.status();
  } catch (const std::exception& error) {
    if (begun) versions_->Abort();
    return StatusOf(error);
  }
  versions_->Abort();
  return done;
}

Result<std::shared_ptr<const Dense>> Follower::Prepare(const FollowPlan& plan,
                                                       const OpenRestorePoint& files, Pace* pace,
                                                       UpdateReport* report, bool* guard) {
  const auto pause = [pace] { pace->Pause(); };
  UpdateSink sink(versions_, report->full, {.finite = options_.finite, .pause = pause});
  TableRestore rows(store_.get(), files.chain(), &sink,
                    {.progress = {},
                     .cancelled = [this] { return stopping_.load(); },
                     .block_bytes = kBlockBytes,
                     .wants = UpdateSink::Wants,
                     .lean = true});
  RETURN_IF_ERROR(rows.Start());
  RETURN_IF_ERROR(rows.Read());
  if (const Status finite = sink.Finish(); !finite.ok()) {
    *guard = true;
    return finite;
  }
  report->rows = sink.rows();
  std::shared_ptr<const Dense> dense;
  if (dense_ != nullptr) {
    ASSIGN_OR_RETURN(dense, dense_->Load(store_.get(), files.tip(), newest_dense_));
  }
  if (report->full) pause();
  const Manifest& manifest = *plan.target()->manifest;
  VersionFacts facts;
  facts.id = manifest.id;
  facts.step = manifest.step;
  facts.generation = manifest.CommitGeneration();
  facts.sequence = manifest.sequence;
  facts.committed = manifest.time;
  ASSIGN_OR_RETURN(const Versions::Snapshot snapshot, versions_->Prepare(facts, dense));
  report->changed = 0;
  for (const auto& table : versions_->tables()) report->changed += table->changed();
  if (report->full) pause();
  if (dense_ != nullptr) {
    const Status checked = dense_->Check(snapshot);
    *guard = checked.Is(Code::kFailedPrecondition);
    RETURN_IF_ERROR(checked);
  }
  return dense;
}

// ---------------------------------------------------------------- telling

void Follower::ReportOnce(UpdateReport report) {
  if (reported_.size() > kRemembered) reported_.clear();
  if (!reported_.emplace(report.kind, report.id).second) return;
  const bool refused = report.kind == UpdateReport::Kind::kRefused;
  const std::string line =
      "serving: " + (report.id.empty() ? std::string("the repository") : report.id) + ": " +
      report.message;
  report.kind == UpdateReport::Kind::kPassedOver ? LogInfo(line) : LogWarning(line);
  {
    const MutexLock lock(&mu_);
    stats_.refused += refused ? 1 : 0;
    stats_.last_problem = report.message;
  }
  if (report_) report_(report);
}

void Follower::Unreachable(const Status& status, const std::string& id) {
  {
    const MutexLock lock(&mu_);
    stats_.reachable = false;
  }
  if (id.empty()) {
    // That it is another job's by now, or that one may not look, is another thing than being gone.
    if (!unreachable_for_.insert(status.code()).second) return;
    reported_.erase({UpdateReport::Kind::kUnreachable, ""});
  }
  ReportOnce({.kind = UpdateReport::Kind::kUnreachable, .id = id, .message = status.ToString()});
}

FollowerStats Follower::stats() const {
  const MutexLock lock(&mu_);
  return stats_;
}

}  // namespace cairn::serving
