#include "train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <deque>
#include <set>

#include <cairn/table_checkpoint.h>

#include "base/log.h"
#include "base/signal_watch.h"
#include "base/status_macros.h"
#include "checkpoint/manager.h"
#include "format/safetensors.h"
#include "train/save_schedule.h"
#include "train/scope_variables.h"
#include "train/stop_agreement.h"
#include "train/train_checkpoints.h"
#include "train/trainer_state.h"

// The order of things, which exact resume depends on:
//
//   BeginEpoch · { read a batch · BeginStep · step · count it · EndStep · save when due } ·
//   EndEpoch
//
// A save holds the state after EndStep, and the reader's position after the batch of that step. A
// resumed run reads the next batch, as the run before would have done. Stop and SIGTERM are looked
// at after a step (and after EndEpoch), so every saved state is one after a completed step.
//
// Where training goes on inside an epoch, its beginning comes again: registered generators are put
// to where the epoch found them, the reader is put into place (one that is read anew may draw from
// them), and BeginEpoch is told, since handlers make in memory what they need for an epoch. Then
// the state that was saved is put back: it holds already what the beginning of the epoch did to it.

namespace cairn {
namespace {

constexpr std::size_t kStepTimes = 8;

double Seconds(Clock::Duration duration) { return std::chrono::duration<double>(duration).count(); }

std::string At(const TrainProgress& progress) {
  return fmt::format("epoch {} step {}", progress.epoch, progress.next_step);
}

Status ValidateModel(const std::vector<MutableTensor>& model) {
  std::set<std::string_view> names;
  for (const MutableTensor& variable : model) {
    if (variable.name.empty()) return InvalidArgumentError("a variable has no name");
    if (!names.insert(variable.name).second) {
      return InvalidArgumentError("two variables are called \"" + variable.name + "\"");
    }
  }
  return Status::Ok();
}

std::vector<MutableTensor> AllVariables(std::vector<MutableTensor> model,
                                        const ScopeVariables& scope) {
  model.insert(model.end(), scope.tensors().begin(), scope.tensors().end());
  return model;
}

Status ValidateOptions(const TrainerOptions& options) {
  if (options.num_trainers < 1) return InvalidArgumentError("num_trainers must be at least 1");
  if (options.trainer_id < 0 || options.trainer_id >= options.num_trainers) {
    return InvalidArgumentError(fmt::format("trainer_id {} is not one of num_trainers {}",
                                            options.trainer_id, options.num_trainers));
  }
  RETURN_IF_ERROR(CheckTables(options.tables, options.arrays));
  ASSIGN_OR_RETURN(const ScopeVariables scope, ScopeVariables::Of(options.scope));
  const std::vector<MutableTensor> model = AllVariables(options.model, scope);
  RETURN_IF_ERROR(ValidateModel(model));
  std::vector<std::string_view> dense;
  for (const MutableTensor& variable : model) dense.push_back(variable.name);
  RETURN_IF_ERROR(CheckDenseNames(dense, options.tables, options.arrays));
  if (!options.checkpoint_config) return Status::Ok();
  return ValidateCheckpointConfig(*options.checkpoint_config, options.num_trainers);
}

struct RegisteredState {
  std::function<Value()> save;
  std::function<Status(const Value&)> load;
  bool generator = false;  // the beginning of an epoch may draw from it
};

class TrainerImpl final : public Trainer {
 public:
  /// `options.model` has the scope's variables too.
  TrainerImpl(TrainerOptions options, ScopeVariables scope, Environment env)
      : options_(std::move(options)), env_(std::move(env)), scope_(std::move(scope)) {}

  Status Start();

  Status AddState(std::string name, std::function<Value()> save,
                  std::function<Status(const Value&)> load) override {
    return Register(std::move(name), {std::move(save), std::move(load)});
  }
  void Stop() override { stop_.store(true); }
  std::int64_t global_step() const override { return progress_.global_step; }
  const std::optional<CheckpointInfo>& resumed() const override { return resumed_; }
  Status Close() override;

