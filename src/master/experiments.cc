#include "master/experiments.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <utility>

#include "base/checksum.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "format/json.h"
#include "master/repository_removal.h"

namespace cairn::master {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kRemoval = "remove/";  // settings: storage that is to be freed
constexpr std::string_view kPolicy = "policy/";   // … and rules that not all trials have yet
bool NotEnded(TrialState state) { return !IsEnded(state); }
bool Resting(TrialState state) {
  return state == TrialState::kPaused || state == TrialState::kPausing;
}

/// Where the trials of an experiment run. Numbers come again when a lost record is begun anew or an
/// old backup takes its place: what those of a number left is not found by the next.
std::string WorkOf(const Experiment& experiment) {
  const std::string whole = fmt::format("{} {}", experiment.uuid, experiment.created);
  return InDataDirectory(fmt::format("work/{}-{:08x}", experiment.id,
                                     static_cast<std::uint32_t>(Xxh3(std::string_view(whole)))));
}

/// One that an older version found in the storage has none.
Value ConfigOf(const Experiment& record) {
  const Value::Object* members = record.config.if_object();
  if (members == nullptr || !members->empty()) return record.config;
  return Value::Object{{"name", record.name}, {"detached", true}};
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

/// What is refused of new ones alone: those that are there must be readable for ever.
Status CheckNew(const ExperimentConfig& config) {
  const auto odd = [](const std::string& label) { return label.empty() || label.size() > 64; };
  if (std::ranges::any_of(config.labels, odd)) {
    return InvalidArgumentError("labels must have 1 to 64 bytes each");
  }
  constexpr std::string_view kS3 = "s3://";
  if (config.storage.starts_with(kS3) &&
      (config.storage.size() == kS3.size() || config.storage[kS3.size()] == '/')) {
    return InvalidArgumentError(
        fmt::format("checkpoint_storage {} names no bucket: s3://bucket/prefix",
                    QuoteForMessage(config.storage)));
  }
  return Status::Ok();
}

}  // namespace

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
  RETURN_IF_ERROR(CheckNew(*config));
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
  out.searcher_state = IntentText({.paused = request.paused});
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
  return Begin(experiment);
}

