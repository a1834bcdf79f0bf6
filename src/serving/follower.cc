#include "serving/follower.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/status_macros.h"
#include "checkpoint/restore_point.h"
#include "checkpoint/table_restore.h"
#include "serving/pace.h"
#include "serving/update_sink.h"
#include "storage/open_store.h"

namespace cairn::serving {
namespace {

constexpr int kVanishings = 5;  // a checkpoint that was not whole so often is refused
constexpr std::uint64_t kBlockBytes = 1u << 20;
constexpr std::chrono::milliseconds kBurst{20};
constexpr std::size_t kRemembered = 10'000;  // reports that are not repeated

/// True for what a checkpoint is: trying again would find the same.
bool IsForGood(const Status& status) {
  switch (status.code()) {
    case Code::kCorruption:
    case Code::kInvalidArgument:
    case Code::kFailedPrecondition:
    case Code::kUnimplemented:
    case Code::kInternal:
      return true;
    default:
      return false;
  }
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
    while (path.size() > 1 && path.back() == '/') path.pop_back();
  }
  ASSIGN_OR_RETURN(auto watch, DirectoryWatch::Open(std::move(path)));
  return std::unique_ptr<Follower>(
      new Follower(std::move(options), versions, dense, std::move(report), std::move(watch)));
}

Follower::Follower(FollowerOptions options, Versions* versions, DenseLoader* dense,
                   std::function<void(const UpdateReport&)> report,
                   std::unique_ptr<DirectoryWatch> watch)
    : options_(std::move(options)),
      versions_(versions),
      dense_(dense),
      report_(std::move(report)),
      watch_(std::move(watch)),
      job_(options_.job) {
  state_.increments = options_.increments;
}

Follower::~Follower() {
  stopping_ = true;
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
    Look().IgnoreError("reported; the version that is there stays");
    if (stop.stop_requested()) break;
    watch_->Wait(options_.poll);
  }
}

// ---------------------------------------------------------------- one look

Result<RepositoryView> Follower::ReadRepository() {
  if (store_ == nullptr) {
    ASSIGN_OR_RETURN(
        store_, OpenStore(options_.repository, {.create = false, .storage = options_.storage}));
  }
  RepositoryReader reader(store_.get());
  auto view = reader.Read();
  if (!view.ok()) store_ = nullptr;  // the directory may come back as another one
  return view;
}

/// A directory that now holds another job's repository is not what was being followed.
Status Follower::CheckJob(const RepositoryView& view) {
  if (job_.empty()) job_ = view.record.job;
  if (view.record.job == job_) return Status::Ok();
  return OwnedByAnotherJobError("the repository belongs to the job " + view.record.job + ", and " +
                                job_ + " is being followed");
}

Status Follower::Look() {
  watch_->Arm();
  auto view = ReadRepository();
  Status readable = view.ok() ? CheckJob(*view) : view.status();
  if (!readable.ok()) {
    Unreachable(readable, "");
    versions_->Collect();
    return state_.tip ? Status::Ok() : readable;
  }
  {
    const MutexLock lock(&mu_);
    stats_.reachable = true;
  }
  // It is reachable: the next failure is news.
  if (reported_.erase({UpdateReport::Kind::kUnreachable, ""}) > 0 && state_.tip) {
    LogInfo("the repository can be read again");
  }
  for (const DamagedCheckpoint& damaged : view->damaged) {
    ReportOnce({.kind = UpdateReport::Kind::kRefused,
                .id = damaged.directory,
                .message = std::string(damaged.status.message())});
  }
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
    outcome = Apply(*view, plan);
    if (outcome.ok()) break;
    if (!state_.refused.contains(plan.target()->manifest->id)) break;  // later, perhaps
  }
  versions_->Collect();
  if (state_.tip) return Status::Ok();
  return outcome.ok() ? NotFoundError("there is no checkpoint yet") : outcome;
}