 protected:
  Status AddGenerator(std::string name, std::function<Value()> save,
                      std::function<Status(const Value&)> load) override {
    return Register(std::move(name), {std::move(save), std::move(load), /*generator=*/true});
  }
  Result<TrainResult> TrainOn(std::int64_t num_epochs, internal::BatchSource* source,
                              EventHandler event_handler) override;

 private:
  /// One call of Train.
  struct Run {
    std::int64_t num_epochs = 0;
    internal::BatchSource* source = nullptr;
    EventHandler handler;
    std::optional<SignalWatch> sigterm;
    std::optional<StopAgreement> agreement;  // with several trainers, after SIGTERM
    Clock::Duration begun{};
    // Of the last steps. The quickest tells how far the other trainers may be when a signal comes:
    // those that waited for a save do not.
    std::deque<Clock::Duration> step_times;
    Clock::Duration last_step{};  // when it ended
    Value metrics;                // of the last step
    TrainResult result;
  };

  bool together() const { return options_.num_trainers > 1 && !options_.private_parts; }
  Status Adopt(TrainerState state);
  Result<TrainOutcome> RunEpochs(Run* run);
  /// Nullopt: the epoch is over; else why the training ends inside it.
  Result<std::optional<TrainOutcome>> RunSteps(Run* run);
  /// To the next step, of a new epoch or inside of one, with its event.
  Status EnterEpoch(Run* run);
  Status BeginEpoch(Run* run);
  Status GoOnInside(Run* run);
  bool CanSeek(const Run& run) const { return run.source->seekable() && !reader_state_.is_null(); }
  Status SeekReader(Run* run);
  Status Replay(Run* run);
  /// BeginEpoch for an epoch that began before; what its handler changes is put back.
  Status TellAgain(Run* run);
  /// Something that differs when rows of tables and tracked arrays were changed.
  std::vector<std::uint64_t> RowMarks() const;
  Status Register(std::string name, RegisteredState functions);
  /// Before anything is read: the registered names are those of the checkpoint.
  Status CheckRegistered();
  std::map<std::string, Value> Registered(bool generators_only) const;
  Status LoadRegistered(const std::map<std::string, Value>& values);
  /// What the checkpoint has, once.
  Status LoadResumed();
  Result<std::optional<TrainOutcome>> Ending(Run* run);
  Status SaveWhenDue(Run* run);
  Status SaveLast(Run* run);
  /// Changes of tables from here on belong to the next step.
  void Stamp();
  Status Save(Run* run);
  void Report(Run* run, TrainOutcome outcome);

  const TrainerOptions options_;
  const Environment env_;
  ScopeVariables scope_;
  std::unique_ptr<TrainCheckpoints> checkpoints_;  // null: none wanted
  std::optional<SaveSchedule> schedule_;
  std::map<std::string, RegisteredState> registered_;
  std::optional<CheckpointInfo> resumed_;

