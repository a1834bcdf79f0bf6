#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <cairn/status.h>
#include <cairn/value.h>

#include "base/clock.h"
#include "base/ids.h"
#include "base/thread_annotations.h"
#include "launch/launcher.h"
#include "net/http_server.h"
#include "storage/store.h"
#include "trial/event_log.h"
#include "trial/repository_access.h"
#include "trial/retention_policy.h"
#include "trial/trial_engine.h"
#include "tune/directory_of_this_life.h"
#include "tune/tune_policy.h"
#include "tune/tuner_record.h"

namespace cairn::tune {

/// What a tuner is started with. Everything borrowed outlives it.
struct TunerOptions {
  TunePolicy* policy = nullptr;
  /// All that the policy was made from. Its state is kept for a policy with an equal one; null: its
  /// state comes by replay alone.
  Value policy_origin;
  /// Makes what starts workers; called once, with the listener that it has to call.
  std::function<Result<std::unique_ptr<Launcher>>(LaunchListener listener)> open_launcher;
  /// Command of each worker where the launcher needs one.
  std::vector<std::string> argv = {"worker"};
  /// Put over each worker's environment.
  std::map<std::string, std::string> env;
  /// Workers on other machines reach the tuner by this name of its machine, over TCP; they go on
  /// when it dies, and are taken up by its next life. "": they are on this machine, speak to a Unix
  /// socket and end with the tuner.
  std::string host;
  /// What the launcher is asked for, for each worker: LaunchSpec::resources.
  std::map<std::string, std::string> resources;
  /// What workers on other machines get from /tune/payload: what to run. Opaque.
  std::string payload;
  /// Written down at the first start; given out by Open ever after.
  Value description = Value::Object{};
  /// Names of trials are `<prefix>_00000` and so on: letters, digits, points, dashes, underscores.
  std::string trial_prefix = "trial";
  std::size_t max_concurrent = 1;
  std::uint64_t max_failures = 0;
  /// The first trial that fails for good ends the experiment; the others stay resumable.
  bool fail_fast = false;
  RetentionPolicy retention;
  /// Of trials that had not ended: go on with them. false: they stay as they are.
  bool resume_unfinished = true;
  bool resume_errored = false;   // failed ones go on from their checkpoints
  bool restart_errored = false;  // … from the beginning
  /// Ended trials go on too: more iterations for a finished experiment. Written down once, together
  /// with the description: whoever goes on after a kill goes on with the extension as well, and
  /// must not ask for it again.
  bool extend_ended = false;
  /// … but not these: they are where the extension would bring them.
  std::set<std::string, std::less<>> extend_except;
  std::chrono::milliseconds kill_grace = std::chrono::seconds(5);
  /// Sent to workers whose trials end because the experiment does (the policy stops all,
  /// fail_fast), which then ask /tune/asked. 0: they hear it with the answer to their next report.
  int stop_signal = 0;
  /// A summary is written at the start and at the end when so many events came since the last:
  /// fewer are read in less time than a summary takes to write.
  std::uint64_t summarize_after = 2000;

  Status Validate() const;
};

/// Something that happened, for loggers and callbacks: {"what": "added" | "started" | "result" |
/// "checkpoint" | "failure" | "paused" | "ended", "trial": …, and by what: "config", "result",
/// "checkpoint", "error"}. Told when it is durable.
using TuneNews = std::vector<Value>;

/// Runs an experiment: a trial engine whose event log is a journal in the experiment's directory,
/// a service on a Unix socket that workers report to, and one loop that asks the policy. Killed at
/// any moment and opened again, it goes on as if nothing had happened: reports that were answered
/// and decisions that anything followed from are in the log.
///
/// Open, Start, then Step until it says that all is done. All by one thread; Interrupt from any.
class Tuner {
 public:
  /// The experiment in a directory (path or URL). Reads its log. `create` false: NotFound when
  /// there is none, and nothing is made. Unavailable while another tuner runs it. Corruption: the
  /// log is damaged.
  struct OpenOptions {
    std::string directory;
    bool create = true;
    Clock* clock = Clock::System();
    IdSource* ids = IdSource::System();
  };
  static Result<std::unique_ptr<Tuner>> Open(OpenOptions options);
  /// What the experiment there is, without reading what its trials did. Errors as of Open.
  static Result<Value> ReadDescription(const std::string& directory);
  /// Whether an experiment was ever started there: a journal that says nothing is none, unless
  /// trials lie beside it. Reads only.
  static Result<bool> Exists(const std::string& directory);
  ~Tuner();
  Tuner(const Tuner&) = delete;
  Tuner& operator=(const Tuner&) = delete;

  /// As recorded; null when it was never started.
  const Value& description() const { return record_.description(); }
  /// What is known of all trials, in their order: {"trial", "config", "status", "error",
  /// "last_result", "results" (if asked for), "checkpoints"}.
  Value Trials(bool with_results);
  /// The results of one, as in Trials, those that were made with other hyperparameters with these
  /// as "config"; an empty list when it is not known.
  Value Results(const std::string& trial);

  /// Whether a start with these options is sure to run something: not where all trials have ended
  /// and none is to go on.
  bool HasWork(const TunerOptions& options) const;
  /// Brings the policy to where it was, and begins. FailedPrecondition when it was started already.
  Status Start(TunerOptions options);
  /// Goes on for at most `timeout`, or until there are news, and others have had a moment to come
  /// with them. True: all trials have ended, or were given up. Errors of the policy and of the log
  /// end the experiment.
  Result<bool> Step(std::chrono::nanoseconds timeout, TuneNews* news);
  /// All trials save and pause; Step says true when they have. They go on at the next start. May be
  /// called by any thread.
  void Interrupt();
  /// Ends all workers now. Afterwards only Trials may be called.
  void Stop();