Result<std::int64_t> Experiments::OfDetached(const JoinRequest& request) {
  Value::Object source{
      {"name", request.name}, {"detached", true}, {"hyperparameters", AsConstant(request.hparams)}};
  if (!request.storage.empty()) source["checkpoint_storage"] = request.storage;
  if (!request.metric.empty()) {
    source["searcher"] = Value::Object{{"name", "single"},
                                       {"metric", request.metric},
                                       {"smaller_is_better", request.smaller_is_better}};
  }
  ASSIGN_OR_RETURN(const ExperimentConfig config, ExperimentFromValue(Value(source)));
  NewExperiment experiment;
  experiment.uuid = fmt::format("{}:detached:{}", request.owner, request.external_id);
  experiment.name = config.name;
  experiment.owner = request.owner;
  experiment.state = "QUEUED";
  experiment.config_text = EncodeJson(config.source, 2);
  experiment.config = config.source;
  experiment.storage = request.storage.empty() ? options_.default_storage : request.storage;
  experiment.metric = request.metric;
  experiment.smaller_is_better = request.smaller_is_better;
  if (!request.metric_group.empty()) experiment.metric_group = request.metric_group;
  experiment.searcher_state = IntentText({});
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

Result<std::int64_t> Experiments::Begin(const NewExperiment& experiment) {
  ASSIGN_OR_RETURN(const std::int64_t id, Insert(experiment));
  // Whoever asks for its trial after our answer must find it.
  MutexLock turn(&turn_);
  const Status begun = Advance(id);
  if (!begun.ok()) LogWarning(fmt::format("experiment {}: {}; trying again", id, begun.ToString()));
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
  ASSIGN_OR_RETURN(entry->config, ExperimentFromValue(ConfigOf(record)));
  if (const auto asked = DecodeJson(intent); asked.ok()) entry->intent = IntentIn(*asked);
  entry->parent_trial = record.parent_trial;
  entry->parent_checkpoint = record.parent_checkpoint;
  entry->code = record.code_digest;
  entry->work = WorkOf(record);
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

Status Experiments::SetIntent(std::int64_t experiment, const Intent& intent) {
  ASSIGN_OR_RETURN(const auto entry, Load(experiment));
  if (entry->intent == intent) return Status::Ok();
  ExperimentChange change;
  change.searcher_state = IntentText(intent, entry->search.get());
  RETURN_IF_ERROR(options_.catalog->experiments().Update(experiment, change));
  entry->intent = intent;
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
  Intent intent = entry->intent;
  intent.paused = true;
  RETURN_IF_ERROR(SetIntent(experiment, intent));
  RETURN_IF_ERROR(ForTrials(experiment, IsActive, [&](const std::string& trial) {
    return options_.engine->Pause(trial);
  }));
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
  if (entry->config.detached) {
    ASSIGN_OR_RETURN(const std::vector<TrialRow> trials, TrialsOf(experiment));
    for (const TrialRow& trial : trials) RETURN_IF_ERROR(CheckStarts(trial.id));
  }
  RETURN_IF_ERROR(SetIntent(experiment, entry->intent.AfterActivating()));
  RETURN_IF_ERROR(ForTrials(experiment, Resting, [&](const std::string& trial) {
    return options_.engine->Activate(trial);
  }));
  return Advance(experiment);
}

Status Experiments::Cancel(std::int64_t experiment) {
  MutexLock turn(&turn_);
  ASSIGN_OR_RETURN(const auto entry, Load(experiment));
  if (IsEndedState(entry->state)) return Status::Ok();
  Intent intent = entry->intent;
  intent.canceled = true;
  RETURN_IF_ERROR(SetIntent(experiment, intent));
  RETURN_IF_ERROR(ForTrials(experiment, NotEnded, [&](const std::string& trial) {
    return options_.engine->Cancel(trial);
  }));
  return Advance(experiment);
}

Status Experiments::Kill(std::int64_t experiment) {
  MutexLock turn(&turn_);
  ASSIGN_OR_RETURN(const auto entry, Load(experiment));
  if (IsEndedState(entry->state)) return Status::Ok();
  Intent intent = entry->intent;
  intent.canceled = true;
  RETURN_IF_ERROR(SetIntent(experiment, intent));
  RETURN_IF_ERROR(ForTrials(experiment, NotEnded, [&](const std::string& trial) {
    return options_.engine->Kill(trial);
  }));
  return Advance(experiment);
}

Status Experiments::PauseTrial(const std::string& trial) { return options_.engine->Pause(trial); }
Status Experiments::CancelTrial(const std::string& trial) { return options_.engine->Cancel(trial); }
Status Experiments::KillTrial(const std::string& trial) { return options_.engine->Kill(trial); }

Status Experiments::CheckStarts(const std::string& trial) {
  ASSIGN_OR_RETURN(const TrialView view, options_.engine->Summary(trial));
  const TrialConfig& config = view.record.config;
  // One that joined does so again when its owner starts it.
  if (!config.detached || !config.external_id.empty()) return Status::Ok();
  return FailedPreconditionError(fmt::format(
      "trial {} was found in the storage, and nobody knows its command: begin a new one "
      "with its weights, `cairn e continue {} --new --config entrypoint='…'`",
      trial, config.experiment));
}

Status Experiments::ActivateTrial(const std::string& trial, const std::string& from) {
  MutexLock turn(&turn_);
  RETURN_IF_ERROR(CheckStarts(trial));
  const auto id = ExperimentId(ExperimentOfTrial(trial));
  if (!id.ok()) return options_.engine->Activate(trial, from);
  ASSIGN_OR_RETURN(const auto entry, Load(*id));
  const Intent before = entry->intent;
  // It lives again: what was asked for before does not hold for it any more.
  RETURN_IF_ERROR(SetIntent(*id, before.AfterActivatingOne()));
  if (Status activated = options_.engine->Activate(trial, from); !activated.ok()) {
    SetIntent(*id, before).IgnoreError("the first error is the one to tell");
    return activated;
  }
  // Whoever asks after our answer must not be told that the experiment has ended.
  Advance(*id).IgnoreError("done again behind us");
  Touch(*id, true);
  return Status::Ok();
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
    return old;
  }
  ASSIGN_OR_RETURN(const Experiment record, options_.catalog->experiments().Get(old));
  ASSIGN_OR_RETURN(const TrialView view, options_.engine->Summary(trial));
  // Before anything is made: an experiment that has nothing to begin with would wait for ever.
  ASSIGN_OR_RETURN(const auto start, view.record.StartFrom(request.from, view.repository));
  if (!start) {
    return FailedPreconditionError(fmt::format("trial {} has no checkpoint to begin with", trial));
  }
  Value source = ConfigOf(record);
  auto& members = *source.if_object();
  members["hyperparameters"] = AsConstant(view.record.config.hparams);
  Value::Object searcher{{"name", "single"}};
  if (!record.metric.empty()) searcher["metric"] = record.metric;
  searcher["smaller_is_better"] = record.smaller_is_better;
  members["searcher"] = std::move(searcher);
  // A process that was started by hand, or that nobody remembers, is begun anew by the master.
  members.erase("detached");
  if (!request.overrides.is_null()) OverrideConfig(request.overrides, &source);
  if (source.Find("entrypoint") == nullptr) {
    return InvalidArgumentError(fmt::format(
        "nobody here knows the command of experiment {}: its process was started by hand "
        "(start it again, and it joins by itself), or it was found in the storage. For a "
        "new one name it: --config entrypoint='python3 /path/of/train.py'",
        old));
  }
  Request create{.owner = request.owner,
                 .config = EncodeJson(source, 2),
                 .code = record.code_digest,
                 .overrides = Value(),
                 .request_id = request.request_id};
  ExperimentConfig config;
  ASSIGN_OR_RETURN(NewExperiment experiment, Prepare(create, &config));
  experiment.parent_trial = trial;
  experiment.parent_checkpoint = start->id;
  return Begin(experiment);
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
    // As good as pinned: without it the other one could not begin.
    ASSIGN_OR_RETURN(const std::vector<TrialRow> trials, TrialsOf(experiment));
    for (const TrialRow& trial : trials) {
      for (const auto& [checkpoint, other] : options_.engine->BegunWith(trial.id)) {
        const std::string of = ExperimentOfTrial(other);
        if (of == std::to_string(experiment)) continue;
        return FailedPreconditionError(fmt::format(
            "experiment {} begins with it (checkpoint {}), and has none of its own yet: wait for "
            "that, or cancel it, or use force",
            of, checkpoint));
      }
    }
  }
  if (!keep_checkpoints) {
    RETURN_IF_ERROR(options_.catalog->SetSetting(fmt::format("{}{}", kRemoval, experiment),
                                                 EncodeJson(Value::Object{{"work", entry->work}})));
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
  put("experiment_bytes", policy.experiment_bytes);
  if (policy.max_age) rules["max_age"] = static_cast<double>(policy.max_age->count()) / 1e3;
  if (!policy.score.empty()) rules["score"] = policy.score;
  rules["order"] = policy.maximize ? "max" : "min";
  (*source.if_object())["checkpoint_policy"] = std::move(rules);
  ASSIGN_OR_RETURN(ExperimentConfig config, ExperimentFromValue(source));
  ExperimentChange change;
  change.config = source;
  RETURN_IF_ERROR(options_.catalog->SetSetting(fmt::format("{}{}", kPolicy, experiment), ""));
  RETURN_IF_ERROR(options_.catalog->experiments().Update(experiment, change));
  entry->config = std::move(config);
  Status applied = ApplyPolicy(experiment);
  if (!applied.ok()) {
    MutexLock hold(&mu_);
    removals_ = true;
    changed_.NotifyAll();
  }
  return applied;
}

Status Experiments::ApplyPolicy(std::int64_t experiment) {
  ASSIGN_OR_RETURN(const auto entry, Load(experiment));
  RETURN_IF_ERROR(EndDoubt(experiment, entry.get()));  // one that is not listed yet has old rules
  ASSIGN_OR_RETURN(const std::vector<TrialRow> trials, TrialsOf(experiment));
  for (const TrialRow& trial : trials) {
    RETURN_IF_ERROR(options_.engine->SetRetention(trial.id, entry->config.retention));
  }
  return options_.catalog->DeleteSetting(fmt::format("{}{}", kPolicy, experiment));
}

bool Experiments::ApplyPolicies(bool tell) {
  const auto pending = options_.catalog->ListSettings(std::string(kPolicy));
  bool applied = pending.ok();
  if (!applied && tell) LogWarning(pending.status().ToString());
  if (!applied) return false;
  for (const auto& [name, nothing] : *pending) {
    const auto experiment = ExperimentId(std::string_view(name).substr(kPolicy.size()));
    Status status = experiment.status();
    bool gone = !experiment.ok();
    if (experiment.ok()) {
      MutexLock turn(&turn_);
      gone = Load(*experiment).status().Is(Code::kNotFound);
      if (!gone) status = ApplyPolicy(*experiment);
    }
    if (gone) status = options_.catalog->DeleteSetting(name);
    if (status.ok()) continue;
    applied = false;
    if (tell) {
      LogWarning(fmt::format("rules for the checkpoints of experiment {}: {}; trying again",
                             name.substr(kPolicy.size()), status.ToString()));
    }
  }
  return applied;
}

Result<RetentionPolicy> Experiments::Policy(std::int64_t experiment) {
  MutexLock turn(&turn_);
  ASSIGN_OR_RETURN(const auto entry, Load(experiment));
  return entry->config.retention;
}

Status Experiments::RemoveRepositories(std::int64_t experiment) {
  ASSIGN_OR_RETURN(const std::vector<TrialRow> trials, TrialsOf(experiment));
  Status first;
  for (const TrialRow& trial : trials) {
    const auto view = options_.engine->Summary(trial.id);
    if (!view.ok()) continue;
    const TrialRecord& record = view->record;
    // One from before jobs were recorded that never began left nothing, whatever stands there now.
    if (record.job.empty() && record.core.run == 0 && record.checkpoints.empty()) continue;
    const Status removed = RemoveRepository(view->repository, record.job);
    if (!removed.ok() && first.ok()) first = removed;
  }
  return first;
}

Result<bool> Experiments::IsToBeFreed(std::int64_t experiment, const std::string& setting) {
  MutexLock turn(&turn_);
  const Status listed = options_.catalog->experiments().Get(experiment).status();
  if (listed.Is(Code::kNotFound)) return true;
  RETURN_IF_ERROR(listed);
  RETURN_IF_ERROR(options_.catalog->DeleteSetting(setting));
  return false;
}

bool Experiments::RemoveStorage(bool tell) {
  const auto pending = options_.catalog->ListSettings(std::string(kRemoval));
  if (!pending.ok()) {
    if (tell) LogWarning(pending.status().ToString());
    return false;
  }
  bool freed = true;
  for (const auto& [name, text] : *pending) {
    const auto experiment = ExperimentId(std::string_view(name).substr(kRemoval.size()));
    const auto what = DecodeJson(text);
    const Value* work = what.ok() ? what->Find("work") : nullptr;
    Status removed;
    if (experiment.ok()) {
      const Result<bool> due = IsToBeFreed(*experiment, name);
      if (due.ok() && !*due) continue;
      removed = due.status();
    }
    if (experiment.ok() && removed.ok()) {
      removed = RemoveRepositories(*experiment);
      std::error_code error;
      // One that an older version deleted ran where its number says.
      fs::remove_all(Located(work != nullptr && work->if_string() != nullptr
                                 ? *work->if_string()
                                 : InDataDirectory(fmt::format("work/{}", *experiment)),
                             options_.data_directory),
                     error);
    }
    if (removed.ok()) removed = options_.catalog->DeleteSetting(name);
    if (removed.ok()) continue;
    freed = false;
    if (tell) {
      LogWarning(fmt::format("freeing the storage of experiment {}: {}; trying again",
                             name.substr(kRemoval.size()), removed.ToString()));
    }
  }
  return freed;
}

}  // namespace cairn::master
