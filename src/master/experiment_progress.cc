#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>
#include <utility>

#include "base/log.h"
#include "base/status_macros.h"
#include "format/json.h"
#include "master/experiments.h"
#include "master/webhook_sender.h"
#include "trial/trial_state.h"

// The half of Experiments that runs behind its callers: what the searcher says, which trials are
// due, what state that makes.

namespace cairn::master {
namespace {

namespace fs = std::filesystem;

constexpr auto kLater = std::chrono::seconds(2);
constexpr auto kRetry = std::chrono::seconds(1);
constexpr auto kRemovalRetry = std::chrono::seconds(10);
/// Trials that are made before others have their turn: whoever creates an experiment waits for it.
constexpr std::uint64_t kTrialsAtOnce = 16;

bool NotAsked(TrialState state) { return !IsEnded(state) && state != TrialState::kStopping; }

}  // namespace

Status Experiments::LoadSearch(std::int64_t experiment, const Value& saved, Entry* entry) {
  // From here on OnReport keeps what comes: an event that is not in the tables below is there.
  {
    MutexLock hold(&mu_);
    validations_[experiment];
  }
  ASSIGN_OR_RETURN(const std::uint64_t last, options_.catalog->LastEvent());
  ASSIGN_OR_RETURN(entry->search, AdaptiveSearch::Make(entry->config.searcher, saved));
  ASSIGN_OR_RETURN(std::vector<TrialRow> trials, TrialsOf(experiment));
  std::ranges::sort(trials, {}, [](const TrialRow& trial) {
    return std::pair(trial.id.size(), trial.id);  // in the order in which they were made
  });
  std::vector<Validation> news;
  for (const TrialRow& trial : trials) {
    RETURN_IF_ERROR(entry->search->AddTrial(trial.id));
    ASSIGN_OR_RETURN(std::vector<ReportRow> rows,
                     options_.catalog->metrics().Reports(
                         {.trial = trial.id, .group = "validation", .archived = true},
                         entry->search->seq() + 1));
    for (ReportRow& row : rows) {
      if (row.seq <= last) news.push_back({row.seq, trial.id, row.steps, std::move(row.values)});
    }
  }
  std::ranges::sort(news, {}, &Validation::seq);
  for (Validation& one : news) {
    entry->search->OnValidation(one.seq, one.trial, one.steps, std::move(one.metrics))
        .IgnoreError("a metric that is no number decides nothing");
  }
  return Status::Ok();
}

void Experiments::OnReport(const Event& event) {
  const Value* group = event.body.Find("group");
  if (group == nullptr || group->if_string() == nullptr || *group->if_string() != "validation") {
    return;
  }
  const auto id = ExperimentId(ExperimentOfTrial(event.trial));
  if (!id.ok()) return;
  MutexLock hold(&mu_);
  const auto found = validations_.find(*id);
  if (found == validations_.end()) return;
  const Value* steps = event.body.Find("steps_completed");
  const Value* metrics = event.body.Find("metrics");
  Validation one{.seq = event.seq,
                 .trial = event.trial,
                 .steps = steps == nullptr ? 0 : steps->AsInt(),
                 .metrics = metrics == nullptr ? Value(Value::Object{}) : *metrics};
  RestoreNonFinite(&one.metrics);
  found->second.push_back(std::move(one));
  soon_.insert(*id);
  changed_.NotifyAll();
}

Status Experiments::StepSearch(std::int64_t experiment, Entry* entry) {
  std::vector<Validation> news;
  {
    MutexLock hold(&mu_);
    news.swap(validations_[experiment]);
  }
  AdaptiveSearch* const search = entry->search.get();
  for (Validation& one : news) {
    search->OnValidation(one.seq, one.trial, one.steps, std::move(one.metrics))
        .IgnoreError("a metric that is no number decides nothing");
  }
  const auto save = [&]() -> Status {
    if (!search->changed()) return Status::Ok();
    ExperimentChange change;
    change.searcher_state = IntentText(entry->intent, search);
    RETURN_IF_ERROR(options_.catalog->experiments().Update(experiment, change));
    search->Saved();
    return Status::Ok();
  };
  RETURN_IF_ERROR(save());
  const std::set<std::string> to_stop = search->to_stop();
  for (const std::string& trial : to_stop) {
    const Status stopped = options_.engine->Cancel(trial);
    // It may have ended meanwhile.
    if (!stopped.ok() && !stopped.Is(Code::kFailedPrecondition)) return stopped;
    search->OnStopped(trial);
  }
  return save();
}

Status Experiments::MakeTrial(std::int64_t experiment, Entry* entry, std::uint64_t index) {
  TrialConfig config =
      entry->config.TrialOf(std::to_string(experiment), index, options_.default_storage);
  config.cwd = entry->work;
  const Result<std::string> id =
      entry->parent_trial.empty()
          ? options_.engine->Create(std::move(config))
          : options_.engine->ContinueAsNew(entry->parent_trial, entry->parent_checkpoint,
                                           ToValue(config));
  entry->in_doubt = !id.ok();
  RETURN_IF_ERROR(id.status());
  OnTrialCreated(*id, std::to_string(experiment));
  return entry->search == nullptr ? Status::Ok() : entry->search->AddTrial(*id);
}

Status Experiments::EndDoubt(std::int64_t experiment, Entry* entry) {
  if (!entry->in_doubt) return Status::Ok();
  RETURN_IF_ERROR(options_.engine->LogTrouble());  // nobody waits for a log that cannot be written
  RETURN_IF_ERROR(options_.engine->Flush());
  if (entry->search != nullptr) {
    ASSIGN_OR_RETURN(const std::vector<TrialRow> trials, TrialsOf(experiment));
    for (const TrialRow& trial : trials) RETURN_IF_ERROR(entry->search->AddTrial(trial.id));
  }
  entry->in_doubt = false;
  return Status::Ok();
}

Status Experiments::MakeTrials(std::int64_t experiment, Entry* entry, const Experiment& record) {
  std::uint64_t ended = 0;
  for (const auto& [state, count] : record.trials_by_state)
    ended += IsEndedState(state) ? count : 0;
  std::uint64_t total = record.trials;
  const SearcherConfig& searcher = entry->config.searcher;
  if (total >= searcher.max_trials) return Status::Ok();
  const std::string work = Located(entry->work, options_.data_directory);
  if (entry->code.empty()) {
    std::error_code error;
    fs::create_directories(work, error);
    if (error) return UnavailableError(fmt::format("{}: {}", work, error.message()));
  } else {
    RETURN_IF_ERROR(options_.code->Extract(entry->code, work));
  }
  const std::uint64_t last = total + kTrialsAtOnce;
  while (total < searcher.max_trials && total - ended < searcher.max_concurrent_trials) {
    if (total == last) {
      Touch(experiment, true);
      break;
    }
    RETURN_IF_ERROR(MakeTrial(experiment, entry, total));
    ++total;
  }
  return Status::Ok();
}

Status Experiments::TellWhyNone(std::int64_t experiment, const Experiment& record,
                                const Status& why) {
  ExperimentChange change;
  change.message = fmt::format("its trials cannot be made: {}", why.message());
  if (change.message == record.message) return Status::Ok();
  RETURN_IF_ERROR(options_.catalog->experiments().Update(experiment, change));
  options_.on_change(experiment,
                     Value::Object{{"state", record.state}, {"message", *change.message}});
  return Status::Ok();
}

Status Experiments::Advance(std::int64_t experiment) {
  ASSIGN_OR_RETURN(const auto entry, Load(experiment));
  if (Status known = EndDoubt(experiment, entry.get()); !known.ok()) {
    Touch(experiment, false);
    return known;
  }
  if (entry->search != nullptr) RETURN_IF_ERROR(StepSearch(experiment, entry.get()));
  ASSIGN_OR_RETURN(Experiment record, options_.catalog->experiments().Get(experiment));
  if (entry->intent.makes_trials() && !entry->config.detached &&
      record.trials < entry->config.searcher.max_trials) {
    if (const Status made = MakeTrials(experiment, entry.get(), record); !made.ok()) {
      Touch(experiment, false);  // it is tried again, whoever asked for it
      if (!made.Is(Code::kCancelled)) RETURN_IF_ERROR(TellWhyNone(experiment, record, made));
      // NotFound of the code or of what it begins with: the experiment itself is there.
      return made.Is(Code::kNotFound) ? FailedPreconditionError(std::string(made.message())) : made;
    }
    ASSIGN_OR_RETURN(record, options_.catalog->experiments().Get(experiment));
  }
  const std::uint64_t max_trials = entry->config.searcher.max_trials;
  std::map<std::string, std::uint64_t> states = record.trials_by_state;
  std::uint64_t ended = 0;
  for (const auto& [state, count] : states) ended += IsEndedState(state) ? count : 0;
  // Those that have ended can be many, and are all alike.
  TrialQuery query{.experiment = std::to_string(experiment), .limit = kMaxPage};
  if (max_trials > 1) query.states = LivingStates();
  ASSIGN_OR_RETURN(const Page<TrialRow> living, options_.catalog->trials().List(query));
  double progress = static_cast<double>(max_trials > 1 ? ended : 0);
  std::string message;
  for (const TrialRow& trial : living.items) {
    progress += trial.progress;
    if (max_trials == 1) message = trial.message;
    if (trial.core.state != TrialState::kStarting && trial.core.state != TrialState::kQueued) {
      continue;
    }
    const auto view = options_.engine->Summary(trial.id);
    if (!view.ok()) continue;
    if (!view->waits_for.empty() && message.empty()) {
      message = max_trials == 1
                    ? WaitMessage(view->waits_for)
                    : fmt::format("trial {} {}", trial.id, WaitMessage(view->waits_for));
    }
    // A run that waits for slots is STARTING for the engine, and still queued for people.
    if (trial.core.state == TrialState::kStarting && view->state == TrialState::kQueued) {
      --states["STARTING"];
      ++states["QUEUED"];
    }
  }
  const std::string state = ExperimentState(states, max_trials, entry->intent);
  progress = std::clamp(progress / static_cast<double>(max_trials), 0.0, 1.0);
  if (state == "COMPLETED") progress = 1;
  const bool changed = state != record.state || message != record.message;
  if (!changed && progress == record.progress) return Status::Ok();
  ExperimentChange change;
  change.progress = progress;
  if (state != record.state) {
    change.state = state;
    const std::int64_t now = options_.clock->WallNanos();
    change.ended = IsEndedState(state) ? now : 0;
    ASSIGN_OR_RETURN(const std::vector<Webhook> webhooks, options_.catalog->webhooks().List());
    change.deliveries = ExperimentDeliveries(webhooks, record, state, now);
  }
  change.message = message;
  RETURN_IF_ERROR(options_.catalog->experiments().Update(experiment, change));
  entry->state = state;
  entry->progress = progress;
  options_.on_change(experiment,
                     Value::Object{{"state", state}, {"progress", progress}, {"message", message}});
  return Status::Ok();
}

void Experiments::OnTrialCreated(const std::string& trial, const std::string& experiment) {
  MutexLock hold(&mu_);
  experiment_of_[trial] = experiment;
}

std::string Experiments::ExperimentOfTrial(const std::string& trial) const {
  MutexLock hold(&mu_);
  const auto found = experiment_of_.find(trial);
  return found == experiment_of_.end() ? std::string() : found->second;
}

void Experiments::OnTrialChanged(const std::string& trial, bool state) {
  const auto id = ExperimentId(ExperimentOfTrial(trial));
  if (id.ok()) Touch(*id, state);
}

void Experiments::Touch(std::int64_t experiment, bool soon) {
  MutexLock hold(&mu_);
  (soon ? soon_ : later_).insert(experiment);
  if (soon) changed_.NotifyAll();
}

Status Experiments::EnforceIntent(std::int64_t experiment) {
  ASSIGN_OR_RETURN(const auto entry, Load(experiment));
  const auto [paused, canceled] = std::pair(entry->intent.paused, entry->intent.canceled);
  if (IsEndedState(entry->state) || (!paused && !canceled)) return Status::Ok();
  return ForTrials(experiment, canceled ? NotAsked : IsActive, [&](const std::string& trial) {
    return canceled ? options_.engine->Cancel(trial) : options_.engine->Pause(trial);
  });
}

void Experiments::Run(const std::stop_token& stop) {
  Clock::Duration last = options_.clock->Now();
  std::set<std::int64_t> failing;               // said once, not each second
  std::optional<Clock::Duration> remove_again;  // when storage that could not be freed is looked at
  while (!stop.stop_requested()) {
    std::set<std::int64_t> due;
    bool removals = false;
    {
      MutexLock hold(&mu_);
      if (soon_.empty() && !removals_ && !stopping_) changed_.WaitFor(&mu_, kLater);
      if (stopping_) return;
      due.swap(soon_);
      if (options_.clock->Now() - last >= kLater) {
        last = options_.clock->Now();
        due.merge(later_);
        later_.clear();
      }
      removals = std::exchange(removals_, false) ||
                 (remove_again && options_.clock->Now() >= *remove_again);
    }
    bool failed = false;
    for (const std::int64_t id : due) {
      Status status;
      {
        MutexLock turn(&turn_);
        status = Advance(id);
        if (status.ok()) status = EnforceIntent(id);
      }
      if (status.ok() || status.Is(Code::kNotFound) || status.Is(Code::kCancelled)) {
        if (failing.erase(id) > 0) LogInfo(fmt::format("experiment {}: it goes on", id));
        continue;
      }
      if (failing.insert(id).second) {
        LogWarning(fmt::format("experiment {}: {}; trying again", id, status.ToString()));
      }
      failed = true;
      Touch(id, false);
    }
    if (removals) {
      const bool tell = !remove_again;
      const bool applied = ApplyPolicies(tell);
      const bool freed = RemoveStorage(tell);
      remove_again.reset();
      if (!freed || !applied) remove_again = options_.clock->Now() + kRemovalRetry;
    }
    if (failed) {
      MutexLock hold(&mu_);
      if (!stopping_) changed_.WaitFor(&mu_, kRetry);
    }
  }
}

}  // namespace cairn::master
