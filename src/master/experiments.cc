#include "master/experiments.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <utility>

#include "base/log.h"
#include "base/status_macros.h"
#include "format/json.h"
#include "master/repository_removal.h"

namespace cairn::master {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kRemoval = "remove/";  // settings: storage that is to be freed
constexpr auto kLater = std::chrono::seconds(2);
constexpr auto kRetry = std::chrono::seconds(1);

bool NotEnded(TrialState state) { return !IsEnded(state); }
bool NotAsked(TrialState state) { return !IsEnded(state) && state != TrialState::kStopping; }
bool Active(TrialState state) {
  return state == TrialState::kQueued || state == TrialState::kStarting ||
         state == TrialState::kRunning;
}
bool Resting(TrialState state) {
  return state == TrialState::kPaused || state == TrialState::kPausing;
}

std::vector<std::string> LivingStates() {
  return {"QUEUED", "STARTING", "RUNNING", "PAUSING", "PAUSED", "STOPPING"};
}

std::string IntentText(bool paused, bool canceled, const AdaptiveSearch* search = nullptr) {
  Value::Object members{{"paused", paused}, {"canceled", canceled}};
  if (search != nullptr) members["search"] = search->Save();
  return EncodeJson(Value(std::move(members)));
}

bool FlagIn(const Value& value, std::string_view name) {
  const Value* found = value.Find(name);
  return found != nullptr && found->if_bool() != nullptr && *found->if_bool();
}

/// A value that ParseExperiment takes for itself and not for a range.
Value AsConstant(const Value& value) {
  const auto* members = value.if_object();
  if (members == nullptr) return value;
  if (members->contains("type")) return Value::Object{{"type", "const"}, {"val", value}};
  Value::Object out;
  for (const auto& [name, member] : *members) out[name] = AsConstant(member);
  return out;
}

}  // namespace

bool IsEndedState(std::string_view state) {
  return state == "COMPLETED" || state == "CANCELED" || state == "ERROR";
}

std::string ExperimentState(const std::map<std::string, std::uint64_t>& trials,
                            std::uint64_t max_trials, bool paused, bool canceled) {
  const auto count = [&](std::string_view state) {
    const auto found = trials.find(std::string(state));
    return found == trials.end() ? std::uint64_t{0} : found->second;
  };
  for (const std::string_view state :
       {"RUNNING", "STARTING", "PAUSING", "STOPPING", "QUEUED", "PAUSED"}) {
    if (count(state) > 0) return std::string(state);
  }
  std::uint64_t total = 0;
  for (const auto& [state, number] : trials) total += number;
  if (!canceled && total < max_trials) return paused ? "PAUSED" : "QUEUED";
  if (canceled && max_trials > 1) return "CANCELED";
  for (const std::string_view state : {"COMPLETED", "ERROR"}) {
    if (count(state) > 0) return std::string(state);
  }
  return "CANCELED";
}

Result<std::int64_t> ExperimentId(std::string_view text) {
  std::int64_t id = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
  if (error != std::errc() || end != text.data() + text.size() || id <= 0 || text.front() == '0') {
    return NotFoundError(fmt::format("no experiment {}", QuoteForMessage(text)));
  }
  return id;
}

Experiments::Experiments(Options options) : options_(std::move(options)) {}

Experiments::~Experiments() { Stop(); }