  TrainProgress progress_;
  TrainProgress saved_;                                  // of the newest checkpoint
  Value reader_state_;                                   // of progress_; null: read anew
  std::optional<std::map<std::string, Value>> to_load_;  // by the first Train
  std::map<std::string, Value> epoch_generators_;        // as progress_.epoch found them
  bool started_ = false;
  bool unusable_ = false;  // a Train under way, or one that failed, or closed
  std::atomic<bool> stop_ = false;
};

Status TrainerImpl::Start() {
  if (!options_.checkpoint_config) return Status::Ok();
  schedule_.emplace(*options_.checkpoint_config);
  ASSIGN_OR_RETURN(checkpoints_, TrainCheckpoints::Open(options_, env_));
  ASSIGN_OR_RETURN(auto resumed, checkpoints_->Restore());
  if (!resumed) {
    LogInfo("\"" + options_.checkpoint_config->checkpoint_dir +
            "\" has no checkpoint: a new start");
    return Status::Ok();
  }
  resumed_ = std::move(resumed->info);
  scope_.MarkLoaded(resumed->skipped);
  return Adopt(std::move(resumed->state)).WithContext("resume from \"" + resumed_->path + "\"");
}

void TrainerImpl::Stamp() {
  for (Table* table : options_.tables) table->set_step(progress_.global_step);
}

Status TrainerImpl::Adopt(TrainerState state) {
  progress_ = state.progress;
  saved_ = state.progress;
  Stamp();
  if (state.num_trainers == options_.num_trainers && state.trainer_id == options_.trainer_id) {
    reader_state_ = std::move(state.reader);
    to_load_ = std::move(state.values);
    epoch_generators_ = std::move(state.epoch_generators);
    return Status::Ok();
  }
  const std::string what = fmt::format("it was saved by {} trainers, and there are {} now",
                                       state.num_trainers, options_.num_trainers);
  if (options_.strict) {
    return FailedPreconditionError(
        what +
        "; start as many, or open with strict=false: the variables and the counts of epochs "
        "and steps are then restored, each trainer's own state is not");
  }
  LogWarning("resume: " + what + ": each trainer's own state starts anew");
  return Status::Ok();
}

Status TrainerImpl::Register(std::string name, RegisteredState functions) {
  if (started_) return FailedPreconditionError("state is registered before Train");
  if (name.empty() || !functions.save || !functions.load) {
    return InvalidArgumentError("state needs a name, a function that saves and one that loads");
  }
  const auto [it, fresh] = registered_.try_emplace(name, std::move(functions));
  if (!fresh) return AlreadyExistsError("state \"" + name + "\" is registered already");
  return Status::Ok();
}

Status TrainerImpl::CheckRegistered() {
  started_ = true;
  if (!to_load_) return Status::Ok();
  std::string differences;
  for (const auto& [name, value] : *to_load_) {
    if (!registered_.contains(name)) differences += " \"" + name + "\" is stored, not registered;";
  }
  for (const auto& [name, functions] : registered_) {
    if (!to_load_->contains(name)) differences += " \"" + name + "\" is registered, not stored;";
  }
  if (differences.empty()) return Status::Ok();
  differences.pop_back();
  if (options_.strict) {
    return FailedPreconditionError("the registered state is not that of the checkpoint:" +
                                   differences + "; strict=false goes on without");
  }
  LogWarning("resume:" + differences);
  return Status::Ok();
}

std::map<std::string, Value> TrainerImpl::Registered(bool generators_only) const {
  std::map<std::string, Value> values;
  for (const auto& [name, functions] : registered_) {
    if (functions.generator || !generators_only) values[name] = functions.save();
  }
  return values;
}

Status TrainerImpl::LoadRegistered(const std::map<std::string, Value>& values) {
  for (const auto& [name, functions] : registered_) {
    const auto it = values.find(name);
    if (it == values.end()) continue;
    RETURN_IF_ERROR(functions.load(it->second).WithContext("load state \"" + name + "\""));
  }
  return Status::Ok();
}

Status TrainerImpl::LoadResumed() {
  if (!to_load_) return Status::Ok();
  return LoadRegistered(*std::exchange(to_load_, std::nullopt));
}

Status TrainerImpl::Replay(Run* run) {
  const Clock::Duration begun = env_.clock->Now();
  RETURN_IF_ERROR(run->source->Begin(progress_.epoch));
  for (std::int64_t step = 0; step < progress_.next_step; ++step) {
    ASSIGN_OR_RETURN(const bool more, run->source->Advance());
    if (!more) {
      return FailedPreconditionError(
          fmt::format("the reader ended after {} batches, but the checkpoint was made after {}: is "
                      "it the same data?",
                      step, progress_.next_step));
    }
  }
  const double took = Seconds(env_.clock->Now() - begun);
  run->result.replay_seconds += took;
  LogWarning(fmt::format("the reader cannot seek: read {} batches of epoch {} again in {:.2f} s",
                         progress_.next_step, progress_.epoch, took));
  return Status::Ok();
}

Status TrainerImpl::EnterEpoch(Run* run) {
  const bool inside = progress_.next_step > 0 && !progress_.epoch_complete;
  RETURN_IF_ERROR(inside ? GoOnInside(run) : BeginEpoch(run));
  reader_state_ = Value();
  return Status::Ok();
}

Status TrainerImpl::SeekReader(Run* run) {
  return run->source->LoadState(reader_state_).WithContext("put the reader back into place");
}

Status TrainerImpl::BeginEpoch(Run* run) {
  if (progress_.epoch_complete) {
    if (CanSeek(*run)) RETURN_IF_ERROR(SeekReader(run));
    ++progress_.epoch;
    progress_.next_step = 0;
    progress_.epoch_complete = false;
  }
  RETURN_IF_ERROR(LoadResumed());
  epoch_generators_ = Registered(/*generators_only=*/true);
  RETURN_IF_ERROR(run->source->Begin(progress_.epoch)
                      .WithContext(fmt::format("begin epoch {}", progress_.epoch)));
  if (run->handler) run->handler(BeginEpochEvent{progress_.epoch, 0});
  return Status::Ok();
}

Status TrainerImpl::GoOnInside(Run* run) {
  const std::map<std::string, Value> saved =
      to_load_ ? *std::exchange(to_load_, std::nullopt) : Registered(/*generators_only=*/false);
  RETURN_IF_ERROR(LoadRegistered(epoch_generators_));
  if (CanSeek(*run)) {
    RETURN_IF_ERROR(SeekReader(run));
  } else {
    RETURN_IF_ERROR(Replay(run).WithContext("read again up to " + At(progress_)));
  }
  if (run->handler) RETURN_IF_ERROR(TellAgain(run));
  return LoadRegistered(saved);
}

std::vector<std::uint64_t> TrainerImpl::RowMarks() const {
  std::vector<std::uint64_t> marks;
  for (const Table* table : options_.tables) {
    marks.push_back(table->ChangedRows(CutKind::kConsecutive));
  }
  for (const RowTracked* array : options_.arrays) {
    marks.push_back(array->ChangedRows(CutKind::kConsecutive));
  }
  return marks;
}

Status TrainerImpl::TellAgain(Run* run) {
  std::vector<std::string> variables;
  for (const MutableTensor& variable : options_.model) {
    ASSIGN_OR_RETURN(const std::uint64_t bytes, TensorBytes(variable.dtype, variable.shape));
    variables.emplace_back(static_cast<const char*>(variable.data), bytes);
  }
  const std::vector<std::uint64_t> rows = RowMarks();
  run->handler(BeginEpochEvent{progress_.epoch, progress_.next_step});
  for (std::size_t i = 0; i < variables.size(); ++i) {
    if (!variables[i].empty()) {
      std::memcpy(options_.model[i].data, variables[i].data(), variables[i].size());
    }
  }
  // Lookups of keys that are not admitted yet are counted, and the marks do not show it.
  const bool counts = std::any_of(options_.tables.begin(), options_.tables.end(),
                                  [](Table* t) { return t->options().admission.has_value(); });
  if (checkpoints_ == nullptr || (rows == RowMarks() && !counts)) return Status::Ok();
  const CheckpointInfo& newest = checkpoints_->saved() ? *checkpoints_->saved() : *resumed_;
  RETURN_IF_ERROR(checkpoints_->RestoreRows(newest.id).WithContext(
      "put back the rows that a handler of BeginEpoch changed"));
  Stamp();
  return Status::Ok();
}

Result<TrainOutcome> TrainerImpl::RunEpochs(Run* run) {
  RETURN_IF_ERROR(CheckRegistered());
  for (;;) {
    const std::int64_t next = progress_.epoch + (progress_.epoch_complete ? 1 : 0);
    if (next >= run->num_epochs) {
      RETURN_IF_ERROR(LoadResumed());
      break;
    }
    RETURN_IF_ERROR(EnterEpoch(run));
    ASSIGN_OR_RETURN(const std::optional<TrainOutcome> ended, RunSteps(run));
    if (ended) return *ended;
    if (run->handler) run->handler(EndEpochEvent{progress_.epoch});
    progress_.epoch_complete = true;
    if (progress_.epoch + 1 == run->num_epochs) continue;
    if (stop_.load()) return TrainOutcome::kStopped;
    // Several trainers agree on a step, and this is none.
    if (!together() && run->sigterm && run->sigterm->received()) return TrainOutcome::kTerminated;
  }
  return run->result.steps_run == 0 ? TrainOutcome::kAlreadyComplete : TrainOutcome::kCompleted;
}

Result<std::optional<TrainOutcome>> TrainerImpl::RunSteps(Run* run) {
  run->last_step = env_.clock->Now();
  for (;;) {
    auto more = run->source->Advance();
    if (!more.ok()) return more.status().WithContext("read the batch of " + At(progress_));
    if (!*more) break;
    const std::int64_t epoch = progress_.epoch;
    const std::int64_t step = progress_.next_step;
    if (run->handler) run->handler(BeginStepEvent{epoch, step});
    auto metrics = run->source->Step();
    if (!metrics.ok()) return metrics.status().WithContext(At(progress_));
    run->metrics = *std::move(metrics);
    ++progress_.next_step;
    ++progress_.global_step;
    ++run->result.steps_run;
    Stamp();
    if (run->handler) run->handler(EndStepEvent{epoch, step, run->metrics});
    scope_.EndIteration();
    RETURN_IF_ERROR(SaveWhenDue(run));
    run->step_times.push_back(env_.clock->Now() - run->last_step);
    run->last_step += run->step_times.back();
    if (run->step_times.size() > kStepTimes) run->step_times.pop_front();
    ASSIGN_OR_RETURN(const std::optional<TrainOutcome> ending, Ending(run));
    if (ending) return ending;
  }
  if (progress_.next_step > 0) return std::optional<TrainOutcome>();
  return FailedPreconditionError(fmt::format(
      "the reader gave no batch in epoch {}: can it begin a second time?", progress_.epoch));
}

Result<std::optional<TrainOutcome>> TrainerImpl::Ending(Run* run) {
  if (stop_.load()) return std::optional(TrainOutcome::kStopped);
  if (!run->sigterm || !run->sigterm->received()) return std::optional<TrainOutcome>();
  if (together()) {
    if (!run->agreement) {
      run->agreement.emplace(env_, checkpoints_->generation(), options_.trainer_id == 0,
                             options_.checkpoint_config->join_deadline);
    }
    const auto quickest = std::min_element(run->step_times.begin(), run->step_times.end());
    ASSIGN_OR_RETURN(const bool last,
                     run->agreement->LastStep(progress_.global_step, Seconds(*quickest)));
    if (!last) return std::optional<TrainOutcome>();
  }
  return std::optional(TrainOutcome::kTerminated);
}

Status TrainerImpl::SaveWhenDue(Run* run) {
  if (checkpoints_ == nullptr) return Status::Ok();
  RETURN_IF_ERROR(checkpoints_->Check());
  if (!schedule_->Due(progress_.epoch, progress_.next_step - 1, env_.clock->Now())) {
    return Status::Ok();
  }
  return Save(run);
}

Status TrainerImpl::Save(Run* run) {
  TrainerState state;
  state.progress = progress_;
  state.trainer_id = options_.trainer_id;
  state.num_trainers = options_.num_trainers;
  if (run->source->seekable()) {
    auto reader = run->source->SaveState();
    if (!reader.ok()) return reader.status().WithContext("the reader's position");
    state.reader = *std::move(reader);
  }
  state.values = Registered(/*generators_only=*/false);
  state.epoch_generators = epoch_generators_;
  double stall = 0;
  RETURN_IF_ERROR(checkpoints_->Save(state, run->metrics, &stall));
  saved_ = progress_;
  schedule_->Saved(env_.clock->Now(), stall);
  if (const auto warning = schedule_->CostWarning(env_.clock->Now())) LogWarning(*warning);
  return Status::Ok();
}

Status TrainerImpl::SaveLast(Run* run) {
  if (checkpoints_ == nullptr) return Status::Ok();
  // A checkpoint of the last step is enough when nothing of ours ran since: an event handler may
  // have changed the state at the epoch's end. Several trainers must decide alike, whether or not
  // each has a handler.
  const bool may_differ = run->handler != nullptr || together();
  const bool saved =
      saved_.global_step == progress_.global_step && (saved_ == progress_ || !may_differ);
  if (!saved && progress_.global_step > 0) RETURN_IF_ERROR(Save(run));
  return checkpoints_->Wait();
}

void TrainerImpl::Report(Run* run, TrainOutcome outcome) {
  TrainResult& result = run->result;
  result.outcome = outcome;
  if (progress_.global_step > 0) {
    result.epoch = progress_.epoch;
    result.step = progress_.next_step - 1;
  }
  result.global_step = progress_.global_step;
  result.train_seconds = Seconds(env_.clock->Now() - run->begun);
  if (schedule_) result.stall_seconds = schedule_->stall_seconds();
  if (checkpoints_ != nullptr) {
    result.checkpoint = checkpoints_->saved() ? checkpoints_->saved() : resumed_;
  }
  if (outcome == TrainOutcome::kAlreadyComplete) {
    LogWarning(
        fmt::format("nothing to do: {} epochs were asked for, and they are complete (epoch "
                    "{}, step {}, {} steps in all)",
                    run->num_epochs, result.epoch, result.step, result.global_step));
  }
}

Result<TrainResult> TrainerImpl::TrainOn(std::int64_t num_epochs, internal::BatchSource* source,
                                         EventHandler event_handler) {
  if (num_epochs < 0) return InvalidArgumentError("num_epochs must not be negative");
  if (unusable_) {
    return FailedPreconditionError(
        "this Trainer is closed, training already, or its training failed; open another one");
  }
  unusable_ = true;  // until the end is reached: a callback may also throw
  Run run;
  run.num_epochs = num_epochs;
  run.source = source;
  run.handler = std::move(event_handler);
  run.begun = env_.clock->Now();
  if (checkpoints_ != nullptr && options_.checkpoint_config->handle_sigterm) {
    run.sigterm.emplace(SignalWatchOptions{.signals = {SIGTERM}});
  }
  if (schedule_) schedule_->Start(run.begun);

  auto outcome = RunEpochs(&run);
  if (!outcome.ok()) {
    if (checkpoints_ != nullptr) {
      const Status pending = checkpoints_->Wait();
      if (!pending.ok()) LogError("the save in flight failed too: " + pending.ToString());
    }
    return outcome.status();
  }
  RETURN_IF_ERROR(SaveLast(&run));
  if (source->seekable() && run.result.steps_run > 0) {
    ASSIGN_OR_RETURN(reader_state_, source->SaveState());
  }
  Report(&run, *outcome);
  stop_.store(false);
  unusable_ = false;
  return std::move(run.result);
}

Status TrainerImpl::Close() {
  unusable_ = true;
  return checkpoints_ == nullptr ? Status::Ok() : checkpoints_->Close();
}

}  // namespace

std::string_view TrainOutcomeName(TrainOutcome outcome) {
  switch (outcome) {
    case TrainOutcome::kCompleted:
      return "completed";
    case TrainOutcome::kAlreadyComplete:
      return "already complete";
    case TrainOutcome::kStopped:
      return "stopped";
    case TrainOutcome::kTerminated:
      return "terminated";
  }
  return "unknown";
}

Result<std::unique_ptr<Trainer>> OpenTrainer(TrainerOptions options, Environment env) {
  RETURN_IF_ERROR(ValidateOptions(options));
  ASSIGN_OR_RETURN(ScopeVariables scope, ScopeVariables::Of(options.scope));
  options.model = AllVariables(std::move(options.model), scope);
  auto trainer =
      std::make_unique<TrainerImpl>(std::move(options), std::move(scope), std::move(env));
  RETURN_IF_ERROR(trainer->Start());
  return std::unique_ptr<Trainer>(std::move(trainer));
}

Result<std::unique_ptr<Trainer>> Trainer::Open(TrainerOptions options) {
  RETURN_IF_ERROR(ValidateOptions(options));
  Environment env;
  if (options.checkpoint_config) {
    ASSIGN_OR_RETURN(env,
                     EnvironmentAt(options.checkpoint_config->checkpoint_dir, {.create = true}));
  }
  return OpenTrainer(std::move(options), std::move(env));
}

}  // namespace cairn
