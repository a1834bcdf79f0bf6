#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <cairn/status.h>
#include <cairn/value.h>

#include "base/clock.h"
#include "base/ids.h"
#include "base/thread_annotations.h"
#include "catalog/catalog.h"
#include "master/adaptive_search.h"
#include "master/code_store.h"
#include "master/experiment_config.h"
#include "master/experiment_states.h"
#include "trial/trial_engine.h"

namespace cairn::master {

struct ExperimentsOptions {
  Catalog* catalog = nullptr;  // borrowed, as all pointers here
  TrialEngine* engine = nullptr;
  const CodeStore* code = nullptr;
  /// Each experiment's code is unpacked into work/<id>-… in it, where its trials run.
  std::string data_directory;
  std::string default_storage;  // as it is recorded (InDataDirectory)
  /// The slots that there are: an experiment whose trials want more is refused.
  int slots = 1;
  Clock* clock = Clock::System();
  IdSource* ids = IdSource::System();
  /// An experiment changed ({state} …, or {deleted}); called on any thread, must be quick.
  std::function<void(std::int64_t experiment, Value::Object what)> on_change;
};

/// Keeps experiments going: makes their trials one after the other as the searcher says, and says
/// what state they are in. What a user asked for (paused, canceled) is in the catalog before
/// anything follows from it, and how many trials there are is what the engine's events say: killed
/// at any moment, Start finds the same things to do again. May be called from any thread.
class Experiments {
 public:
  using Options = ExperimentsOptions;
  explicit Experiments(Options options);
  ~Experiments();
  Experiments(const Experiments&) = delete;
  Experiments& operator=(const Experiments&) = delete;

  /// Goes on with what was there. The engine has been started.
  Status Start();
  void Stop();

  struct Request {
    std::string owner;
    std::string config;  // YAML
    std::string code;    // a digest; "": none
    Value overrides;     // null: none
    bool paused = false;
    std::string request_id;  // "": made up
  };
  /// Only looks: the experiment as it would be, with the id 0.
  Result<Experiment> Check(const Request& request) const;
  /// Its first trials are there when it returns, unless it is paused or something is in the way;
  /// the others are made soon.
  Result<std::int64_t> Create(const Request& request);

  /// The experiment of a process that was started by hand and joins: made for the first one of this
  /// name and owner. FailedPrecondition when it was deleted.
  struct JoinRequest {
    std::string owner;
    std::string external_id;
    std::string name;
    std::string storage;  // "": the master's
    Value hparams = Value::Object{};
    std::string metric;  // "": none
    std::string metric_group;
    bool smaller_is_better = true;
  };
  Result<std::int64_t> OfDetached(const JoinRequest& request);

  Status Pause(std::int64_t experiment);
  Status Activate(std::int64_t experiment);
  Status Cancel(std::int64_t experiment);
  Status Kill(std::int64_t experiment);
  /// One trial alone.
  Status PauseTrial(const std::string& trial);
  Status ActivateTrial(const std::string& trial, const std::string& from);
  Status CancelTrial(const std::string& trial);
  Status KillTrial(const std::string& trial);

  struct ContinueRequest {
    bool new_experiment = false;
    std::string from;  // "": the latest
    Value overrides;   // only for a new one
    std::string owner;
    std::string request_id;
  };
  /// The experiment that goes on: the trial's, or a new one.
  Result<std::int64_t> Continue(const std::string& trial, const ContinueRequest& request);
  /// The trial that is meant by an experiment: the one of `from`, the only one, the best.
  Result<std::string> TrialOf(std::int64_t experiment, const std::string& from);

  /// FailedPrecondition while it lives, or for pinned checkpoints without `force`. The record goes
  /// at once, the storage in the background, after a restart too.
  Status Delete(std::int64_t experiment, bool force, bool keep_checkpoints);
  Status SetPolicy(std::int64_t experiment, const RetentionPolicy& policy);
  Result<RetentionPolicy> Policy(std::int64_t experiment);

  /// What the master hears from the engine (once durable) and the launcher: something about this
  /// trial changed. Quick.
  void OnTrialChanged(const std::string& trial, bool state);
  /// A report, in the order of the events: a searcher may look at it. Quick.
  void OnReport(const Event& event);
  void OnTrialCreated(const std::string& trial, const std::string& experiment);
  /// "" when it is not known.
  std::string ExperimentOfTrial(const std::string& trial) const;