void Follower::NoteNewest(const RepositoryView& view) {
  const Checkpoint* latest = view.Latest();
  const MutexLock lock(&mu_);
  stats_.newest_step = latest == nullptr ? -1 : latest->manifest->step;
  stats_.newest_committed = latest == nullptr ? 0 : latest->manifest->time;
}

Status Follower::Apply(const RepositoryView& view, const FollowPlan& plan) {
  const Checkpoint& target = *plan.target();
  UpdateReport report;
  report.id = target.manifest->id;
  report.step = target.manifest->step;
  report.full = plan.kind == FollowPlan::Kind::kReplace;
  const Clock::Duration began = options_.clock->Now();
  Status done = Update(plan, &report);
  if (done.ok()) {
    report.seconds = std::chrono::duration<double>(options_.clock->Now() - began).count();
    state_.tip = TipOf(target);
    if (plan.tip_abandoned) Forget(view);
    vanished_.clear();
    {
      const MutexLock lock(&mu_);
      ++stats_.applied;
      stats_.rows += report.rows;
      stats_.last_seconds = report.seconds;
      stats_.seconds += report.seconds;
    }
    if (report_) report_(report);
    return done;
  }
  done = done.WithContext(target.directory);
  const bool vanished = done.Is(Code::kNotFound) && ++vanished_[report.id] >= kVanishings;
  if (IsForGood(done) || vanished) {
    state_.refused.insert(report.id);
    report.kind = UpdateReport::Kind::kRefused;
    report.message = std::string(done.message());
    ReportOnce(report);
  } else if (!done.Is(Code::kCancelled) && !done.Is(Code::kNotFound)) {
    Unreachable(done, report.id);
  }
  return done;
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

Status Follower::Update(const FollowPlan& plan, UpdateReport* report) {
  ASSIGN_OR_RETURN(const OpenRestorePoint files, OpenRestorePoint::Open(store_.get(), plan.steps));
  Pace pace(options_.clock, options_.cpu_share, kBurst);
  const bool replaces = plan.kind == FollowPlan::Kind::kReplace;
  RETURN_IF_ERROR(versions_->Begin(replaces));
  const auto prepare = [&]() -> Status {
    UpdateSink sink(versions_, replaces,
                    {.finite = options_.finite, .pause = [&] { pace.Pause(); }});
    TableRestore rows(store_.get(), files.chain(), &sink,
                      {.progress = {},
                       .cancelled = [this] { return stopping_.load(); },
                       .block_bytes = kBlockBytes});
    RETURN_IF_ERROR(rows.Start());
    RETURN_IF_ERROR(rows.Read());
    RETURN_IF_ERROR(sink.Finish());
    report->rows = sink.rows();
    std::shared_ptr<const Dense> dense;
    if (dense_ != nullptr) {
      ASSIGN_OR_RETURN(dense, dense_->Load(store_.get(), files.tip(), newest_dense_));
    }
    const Manifest& manifest = *plan.target()->manifest;
    VersionFacts facts;
    facts.id = manifest.id;
    facts.step = manifest.step;
    facts.generation = manifest.CommitGeneration();
    facts.sequence = manifest.sequence;
    facts.committed = manifest.time;
    ASSIGN_OR_RETURN(const Versions::Snapshot snapshot, versions_->Prepare(facts, dense));
    for (const auto& table : versions_->tables()) report->changed += table->changed();
    if (dense_ != nullptr) RETURN_IF_ERROR(dense_->Probe(snapshot));
    newest_dense_ = std::move(dense);
    return Status::Ok();
  };
  const Status prepared = prepare();
  if (!prepared.ok()) {
    versions_->Abort();
    return prepared;
  }
  versions_->Commit();
  return Status::Ok();
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
  ReportOnce({.kind = UpdateReport::Kind::kUnreachable, .id = id, .message = status.ToString()});
}

FollowerStats Follower::stats() const {
  const MutexLock lock(&mu_);
  return stats_;
}

}  // namespace cairn::serving
