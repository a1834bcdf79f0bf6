// What users ask of the engine, and how it remembers. The part that runs talk to is
// trial_engine_runs.cc; what it does with processes is trial_engine_tasks.cc, and with repositories
// trial_engine_storage.cc.
#include "trial/trial_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <future>
#include <utility>

#include "base/log.h"
#include "base/status_macros.h"

namespace cairn {
namespace {

/// Lays `over` over `value`: objects member by member, everything else as a whole.
void Override(const Value& over, Value* value) {
  if (!over.is_object() || !value->is_object()) {
    *value = over;
    return;
  }
  for (const auto& [key, member] : *over.if_object()) Override(member, &(*value->if_object())[key]);
}

/// Whether events of the kind may bring a trial into another state.
bool ChangesStates(EventKind kind) {
  switch (kind) {
    case EventKind::kTrialCreated:
    case EventKind::kActivated:
    case EventKind::kPauseRequested:
    case EventKind::kCancelRequested:
    case EventKind::kKillRequested:
    case EventKind::kRunStarted:
    case EventKind::kRunReady:
    case EventKind::kRunExited:
      return true;
    default:
      return false;
  }
}

}  // namespace

Status TrialEngineOptions::Validate() const {
  if (log == nullptr || repositories == nullptr || clock == nullptr || ids == nullptr) {
    return InvalidArgumentError("trial engine: log, repositories, clock and ids must be given");
  }
  if (storage_threads < 1 || storage_threads > 256) {
    return InvalidArgumentError("trial engine: storage_threads must be from 1 to 256");
  }
  return Status::Ok();
}

TrialEngine::TrialEngine(Options options) : options_(std::move(options)) { url_ = options_.url; }

Result<std::unique_ptr<TrialEngine>> TrialEngine::Open(Options options) {
  RETURN_IF_ERROR(options.Validate());
  std::unique_ptr<TrialEngine> engine(new TrialEngine(std::move(options)));
  RETURN_IF_ERROR(engine->Replay().WithContext("trial engine: replay"));
  return engine;
}

Status TrialEngine::Replay() {
  ASSIGN_OR_RETURN(TrialRecords records, options_.log->Restore());
  const std::uint64_t restored = records.last_seq();
  RETURN_IF_ERROR(options_.log->Replay(restored + 1, [&](const Event& event) {
    return records.Apply(event).WithContext(
        fmt::format("event {} ({})", event.seq, EventKindName(event.kind)));
  }));
  MutexLock hold(&mu_);
  records_ = std::move(records);
  tail_events_ = records_.last_seq() - restored;
  compact_at_ = CompactAt(restored);
  for (const auto& [id, trial] : records_.trials()) {
    versions_[id] = records_.last_seq();
    Index(trial);
  }
  writer_ = std::make_unique<EventWriter>(EventWriterOptions{.log = options_.log,
                                                             .clock = options_.clock,
                                                             .durable = records_.last_seq(),
                                                             .on_event = options_.on_event});
  return Status::Ok();
}

TrialEngine::~TrialEngine() {
  std::vector<Poll> polls;
  {
    MutexLock hold(&mu_);
    stopping_ = true;
    polls.swap(polls_);
    timer_changed_.NotifyAll();
    task_changed_.NotifyAll();
    changed_.NotifyAll();
  }
  storage_.Stop();
  worker_.request_stop();
  timer_.request_stop();
  if (worker_.joinable()) worker_.join();
  if (timer_.joinable()) timer_.join();
  for (const Poll& poll : polls) poll.done(CancelledError("the trial engine stops"));
  writer_.reset();
}

void TrialEngine::SetUrl(std::string url, std::string ca) {
  MutexLock hold(&mu_);
  url_ = std::move(url);
  ca_ = std::move(ca);
}

void TrialEngine::SetRemoteUrl(std::string url) {
  MutexLock hold(&mu_);
  remote_url_ = std::move(url);
}

Status TrialEngine::Start() {
  std::vector<std::pair<std::string, std::uint64_t>> living;
  std::vector<std::string> asked;
  {
    MutexLock hold(&mu_);
    if (started_) return FailedPreconditionError("trial engine: it was started already");
    started_ = true;
    for (const std::string& id : live_) {
      const TrialRecord& trial = *Find(id);
      living.emplace_back(id, trial.core.run);
      if (trial.core.state == TrialState::kPausing || trial.core.state == TrialState::kStopping) {
        asked.push_back(id);
      }
      heard_[id] = options_.clock->Now();
    }
  }
  storage_.Start(options_.storage_threads);
  worker_ = std::jthread([this](const std::stop_token& stop) { WorkerLoop(stop); });
  timer_ = std::jthread([this](const std::stop_token& stop) { TimerLoop(stop); });
  for (const auto& [id, run] : living) {
    PostStorage(id, [this, id = id, run = run] { Reattach(id, run); });
  }
  for (const std::string& id : asked) ArmDeadline(id);
  Post([this] { EndRemovals(); });
  ArmRetention();
  StartQueued();
  return Status::Ok();
}

void TrialEngine::Drain() {
  MutexLock hold(&mu_);
  draining_ = true;
}

Status TrialEngine::Emit(std::string trial, std::uint64_t run, EventKind kind, Value body) {
  Event event{.seq = records_.last_seq() + 1,
              .time = options_.clock->WallNanos(),
              .trial = std::move(trial),
              .run = run,
              .kind = kind,
              .body = std::move(body)};
  const std::string id = event.trial;
  const TrialRecord* record = Find(id);
  const std::string was(record == nullptr ? "" : TrialStateName(record->core.state));
  RETURN_IF_ERROR(records_.Apply(event));
  record = Find(id);
  if (record != nullptr) {
    Index(*record);
    if (ChangesStates(kind)) {
      // For those who read the log later: the trial may have gone on by then.
      (*event.body.if_object())["was"] = was;
      (*event.body.if_object())["state"] = TrialStateName(record->core.state);
    }
  }
  if (options_.on_recorded) options_.on_recorded(event);
  writer_->Enqueue(std::move(event));
  CountEvent();
  if (kind == EventKind::kNote) return Status::Ok();  // it may be of no trial
  switch (kind) {
    case EventKind::kReport:
    case EventKind::kProgress:
    case EventKind::kStatus:
    case EventKind::kCheckpointStarted:
      break;
    case EventKind::kCheckpointCompleted:
    case EventKind::kCheckpointDeleted:
    case EventKind::kCheckpointPinned:
    case EventKind::kRetentionChanged: {
      // Runs learn what their rules let go, also when another trial's checkpoint decides it.
      const TrialRecord* own = Find(id);
      for (const std::string& other_id : live_) {
        const TrialRecord& other = *Find(other_id);
        const bool shares = other.config.experiment == own->config.experiment &&
                            other.config.retention.looks_at_others();
        if (other_id != id && !shares) continue;
        if (RemovableOf(other) != removable_[other_id]) Changed(other_id);
      }
      break;
    }
    default:
      Changed(id);
      break;
  }
  return Status::Ok();
}

void TrialEngine::CountEvent() {
  if (++tail_events_ < compact_at_ || options_.compact_after_events == 0) return;
  tail_events_ = 0;
  compact_at_ = CompactAt(records_.last_seq());
  storage_.Post("", "the event log", [this] {
    const Status compacted = Compact();
    if (!compacted.ok()) LogWarning(fmt::format("trial engine: compact: {}", compacted.ToString()));
  });
}

std::uint64_t TrialEngine::CompactAt(std::uint64_t known) const {
  if (options_.log->CompactsInSteps()) return options_.compact_after_events;
  // The whole record is written each time: the longer it is, the less often, so that the work for
  // an event stays the same.
  return std::max(options_.compact_after_events, known / 2);
}

Status TrialEngine::Compact() {
  MutexLock one_at_a_time(&compacting_);
  return options_.log->Compact();
}

void TrialEngine::Index(const TrialRecord& trial) {
  const auto put = [&](bool member, auto* set) {
    if (member) {
      set->insert(trial.id);
    } else {
      set->erase(trial.id);
    }
  };
  const RetentionPolicy& policy = trial.config.retention;
  retains_by_others_ |= policy.max_age.has_value() || policy.looks_at_others();
  put(trial.core.live, &live_);
  put(trial.core.state == TrialState::kQueued && !trial.core.live, &queued_);
}

void TrialEngine::Changed(const std::string& id) {
  const std::uint64_t seq = records_.last_seq();
  versions_[id] = seq;
  const TrialRecord* trial = Find(id);
  removable_[id] = RemovableOf(*trial);
  changed_.NotifyAll();
  // Whoever polls is answered when what he is told is durable.
  for (auto poll = polls_.begin(); poll != polls_.end();) {
    if (poll->key.trial != id) {
      ++poll;
      continue;
    }
    writer_->AfterDurableElsewhere(seq, [this, taken = std::move(*poll)](const Status& status) {
      if (!status.ok()) return taken.done(status);
      Result<Value> answer = Value();
      {
        MutexLock hold(&mu_);
        const auto found = FindLiving(taken.key);
        answer = found.ok() ? Result<Value>(ToValue(PreemptionOf(**found)))
                            : Result<Value>(found.status());
      }
      taken.done(std::move(answer));
    });
    poll = polls_.erase(poll);
  }
}

Status TrialEngine::WaitDurable() {
  std::uint64_t seq = 0;
  {
    MutexLock hold(&mu_);
    seq = records_.last_seq();
  }
  auto promise = std::make_shared<std::promise<Status>>();
  auto future = promise->get_future();
  writer_->AfterDurable(seq, options_.answer_timeout,
                        [promise](Status status) { promise->set_value(std::move(status)); });
  return future.get();
}

Status TrialEngine::WaitForUser() { return options_.users_wait ? WaitDurable() : Status::Ok(); }

std::string TrialEngine::NextId() {
  if (next_id_ == 0) {
    next_id_ = 1;
    for (const auto& [id, trial] : records_.trials()) {
      std::uint64_t number = 0;
      const auto [end, error] = std::from_chars(id.data(), id.data() + id.size(), number);
      const bool whole = error == std::errc() && end == id.data() + id.size();
      if (whole && number < (std::uint64_t{1} << 62)) next_id_ = std::max(next_id_, number + 1);
    }
  }
  while (Find(std::to_string(next_id_)) != nullptr) ++next_id_;
  return std::to_string(next_id_);
}

Value TrialEngine::WithJob(Value::Object body) const {
  if (options_.shared_storage) body["job"] = options_.ids->NewUuid();
  return body;
}

Result<std::string> TrialEngine::Create(TrialConfig config, std::string id) {
  {
    MutexLock hold(&mu_);
    if (id.empty()) id = NextId();
    RETURN_IF_ERROR(Emit(id, 0, EventKind::kTrialCreated,
                         WithJob({{"config", ToValue(config)}, {"parent", Value()}})));
  }
  RETURN_IF_ERROR(WaitForUser());
  StartQueued();
  return id;
}

Result<std::string> TrialEngine::ContinueAsNew(const std::string& trial, const std::string& from,
                                               const Value& overrides, std::string id) {
  {
    MutexLock hold(&mu_);
    const TrialRecord* parent = Find(trial);
    if (parent == nullptr) return NotFoundError(fmt::format("no trial {}", trial));
    ASSIGN_OR_RETURN(const std::optional<StartPoint> point,
                     parent->StartFrom(from, RepositoryOf(*parent)));
    Value config = ToValue(parent->config);
    if (!overrides.is_null()) Override(overrides, &config);
    if (id.empty()) id = NextId();
    RETURN_IF_ERROR(
        Emit(id, 0, EventKind::kTrialCreated,
             WithJob({{"config", config}, {"parent_trial", trial}, {"parent", ToValue(point)}})));
  }
  RETURN_IF_ERROR(WaitForUser());
  StartQueued();
  return id;
}

Status TrialEngine::Ask(const std::string& trial, EventKind kind) {
  bool arm = false;
  {
    MutexLock hold(&mu_);
    const TrialRecord* record = Find(trial);
    if (record == nullptr) return NotFoundError(fmt::format("no trial {}", trial));
    const Value deadline = kind == EventKind::kKillRequested
                               ? Value(0)
                               : Value(record->config.preemption_timeout.count());
    const bool asked = record->core.live && (record->core.state == TrialState::kPausing ||
                                             record->core.state == TrialState::kStopping);
    RETURN_IF_ERROR(Emit(trial, record->core.run, kind, Value::Object{{"deadline_ms", deadline}}));
    arm = !asked || kind == EventKind::kKillRequested;  // asking again gives no more time
  }
  if (arm) ArmDeadline(trial);
  PostAfterDurable([this, trial] { Enforce(trial); });
  return WaitForUser();
}

Status TrialEngine::Pause(const std::string& trial) {
  return Ask(trial, EventKind::kPauseRequested);
}
Status TrialEngine::Cancel(const std::string& trial) {
  return Ask(trial, EventKind::kCancelRequested);
}
Status TrialEngine::Kill(const std::string& trial) { return Ask(trial, EventKind::kKillRequested); }

Status TrialEngine::Activate(const std::string& trial, const std::string& from) {
  {
    MutexLock hold(&mu_);
    const TrialRecord* record = Find(trial);
    if (record == nullptr) return NotFoundError(fmt::format("no trial {}", trial));
    RETURN_IF_ERROR(
        Emit(trial, record->core.run, EventKind::kActivated, Value::Object{{"from", from}}));
  }
  const Status durable = WaitForUser();
  StartQueued();
  return durable;
}

Status TrialEngine::Pin(const std::string& trial, const std::string& checkpoint, bool pinned) {
  std::string repository;
  {
    MutexLock hold(&mu_);
    const TrialRecord* record = Find(trial);
    const CheckpointRecord* known = record == nullptr ? nullptr : record->Find(checkpoint);
    if (known == nullptr) {
      return NotFoundError(fmt::format("trial {} has no checkpoint {}", trial, checkpoint));
    }
    if (known->state != CheckpointState::kCompleted) {
      return FailedPreconditionError(
          fmt::format("checkpoint {} is {}", checkpoint, CheckpointStateName(known->state)));
    }
    repository = Locate(RepositoryOf(*record));
  }
  // A run may have been told to remove it. In the repository one of the two is first.
  RETURN_IF_ERROR(options_.repositories->Pin(repository, checkpoint, pinned));
  {
    MutexLock hold(&mu_);
    RETURN_IF_ERROR(Emit(trial, 0, EventKind::kCheckpointPinned,
                         Value::Object{{"id", checkpoint}, {"pinned", pinned}}));
  }
  return WaitForUser();
}

Status TrialEngine::Note(const std::string& trial, Value body) {
  MutexLock hold(&mu_);
  return Emit(trial, 0, EventKind::kNote, std::move(body));
}

Status TrialEngine::SetRetention(const std::string& trial, const RetentionPolicy& policy) {
  {
    MutexLock hold(&mu_);
    RETURN_IF_ERROR(Emit(trial, 0, EventKind::kRetentionChanged,
                         Value::Object{{"retention", ToValue(policy)}}));
  }
  PostAfterDurable([this, trial] { PostStorage(trial, [this, trial] { Retain(trial); }); });
  return WaitForUser();
}

Result<std::vector<Removal>> TrialEngine::PreviewRetention(const std::string& trial,
                                                           const RetentionPolicy& policy) {
  RETURN_IF_ERROR(policy.Validate());
  MutexLock hold(&mu_);
  if (Find(trial) == nullptr) return NotFoundError(fmt::format("no trial {}", trial));
  return records_.Removals(trial, policy, options_.clock->WallNanos());
}

Result<TrialEngine::Removed> TrialEngine::RemoveCheckpoints(const std::string& trial,
                                                            const std::vector<std::string>& ids,
                                                            const std::string& reason) {
  // As a task of the trial: no run of it is begun meanwhile.
  const auto promise = std::make_shared<std::promise<Result<Removed>>>();
  auto future = promise->get_future();
  {
    MutexLock hold(&mu_);
    if (!started_ || stopping_) return UnavailableError("the trial engine does not run");
    const TrialRecord* record = Find(trial);
    if (record == nullptr) return NotFoundError(fmt::format("no trial {}", trial));
    storage_.Post(trial, record->config.storage, [this, trial, ids, reason, promise] {
      promise->set_value(RemoveNow(trial, ids, reason));
    });
  }
  while (future.wait_for(std::chrono::milliseconds(100)) != std::future_status::ready) {
    MutexLock hold(&mu_);
    if (stopping_) return CancelledError("the trial engine stops");
  }
  ASSIGN_OR_RETURN(Removed removed, future.get());
  RETURN_IF_ERROR(WaitDurable());
  return removed;
}

std::multimap<std::string, std::string> TrialEngine::BegunWith(const std::string& trial) {
  std::multimap<std::string, std::string> out;
  MutexLock hold(&mu_);
  const TrialRecord* record = Find(trial);
  if (record == nullptr) return out;
  for (const CheckpointRecord& checkpoint : record->checkpoints) {
    if (checkpoint.state != CheckpointState::kCompleted) continue;
    for (std::string& other : records_.BeginWith(checkpoint.id)) {
      out.emplace(checkpoint.id, std::move(other));
    }
  }
  return out;
}

TrialView TrialEngine::ViewOf(const TrialRecord& trial) {
  TrialView view{.record = trial};
  FillView(trial, &view);
  return view;
}

void TrialEngine::FillView(const TrialRecord& trial, TrialView* view) {
  view->repository = Locate(RepositoryOf(trial));
  const auto wait = storage_waits_.find(trial.id);
  if (trial.core.state == TrialState::kQueued && wait != storage_waits_.end()) {
    view->waits_for = wait->second.why;
  }
  view->state = trial.core.state;
  view->preemption = PreemptionOf(trial);
  if (trial.core.state == TrialState::kStarting && waits_for_slots_.contains(trial.id)) {
    view->state = TrialState::kQueued;
  }
  if (const auto start = trial.NextStart(view->repository); start) {
    view->resumes_from_step = start->steps;
  }
}

Result<TrialView> TrialEngine::Get(const std::string& trial) {
  RETURN_IF_ERROR(WaitDurable());
  MutexLock hold(&mu_);
  const TrialRecord* record = Find(trial);
  if (record == nullptr) return NotFoundError(fmt::format("no trial {}", trial));
  return ViewOf(*record);
}

Result<TrialEngine::Standing> TrialEngine::StandingOf(const std::string& trial) {
  MutexLock hold(&mu_);
  const TrialRecord* record = Find(trial);
  if (record == nullptr) return NotFoundError(fmt::format("no trial {}", trial));
  Standing standing{.core = record->core, .message = record->message};
  if (const CheckpointRecord* newest = record->Newest()) {
    standing.newest = StartPoint{.id = newest->id,
                                 .steps = newest->steps,
                                 .metadata = newest->metadata,
                                 .repository = Locate(RepositoryOf(*record))};
  }
  return standing;
}

Result<TrialView> TrialEngine::Summary(const std::string& trial) {
  MutexLock hold(&mu_);
  const TrialRecord* record = Find(trial);
  if (record == nullptr) return NotFoundError(fmt::format("no trial {}", trial));
  TrialView view{.record = record->WithoutReports()};
  FillView(*record, &view);
  return view;
}

std::vector<TrialView> TrialEngine::List() {
  MutexLock hold(&mu_);
  std::vector<TrialView> views;
  for (const auto& [id, trial] : records_.trials()) views.push_back(ViewOf(trial));
  return views;
}

void TrialEngine::Look(const std::function<void(const TrialRecords&)>& visit) {
  MutexLock hold(&mu_);
  visit(records_);
}

Result<TrialView> TrialEngine::WaitForRest(const std::string& trial,
                                           std::chrono::nanoseconds timeout) {
  const auto until = std::chrono::steady_clock::now() + timeout;
  {
    MutexLock hold(&mu_);
    for (;;) {
      const TrialRecord* record = Find(trial);
      if (record == nullptr) return NotFoundError(fmt::format("no trial {}", trial));
      if (!record->core.live &&
          (IsEnded(record->core.state) || record->core.state == TrialState::kPaused)) {
        break;
      }
      if (stopping_) return CancelledError("the trial engine stops");
      const auto left = until - std::chrono::steady_clock::now();
      if (left <= std::chrono::nanoseconds(0)) {
        return DeadlineExceededError(
            fmt::format("trial {} is still {}", trial, TrialStateName(record->core.state)));
      }
      changed_.WaitFor(&mu_, left);
    }
  }
  return Get(trial);
}

}  // namespace cairn