 private:
  /// What users asked for, and what the searcher needs.
  struct Entry {
    ExperimentConfig config;
    Intent intent;
    std::string parent_trial;
    std::string parent_checkpoint;
    std::string code;
    std::string work;  // where its trials run, as it is recorded
    std::string state;
    double progress = 0;
    std::unique_ptr<AdaptiveSearch> search;  // null: nothing is stopped early
    bool in_doubt = false;  // a trial was made, and nobody knows whether it is on record
  };
  /// A validation that a searcher has not seen yet.
  struct Validation {
    std::uint64_t seq = 0;
    std::string trial;
    std::int64_t steps = 0;
    Value metrics;
  };

  Result<NewExperiment> Prepare(const Request& request, ExperimentConfig* config) const;
  Result<std::int64_t> Insert(const NewExperiment& experiment);
  /// Inserts it and makes its first trials.
  Result<std::int64_t> Begin(const NewExperiment& experiment) EXCLUDES(turn_);
  Result<std::shared_ptr<Entry>> Load(std::int64_t experiment) EXCLUDES(mu_);
  /// FailedPrecondition for a trial that neither the master nor anybody else can start.
  Status CheckStarts(const std::string& trial);
  /// Writes what was asked for, under turn_.
  Status SetIntent(std::int64_t experiment, const Intent& intent) REQUIRES(turn_);
  Status ForTrials(std::int64_t experiment, bool (*wanted)(TrialState),
                   const std::function<Status(const std::string&)>& act);
  /// The searcher of an experiment as it was, and all validations that it has not seen.
  Status LoadSearch(std::int64_t experiment, const Value& saved, Entry* entry) EXCLUDES(mu_);
  /// Tells the searcher what is new, and stops what it gives up once that is written down.
  Status StepSearch(std::int64_t experiment, Entry* entry) REQUIRES(turn_);
  /// Makes trials that are due, and says the state.
  Status Advance(std::int64_t experiment) REQUIRES(turn_);
  Status MakeTrials(std::int64_t experiment, Entry* entry, const Experiment& record)
      REQUIRES(turn_);
  Status MakeTrial(std::int64_t experiment, Entry* entry, std::uint64_t index) REQUIRES(turn_);
  /// A trial that the log did not take in time is still to be taken: made again, it would be there
  /// twice. OK when all that were made are on record.
  Status EndDoubt(std::int64_t experiment, Entry* entry) REQUIRES(turn_);
  /// Shows why it waits, until its trials are there.
  Status TellWhyNone(std::int64_t experiment, const Experiment& record, const Status& why)
      REQUIRES(turn_);
  /// What was asked for before a crash, and not done to every trial.
  Status EnforceIntent(std::int64_t experiment) REQUIRES(turn_);
  Result<std::vector<TrialRow>> TrialsOf(std::int64_t experiment);
  void Run(const std::stop_token& stop);
  /// Frees the storage of what was deleted. False: some of it cannot be freed now, and is said
  /// (`tell`).
  bool RemoveStorage(bool tell);
  /// Gives all trials of an experiment its rules. That this is to be done is written down before,
  /// so that a kill in the middle does not leave trials with other rules than people are shown.
  Status ApplyPolicy(std::int64_t experiment) REQUIRES(turn_);
  /// … of all for which it is still to be done. False: not now.
  bool ApplyPolicies(bool tell) EXCLUDES(turn_);
  /// A deletion writes down that its storage is to be freed before it deletes. Of one that came to
  /// no end this is forgotten: its experiment is there, and may go on.
  Result<bool> IsToBeFreed(std::int64_t experiment, const std::string& setting) EXCLUDES(turn_);
  void Touch(std::int64_t experiment, bool soon);
  /// Takes away what trials of an experiment left in the storage. What is not theirs stays.
  Status RemoveRepositories(std::int64_t experiment);

  const Options options_;
  Mutex turn_;  // one decision at a time

  mutable Mutex mu_;
  CondVar changed_;
  bool stopping_ GUARDED_BY(mu_) = false;
  std::set<std::int64_t> soon_ GUARDED_BY(mu_);
  std::set<std::int64_t> later_ GUARDED_BY(mu_);
  bool removals_ GUARDED_BY(mu_) = false;                                   // or rules to give
  std::map<std::int64_t, std::shared_ptr<Entry>> entries_ GUARDED_BY(mu_);  // shared: read unlocked
  std::map<std::string, std::string, std::less<>> experiment_of_ GUARDED_BY(mu_);  // by trial
  /// Of experiments whose searcher wants to know.
  std::map<std::int64_t, std::vector<Validation>> validations_ GUARDED_BY(mu_);
  std::jthread thread_;
};

/// "12" → 12. NotFound for anything else.
Result<std::int64_t> ExperimentId(std::string_view text);

}  // namespace cairn::master