 private:
  using Done = TrialEngine::Done<Value>;
  using RunKey = TrialEngine::RunKey;
  struct Message {
    enum class Kind : std::uint8_t {
      kBegin,
      kResult,
      kSaved,
      kFailed,
      kAsked,
      kFound,
      kRunEnded
    } kind;
    RunKey key;
    Value body;
    Done done;
  };
  /// What the loop knows of a living run.
  struct Run {
    std::uint64_t number = 0;
    std::uint64_t sequence = 0;  // of the last report
    Value answer;                // … and what was said to it
    bool pausing = false;        // told to save and go
    bool told = false;           // said why it fails
  };

  explicit Tuner(OpenOptions options);

  std::vector<HttpRoute> Routes();
  /// Listens for workers and tells the engine where.
  Status StartService();
  void Enqueue(Message message) EXCLUDES(mu_);
  void Tell(Value news) EXCLUDES(mu_);
  /// An event that is in the engine's record and not yet durable. What the loop does about it
  /// comes later in the log, and no worker hears of it before all of that is durable.
  void OnRecorded(const Event& event) EXCLUDES(mu_);
  /// A durable event, on the thread that wrote it.
  void OnEvent(Event event) EXCLUDES(mu_);

  // The loop's own.
  /// Does what there is to do; waits for it, at most until then. True: all is done.
  Result<bool> Turn(Clock::Duration until);
  void WaitForMessages(Clock::Duration until) REQUIRES(mu_);
  Status Handle(Message message);
  Status OnBegin(const Message& message);
  Status OnResult(Message message);
  Status OnSaved(Message message);
  Status OnFailed(const Message& message);
  Status OnFound(const Message& message);
  Status OnRunEnded(const Message& message);
  Status Fill();
  /// Asks for another trial; false when there is none now.
  Result<bool> Suggest();
  Status Carry(const Choice& choice, const Candidates& candidates);
  Status PinPatiently(const std::string& trial, const std::string& checkpoint);
  Status Launch(TuneTrial* trial);
  Status EndTrial(TuneTrial* trial, bool failed);
  Status Revive();
  Status Retain(const std::string& trial);
  /// Whether checkpoints of trials that rest are still to be removed.
  bool Removes();
  /// Whether that is over, or took too long; waits a little when not.
  bool Settled();
  Status Note(const std::string& trial, Value::Object body);
  /// Writes down what the experiment is, and what it is extended by.
  Status NoteExperiment();
  Status Apply(std::string trial, EventKind kind, Value body, std::uint64_t run = 0);
  /// Reads the summary and the events after it, or all events.
  Status Read();
  Status BringUpPolicy();
  /// Keeps what all events came to, when those since the last summary are many.
  void Summarize();
  /// Completes a checkpoint that a worker committed; `then` gets the ids to remove.
  void Register(const RunKey& key, const Value& checkpoint, Done then);
  void ForgetRemoved(const RunKey& key, const Value& body);
  Result<Decision> Decide(TuneTrial* trial, const Value& result);
  Status PauseAll();
  /// Tells workers that have begun not to wait for their next report.
  void Hurry();
  /// Whether the log can be written; an error when it could not be for long, or is another's.
  Result<bool> LogWorks();
  void Unpin(const std::string& donor, const std::string& checkpoint);
  bool Finished() const;
  std::string NextTrial() const;
  const char* StatusOf(const TuneTrial& trial) const;
  void Look(const std::function<void(const TrialRecords&)>& visit);

  const OpenOptions open_;
  TunerOptions options_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<JournalEventLog> journal_;
  std::unique_ptr<EventLog> log_;                   // the journal, read and folded already
  std::unique_ptr<RepositoryAccess> repositories_;  // of the trials, by recorded names
  std::unique_ptr<TrialEngine> engine_;
  std::unique_ptr<HttpServer> server_;
  std::unique_ptr<Launcher> launcher_;
  DirectoryOfThisLife socket_directory_{"cairn-tune-at-"};

  TunerRecord record_;
  // From Open until Start, which gives them to the engine and the policy.
  TrialRecords trials_;
  std::vector<Event> history_;    // events that the policy is told again …
  TunerRecord before_history_;    // … and what those before them came to
  Value policy_, policy_state_;   // of the summary
  std::uint64_t summarized_ = 0;  // the last event of the summary
  std::map<std::string, Run, std::less<>> runs_;
  std::set<std::string, std::less<>> active_;  // have a run, or get one
  std::set<std::string, std::less<>> left_;    // as they were (resume_unfinished = false)
  bool started_ = false;
  bool stop_all_ = false;                          // by the policy: trials end well
  bool interrupted_ = false;                       // by a user or fail_fast: they pause
  bool suggests_ = true;                           // the searcher may have more
  std::optional<Clock::Duration> trouble_since_;   // with the log
  std::optional<Clock::Duration> settling_since_;  // nothing else is to be done
  Clock::Duration look_again_{};

  Mutex mu_;
  CondVar changed_;
  bool interrupt_ GUARDED_BY(mu_) = false;
  bool closing_ GUARDED_BY(mu_) = false;
  std::deque<Message> messages_ GUARDED_BY(mu_);
  std::vector<Value> news_ GUARDED_BY(mu_);
  Clock::Duration news_since_ GUARDED_BY(mu_){};
};

}  // namespace cairn::tune