void Experiments::Stop() {
  {
    MutexLock hold(&mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.request_stop();
  if (thread_.joinable()) thread_.join();
}

std::string Experiments::WorkOf(std::int64_t experiment) const {
  return fmt::format("{}/{}", options_.work_directory, experiment);
}

Status Experiments::Start() {
  for (TrialQuery query{.limit = kMaxPage};; query.offset += kMaxPage) {
    ASSIGN_OR_RETURN(const Page<TrialRow> page, options_.catalog->trials().List(query));
    for (const TrialRow& trial : page.items) OnTrialCreated(trial.id, trial.experiment);
    if (page.items.size() < kMaxPage) break;
  }
  ExperimentQuery query{.states = LivingStates(), .limit = kMaxPage};
  for (;; query.offset += kMaxPage) {
    ASSIGN_OR_RETURN(const Page<Experiment> page, options_.catalog->experiments().List(query));
    for (const Experiment& experiment : page.items) Touch(experiment.id, true);
    if (page.items.size() < kMaxPage) break;
  }
  {
    MutexLock hold(&mu_);
    removals_ = true;
  }
  thread_ = std::jthread([this](const std::stop_token& stop) { Run(stop); });
  return Status::Ok();
}

Result<NewExperiment> Experiments::Prepare(const Request& request, ExperimentConfig* config) const {
  ASSIGN_OR_RETURN(*config, ParseExperiment(request.config));
  if (!request.overrides.is_null()) {
    Value source = config->source;
    OverrideConfig(request.overrides, &source);
    ASSIGN_OR_RETURN(*config, ExperimentFromValue(source));
  }
  if (config->detached) {
    return InvalidArgumentError(
        "detached: such a trial is a process that somebody else starts; start it again, and it "
        "joins by itself");
  }
  if (config->launcher.empty() && config->slots > options_.slots) {
    return InvalidArgumentError(fmt::format(
        "resources.slots_per_trial is {}, and this master has {}: its trials would never start",
        config->slots, options_.slots));
  }
  NewExperiment out;
  out.uuid = request.request_id.empty() ? options_.ids->NewUuid()
                                        : fmt::format("{}:{}", request.owner, request.request_id);
  out.name = config->name;
  out.description = config->description;
  out.owner = request.owner;
  out.state = request.paused ? "PAUSED" : "QUEUED";
  out.config_text = request.overrides.is_null() ? request.config : EncodeJson(config->source, 2);
  out.config = config->source;
  out.code_digest = request.code;
  out.storage = config->storage.empty() ? options_.default_storage : config->storage;
  out.metric = config->searcher.metric;
  out.smaller_is_better = config->searcher.smaller_is_better;
  out.labels = config->labels;
  out.searcher_state = IntentText(request.paused, false);
  if (!request.code.empty()) {
    ASSIGN_OR_RETURN(const std::string archive, options_.code->Get(request.code));
    out.code_bytes = archive.size();
  }
  return out;
}

Result<Experiment> Experiments::Check(const Request& request) const {
  ExperimentConfig config;
  ASSIGN_OR_RETURN(const NewExperiment prepared, Prepare(request, &config));
  Experiment out;
  out.name = prepared.name;
  out.description = prepared.description;
  out.owner = prepared.owner;
  out.state = prepared.state;
  out.config = prepared.config;
  out.code_digest = prepared.code_digest;
  out.code_bytes = prepared.code_bytes;
  out.storage = prepared.storage;
  out.metric = prepared.metric;
  out.smaller_is_better = prepared.smaller_is_better;
  out.labels = prepared.labels;
  return out;
}

Result<std::int64_t> Experiments::Create(const Request& request) {
  ExperimentConfig config;
  ASSIGN_OR_RETURN(const NewExperiment experiment, Prepare(request, &config));
  return Insert(experiment);
}

Result<std::int64_t> Experiments::OfDetached(const JoinRequest& request) {
  Value::Object source{
      {"name", request.name}, {"detached", true}, {"hyperparameters", AsConstant(request.hparams)}};
  if (!request.storage.empty()) source["checkpoint_storage"] = request.storage;
  ASSIGN_OR_RETURN(const ExperimentConfig config, ExperimentFromValue(Value(source)));
  NewExperiment experiment;
  experiment.uuid = fmt::format("{}:detached:{}", request.owner, request.external_id);
  experiment.name = config.name;
  experiment.owner = request.owner;
  experiment.state = "QUEUED";
  experiment.config_text = EncodeJson(config.source, 2);
  experiment.config = config.source;
  experiment.storage = request.storage.empty() ? options_.default_storage : request.storage;
  experiment.searcher_state = IntentText(false, false);
  ASSIGN_OR_RETURN(const std::int64_t id, Insert(experiment));
  if (const Status found = options_.catalog->experiments().Get(id).status(); !found.ok()) {
    return !found.Is(Code::kNotFound)
               ? found
               : FailedPreconditionError(
                     fmt::format("the trial {} was deleted with experiment {}: join under another "
                                 "external id",
                                 QuoteForMessage(request.external_id), id));
  }
  return id;
}

Result<std::int64_t> Experiments::Insert(const NewExperiment& experiment) {
  ASSIGN_OR_RETURN(const std::int64_t id, options_.catalog->experiments().Create(experiment));
  options_.on_change(id, Value::Object{{"state", experiment.state}});
  Touch(id, true);
  return id;
}

Result<std::shared_ptr<Experiments::Entry>> Experiments::Load(std::int64_t experiment) {
  {
    MutexLock hold(&mu_);
    const auto found = entries_.find(experiment);
    if (found != entries_.end()) return found->second;
  }
  ASSIGN_OR_RETURN(const Experiment record, options_.catalog->experiments().Get(experiment));
  ASSIGN_OR_RETURN(const std::string intent,
                   options_.catalog->experiments().SearcherState(experiment));
  auto entry = std::make_shared<Entry>();
  ASSIGN_OR_RETURN(entry->config, ExperimentFromValue(record.config));
  if (const auto asked = DecodeJson(intent); asked.ok()) {
    entry->paused = FlagIn(*asked, "paused");
    entry->canceled = FlagIn(*asked, "canceled");
  }
  entry->parent_trial = record.parent_trial;
  entry->parent_checkpoint = record.parent_checkpoint;
  entry->code = record.code_digest;
  entry->state = record.state;
  entry->progress = record.progress;
  if (entry->config.searcher.kind == SearcherConfig::Kind::kAdaptiveAsha) {
    const auto asked = DecodeJson(intent);
    const Value* saved = asked.ok() ? asked->Find("search") : nullptr;
    RETURN_IF_ERROR(LoadSearch(experiment, saved == nullptr ? Value() : *saved, entry.get()));
  }
  MutexLock hold(&mu_);
  return entries_.emplace(experiment, std::move(entry)).first->second;
}

Status Experiments::SetIntent(std::int64_t experiment, bool paused, bool canceled) {
  ASSIGN_OR_RETURN(const auto entry, Load(experiment));
  if (entry->paused == paused && entry->canceled == canceled) return Status::Ok();
  ExperimentChange change;
  change.searcher_state = IntentText(paused, canceled, entry->search.get());
  RETURN_IF_ERROR(options_.catalog->experiments().Update(experiment, change));
  entry->paused = paused;
  entry->canceled = canceled;
  return Status::Ok();
}

Result<std::vector<TrialRow>> Experiments::TrialsOf(std::int64_t experiment) {
  std::vector<TrialRow> out;
  for (TrialQuery query{.experiment = std::to_string(experiment), .limit = kMaxPage};;
       query.offset += kMaxPage) {
    ASSIGN_OR_RETURN(Page<TrialRow> page, options_.catalog->trials().List(query));
    const std::size_t count = page.items.size();
    for (TrialRow& trial : page.items) out.push_back(std::move(trial));
    if (count < kMaxPage) return out;
  }
}

Status Experiments::ForTrials(std::int64_t experiment, bool (*wanted)(TrialState),
                              const std::function<Status(const std::string&)>& act) {
  ASSIGN_OR_RETURN(const std::vector<TrialRow> trials, TrialsOf(experiment));
  Status first;
  for (const TrialRow& trial : trials) {
    if (!wanted(trial.core.state)) continue;
    const Status done = act(trial.id);
    // It may have ended meanwhile.
    if (!done.ok() && !done.Is(Code::kFailedPrecondition) && first.ok()) first = done;
  }
  return first;
}

Status Experiments::Pause(std::int64_t experiment) {
  MutexLock turn(&turn_);
  ASSIGN_OR_RETURN(const auto entry, Load(experiment));
  if (IsEndedState(entry->state)) {
    return FailedPreconditionError(
        fmt::format("experiment {} is {}: it cannot be paused", experiment, entry->state));
  }
  RETURN_IF_ERROR(SetIntent(experiment, true, entry->canceled));
  RETURN_IF_ERROR(ForTrials(
      experiment, Active, [&](const std::string& trial) { return options_.engine->Pause(trial); }));
  return Advance(experiment);
}

Status Experiments::Activate(std::int64_t experiment) {
  MutexLock turn(&turn_);
  ASSIGN_OR_RETURN(const auto entry, Load(experiment));
  if (IsEndedState(entry->state)) {
    return FailedPreconditionError(
        fmt::format("experiment {} is {}: go on with `cairn e continue {}`", experiment,
                    entry->state, experiment));
  }
  RETURN_IF_ERROR(SetIntent(experiment, false, entry->canceled));
  RETURN_IF_ERROR(ForTrials(experiment, Resting, [&](const std::string& trial) {
    return options_.engine->Activate(trial);
  }));
  return Advance(experiment);
}

Status Experiments::Cancel(std::int64_t experiment) {
  MutexLock turn(&turn_);
  ASSIGN_OR_RETURN(const auto entry, Load(experiment));
  if (IsEndedState(entry->state)) return Status::Ok();
  RETURN_IF_ERROR(SetIntent(experiment, entry->paused, true));
  RETURN_IF_ERROR(ForTrials(experiment, NotEnded, [&](const std::string& trial) {
    return options_.engine->Cancel(trial);
  }));
  return Advance(experiment);
}

Status Experiments::Kill(std::int64_t experiment) {
  MutexLock turn(&turn_);
  ASSIGN_OR_RETURN(const auto entry, Load(experiment));
  if (IsEndedState(entry->state)) return Status::Ok();
  RETURN_IF_ERROR(SetIntent(experiment, entry->paused, true));
  RETURN_IF_ERROR(ForTrials(experiment, NotEnded, [&](const std::string& trial) {
    return options_.engine->Kill(trial);
  }));
  return Advance(experiment);
}

Status Experiments::PauseTrial(const std::string& trial) { return options_.engine->Pause(trial); }
Status Experiments::CancelTrial(const std::string& trial) { return options_.engine->Cancel(trial); }
Status Experiments::KillTrial(const std::string& trial) { return options_.engine->Kill(trial); }

Status Experiments::ActivateTrial(const std::string& trial, const std::string& from) {
  MutexLock turn(&turn_);
  if (const auto id = ExperimentId(ExperimentOfTrial(trial)); id.ok()) {
    // It lives again: what was asked for before does not hold any more.
    RETURN_IF_ERROR(SetIntent(*id, false, false));
  }
  return options_.engine->Activate(trial, from);
}

Result<std::string> Experiments::TrialOf(std::int64_t experiment, const std::string& from) {
  ASSIGN_OR_RETURN(const Experiment record, options_.catalog->experiments().Get(experiment));
  const std::string id = std::to_string(experiment);
  if (!from.empty()) {
    ASSIGN_OR_RETURN(const CheckpointRow checkpoint,
                     options_.catalog->trials().GetCheckpoint(from));
    if (checkpoint.experiment != id) {
      return NotFoundError(fmt::format("experiment {} has no checkpoint {}", id, from));
    }
    return checkpoint.trial;
  }
  if (record.trials > 1 && !record.best_trial.empty()) return record.best_trial;
  ASSIGN_OR_RETURN(const Page<TrialRow> page,
                   options_.catalog->trials().List({.experiment = id, .limit = 2}));
  if (page.items.empty()) {
    return FailedPreconditionError(fmt::format("experiment {} has no trial yet", id));
  }
  if (page.items.size() > 1) {
    return FailedPreconditionError(fmt::format(
        "experiment {} has several trials and no metric says which is best: name the trial", id));
  }
  return page.items.front().id;
}

Result<std::int64_t> Experiments::Continue(const std::string& trial,
                                           const ContinueRequest& request) {
  ASSIGN_OR_RETURN(const std::int64_t old, ExperimentId(ExperimentOfTrial(trial)));
  if (!request.new_experiment) {
    if (!request.overrides.is_null()) {
      return InvalidArgumentError(
          "config: a trial that goes on keeps its config; only a new one (new: true) takes "
          "another");
    }
    RETURN_IF_ERROR(ActivateTrial(trial, request.from));
    Touch(old, true);
    return old;
  }
  ASSIGN_OR_RETURN(const Experiment record, options_.catalog->experiments().Get(old));
  ASSIGN_OR_RETURN(const TrialView view, options_.engine->Summary(trial));
  std::string from = request.from;
  if (from.empty()) {
    const auto start = view.record.NextStart(view.repository);
    if (!start) {
      return FailedPreconditionError(
          fmt::format("trial {} has no checkpoint to begin with", trial));
    }
    from = start->repository == view.repository ? start->id : std::string();
  }
  Value source = record.config;
  auto& members = *source.if_object();
  members["hyperparameters"] = AsConstant(view.record.config.hparams);
  Value::Object searcher{{"name", "single"}};
  if (!record.metric.empty()) searcher["metric"] = record.metric;
  searcher["smaller_is_better"] = record.smaller_is_better;
  members["searcher"] = std::move(searcher);
  if (!request.overrides.is_null()) OverrideConfig(request.overrides, &source);
  Request create{.owner = request.owner,
                 .config = EncodeJson(source, 2),
                 .code = record.code_digest,
                 .overrides = Value(),
                 .request_id = request.request_id};
  ExperimentConfig config;
  ASSIGN_OR_RETURN(NewExperiment experiment, Prepare(create, &config));
  experiment.parent_trial = trial;
  experiment.parent_checkpoint = from;
  return Insert(experiment);
}

Status Experiments::Delete(std::int64_t experiment, bool force, bool keep_checkpoints) {
  MutexLock turn(&turn_);
  ASSIGN_OR_RETURN(const Experiment record, options_.catalog->experiments().Get(experiment));
  ASSIGN_OR_RETURN(const auto entry, Load(experiment));
  if (!IsEndedState(record.state)) {
    return FailedPreconditionError(
        fmt::format("experiment {} is {}: `cairn e cancel {}` or kill it first", experiment,
                    record.state, experiment));
  }
  if (!force && !keep_checkpoints) {
    ASSIGN_OR_RETURN(const Page<CheckpointRow> pinned,
                     options_.catalog->trials().Checkpoints(
                         {.experiment = std::to_string(experiment),
                          .states = {std::string(CheckpointStateName(CheckpointState::kCompleted))},
                          .pinned = true,
                          .limit = 1}));
    if (pinned.total > 0) {
      return FailedPreconditionError(
          fmt::format("{} of its checkpoints are pinned: unpin them, or use force", pinned.total));
    }
  }
  if (!keep_checkpoints) {
    RETURN_IF_ERROR(
        options_.catalog->SetSetting(fmt::format("{}{}", kRemoval, experiment),
                                     EncodeJson(Value::Object{{"storage", record.storage}})));
  }
  RETURN_IF_ERROR(options_.catalog->experiments().Delete(experiment));
  {
    MutexLock hold(&mu_);
    entries_.erase(experiment);
    validations_.erase(experiment);
    removals_ = true;
    changed_.NotifyAll();
  }
  options_.on_change(experiment, Value::Object{{"deleted", true}, {"state", record.state}});
  return Status::Ok();
}

Status Experiments::SetPolicy(std::int64_t experiment, const RetentionPolicy& policy) {
  RETURN_IF_ERROR(policy.Validate());
  MutexLock turn(&turn_);
  ASSIGN_OR_RETURN(const auto entry, Load(experiment));
  Value source = entry->config.source;
  Value::Object rules;
  const auto put = [&](const char* name, const std::optional<std::uint64_t>& number) {
    if (number) rules[name] = *number;
  };
  put("keep_last", policy.keep_last);
  put("keep_best", policy.keep_best);
  put("experiment_best", policy.experiment_best);
  put("keep_every", policy.keep_every);
  put("max_bytes", policy.max_bytes);
  if (policy.max_age) rules["max_age"] = static_cast<double>(policy.max_age->count()) / 1e3;
  if (!policy.score.empty()) rules["score"] = policy.score;
  rules["order"] = policy.maximize ? "max" : "min";
  (*source.if_object())["checkpoint_policy"] = std::move(rules);
  ASSIGN_OR_RETURN(ExperimentConfig config, ExperimentFromValue(source));
  ExperimentChange change;
  change.config = source;
  RETURN_IF_ERROR(options_.catalog->experiments().Update(experiment, change));
  entry->config = std::move(config);
  ASSIGN_OR_RETURN(const std::vector<TrialRow> trials, TrialsOf(experiment));
  for (const TrialRow& trial : trials) {
    RETURN_IF_ERROR(options_.engine->SetRetention(trial.id, policy));
  }
  return Status::Ok();
}

Result<RetentionPolicy> Experiments::Policy(std::int64_t experiment) {
  MutexLock turn(&turn_);
  ASSIGN_OR_RETURN(const auto entry, Load(experiment));
  return entry->config.retention;
}

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
    change.searcher_state = IntentText(entry->paused, entry->canceled, search);
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
  config.cwd = WorkOf(experiment);
  if (entry->parent_trial.empty()) {
    ASSIGN_OR_RETURN(const std::string id, options_.engine->Create(std::move(config)));
    OnTrialCreated(id, std::to_string(experiment));
    return entry->search == nullptr ? Status::Ok() : entry->search->AddTrial(id);
  }
  ASSIGN_OR_RETURN(const std::string id,
                   options_.engine->ContinueAsNew(entry->parent_trial, entry->parent_checkpoint,
                                                  ToValue(config)));
  OnTrialCreated(id, std::to_string(experiment));
  return entry->search == nullptr ? Status::Ok() : entry->search->AddTrial(id);
}

Status Experiments::MakeTrials(std::int64_t experiment, Entry* entry, const Experiment& record) {
  std::uint64_t ended = 0;
  for (const auto& [state, count] : record.trials_by_state)
    ended += IsEndedState(state) ? count : 0;
  std::uint64_t total = record.trials;
  const SearcherConfig& searcher = entry->config.searcher;
  if (total >= searcher.max_trials) return Status::Ok();
  const std::string work = WorkOf(experiment);
  if (entry->code.empty()) {
    std::error_code error;
    fs::create_directories(work, error);
    if (error) return UnavailableError(fmt::format("{}: {}", work, error.message()));
  } else {
    RETURN_IF_ERROR(options_.code->Extract(entry->code, work));
  }
  while (total < searcher.max_trials && total - ended < searcher.max_concurrent_trials) {
    RETURN_IF_ERROR(MakeTrial(experiment, entry, total));
    ++total;
  }
  return Status::Ok();
}

Status Experiments::Advance(std::int64_t experiment) {
  ASSIGN_OR_RETURN(const auto entry, Load(experiment));
  if (entry->search != nullptr) RETURN_IF_ERROR(StepSearch(experiment, entry.get()));
  ASSIGN_OR_RETURN(Experiment record, options_.catalog->experiments().Get(experiment));
  if (!entry->paused && !entry->canceled && !entry->config.detached &&
      record.trials < entry->config.searcher.max_trials) {
    RETURN_IF_ERROR(MakeTrials(experiment, entry.get(), record));
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
    // A run that waits for slots is STARTING for the engine, and still queued for people.
    if (trial.core.state != TrialState::kStarting) continue;
    const auto view = options_.engine->Summary(trial.id);
    if (view.ok() && view->state == TrialState::kQueued) {
      --states["STARTING"];
      ++states["QUEUED"];
    }
  }
  const std::string state = ExperimentState(states, max_trials, entry->paused, entry->canceled);
  progress = std::clamp(progress / static_cast<double>(max_trials), 0.0, 1.0);
  if (state == "COMPLETED") progress = 1;
  const bool changed = state != record.state || message != record.message;
  if (!changed && progress == record.progress) return Status::Ok();
  ExperimentChange change;
  change.progress = progress;
  if (state != record.state) {
    change.state = state;
    change.ended = IsEndedState(state) ? options_.clock->WallNanos() : 0;
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
  if (IsEndedState(entry->state) || (!entry->paused && !entry->canceled)) return Status::Ok();
  return ForTrials(experiment, entry->canceled ? NotAsked : Active, [&](const std::string& trial) {
    return entry->canceled ? options_.engine->Cancel(trial) : options_.engine->Pause(trial);
  });
}

void Experiments::Run(const std::stop_token& stop) {
  Clock::Duration last = options_.clock->Now();
  std::set<std::int64_t> failing;  // said once, not each second
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
      removals = std::exchange(removals_, false);
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
    if (removals) RemoveStorage();
    if (failed) {
      MutexLock hold(&mu_);
      if (!stopping_) changed_.WaitFor(&mu_, kRetry);
    }
  }
}

void Experiments::RemoveStorage() {
  const auto pending = options_.catalog->ListSettings(std::string(kRemoval));
  if (!pending.ok()) return LogWarning(pending.status().ToString());
  for (const auto& [name, text] : *pending) {
    const std::string experiment = name.substr(kRemoval.size());
    const auto what = DecodeJson(text);
    const Value* storage = what.ok() ? what->Find("storage") : nullptr;
    Status removed;
    if (ExperimentId(experiment).ok() && storage != nullptr && storage->if_string() != nullptr) {
      removed = RemoveRepositories(*storage->if_string(), experiment);
      std::error_code error;
      fs::remove_all(fmt::format("{}/{}", options_.work_directory, experiment), error);
    }
    if (removed.ok()) removed = options_.catalog->DeleteSetting(name);
    if (!removed.ok()) {
      LogWarning(
          fmt::format("freeing the storage of experiment {}: {}", experiment, removed.ToString()));
    }
  }
}

}  // namespace cairn::master
