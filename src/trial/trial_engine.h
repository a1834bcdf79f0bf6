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
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <cairn/status.h>
#include <cairn/value.h>

#include "base/clock.h"
#include "base/ids.h"
#include "base/thread_annotations.h"
#include "launch/launcher.h"
#include "trial/event_log.h"
#include "trial/event_writer.h"
#include "trial/repository_access.h"
#include "trial/storage_tasks.h"
#include "trial/trial_record.h"

namespace cairn {

struct TrialEngineOptions {
  EventLog* log = nullptr;  // borrowed, as all pointers here
  /// Starts runs. Null: only detached trials. Its listener must call OnLaunch.
  Launcher* launcher = nullptr;
  RepositoryAccess* repositories = nullptr;
  Clock* clock = Clock::System();
  IdSource* ids = IdSource::System();
  /// What runs are told as CAIRN_TRIAL_URL. The same after a restart, so that living runs find
  /// back.
  std::string url;
  /// Runs at once beyond the launcher's own slots; 0: no bound.
  std::size_t max_live_runs = 0;
  /// What places in the data directory (InDataDirectory) are resolved against.
  std::string data_directory;
  /// Others write where our trials do: another engine, or an earlier life of this one whose record
  /// was lost. Each trial's repository is then a job of its own, recorded with the trial; what is
  /// another job's is left alone, and a free directory taken. False: the storage is this record's
  /// alone, as a tuner's.
  bool shared_storage = false;
  /// How long a request waits for the event log before it is told to come again.
  std::chrono::milliseconds answer_timeout = std::chrono::seconds(60);
  /// Threads that wait for repositories. One storage takes at most half of them.
  std::size_t storage_threads = 8;
  /// After so many events the log is compacted, in the background; later as the record grows. 0:
  /// never. For embedders that read no events from the log themselves: their notes go with them.
  std::uint64_t compact_after_events = 0;
  /// How often detached runs say that they live. Six missed ones: lost.
  std::chrono::milliseconds heartbeat = std::chrono::seconds(10);
  /// How often rules are applied that depend on time or on other trials (max_age, experiment_best).
  std::chrono::milliseconds retention_interval = std::chrono::seconds(60);
  /// What a process must know to join as a detached trial; empty: nobody joins.
  std::string join_token;
  std::string join_storage;  // for those that name none
  /// Whether the functions for users wait until what they did is durable. False: for an embedder
  /// whose own next steps are events too. What follows for processes is held back all the same.
  bool users_wait = true;
  /// Runs that end with the engine (TrialConfig::outlive_engine is false) are submitted before
  /// their start is durable. For runs that do nothing until their first request was answered, which
  /// waits for that: the sync and the start of the process take place at the same time.
  bool submit_early = false;
  /// The repositories stand where the log does: one that is gone was removed. Otherwise it may be
  /// on a disk that is not mounted, and its trial waits for it.
  bool storage_has_log = false;
  /// Given each event once it is durable, in order; must be quick.
  std::function<void(Event)> on_event;
  /// Told each event before that, when it is part of the record; under the engine's lock, which
  /// must not be asked for anything. Only events may follow from it: they are later in the log.
  std::function<void(const Event&)> on_recorded;
  /// A trial begins to wait for its storage, for another reason, or not any more
  /// (TrialView::waits_for). On any thread; must be quick.
  std::function<void(const std::string& trial)> on_wait;
  /// Lines that detached runs sent.
  std::function<void(const std::string& trial, std::uint64_t run, const Value::List& lines)> on_log;

  Status Validate() const;
};

/// What a run is told about preemption and retention.
struct PreemptionInfo {
  bool preempt = false;
  std::string reason;  // "pause", "cancel", "kill"
  double deadline_seconds = 0;
  std::uint64_t version = 0;
  std::vector<std::string> remove;  // ids that the run shall take out of its repository
};

Value ToValue(const PreemptionInfo& info);

/// A trial as users see it.
struct TrialView {
  TrialRecord record;
  std::string repository;                  // where it is now
  TrialState state = TrialState::kQueued;  // as record.core.state, but QUEUED until it has slots
  PreemptionInfo preemption;
  /// Why it is not started although it is QUEUED: what its storage said. "": nothing holds it up.
  std::string waits_for;
  /// "will resume from step 30", while it is pausing or paused; -1: from the beginning.
  std::int64_t resumes_from_step = -1;
};

/// Runs trials: decides when a process is started, told to stop, started again, and remembers what
/// it reported. Its state is a fold of events which are durable before anything follows from them:
/// killed at any moment and opened again on the same log and launcher, it goes on where it was, and
/// runs that live are attached to again.
///
/// Two faces. Users: Create, Pause, Activate, Cancel, Kill, Continue, Get, List; these wait until
/// it is durable (but see users_wait). Runs: the functions with a `Done`, which is called once it
/// is (on any thread, and it must be quick); they are fenced by the run's number: Aborted for a run
/// that was replaced or is over. May be called from any thread.
class TrialEngine {
 public:
  using Options = TrialEngineOptions;
  template <typename T>
  using Done = std::function<void(Result<T>)>;

  /// Replays the log. Nothing is started before Start.
  static Result<std::unique_ptr<TrialEngine>> Open(Options options);
  /// Runs are left as they are; requests that wait are told Cancelled.
  ~TrialEngine();
  TrialEngine(const TrialEngine&) = delete;
  TrialEngine& operator=(const TrialEngine&) = delete;

  /// What runs are told: where the trial protocol is, and the PEM file of the authority that a
  /// server with TLS is checked against ("": those of the run's system).
  void SetUrl(std::string url, std::string ca = "");
  /// The same for runs that a launcher of another name than the first starts, perhaps on other
  /// machines; without it they are given the one of SetUrl.
  void SetRemoteUrl(std::string url);
  /// Finds out what became of the runs that lived, and starts what is queued.
  Status Start();
  /// Starts no more runs; what lives goes on, and what ends is recorded. Before an orderly end:
  /// then close the launcher, which stops the runs, and let go of the engine. They are started
  /// again by the next one.
  void Drain();

  // --- users ---
  /// A new trial, QUEUED. `id` "": the next number.
  Result<std::string> Create(TrialConfig config, std::string id = "");
  Status Pause(const std::string& trial);
  /// PAUSED or ended: goes on, from its latest checkpoint or from `from`.
  Status Activate(const std::string& trial, const std::string& from = "");
  Status Cancel(const std::string& trial);
  Status Kill(const std::string& trial);
  /// A new trial with the same config, `overrides` laid over it (objects member by member), that
  /// starts from a checkpoint of this one: `from`, or its latest.
  Result<std::string> ContinueAsNew(const std::string& trial, const std::string& from,
                                    const Value& overrides, std::string id = "");
  /// Sends a signal to the processes of the living run, which is all that happens.
  /// FailedPrecondition when there is none.
  Status Signal(const std::string& trial, int signal);
  Result<TrialView> Get(const std::string& trial);
  /// As Get without the reports, of which there can be many, and without waiting: what it shows may
  /// not be durable yet.
  Result<TrialView> Summary(const std::string& trial);
  std::vector<TrialView> List();
  /// Calls `visit` with all that is known, under the engine's lock: it must be quick, and call
  /// nothing of the engine.
  void Look(const std::function<void(const TrialRecords& records)>& visit);
  /// The part of Get that is quickly had: where the trial stands, how its last run ended, and its
  /// newest checkpoint. Does not wait for the log.
  struct Standing {
    TrialCore core;
    std::string message;
    std::optional<StartPoint> newest;
  };
  Result<Standing> StandingOf(const std::string& trial);
  /// Also in the repository, so that a run which was told to remove it before finds the pin.
  /// FailedPrecondition, NotFound: it is gone, or another was quicker to remove it.
  Status Pin(const std::string& trial, const std::string& checkpoint, bool pinned);
  Status SetRetention(const std::string& trial, const RetentionPolicy& policy);
  /// What such rules would remove now; nothing is done.
  Result<std::vector<Removal>> PreviewRetention(const std::string& trial,
                                                const RetentionPolicy& policy);
  /// Ids of checkpoints.
  struct Removed {
    std::vector<std::string> gone;
    /// Of a trial with a living run, to which the repository belongs: it removes them with its next
    /// checkpoint, or the engine after its end.
    std::vector<std::string> left_to_run;
  };
  /// Takes checkpoints out of the repository, whatever the rules say; durable when it returns.
  /// FailedPrecondition for one that another trial is to begin with, or that is pinned.
  Result<Removed> RemoveCheckpoints(const std::string& trial, const std::vector<std::string>& ids,
                                    const std::string& reason);
  /// Of the trial's checkpoints those that others are to begin with (TrialRecords::BeginWith), and
  /// which trials these are.
  std::multimap<std::string, std::string> BegunWith(const std::string& trial);
  /// Waits until the trial is PAUSED or ended. DeadlineExceeded.
  Result<TrialView> WaitForRest(const std::string& trial, std::chrono::nanoseconds timeout);

  /// Lets the log be compacted now (see compact_after_events), so that the next opening is quick.
  Status Compact();
  /// Writes down something of the embedder's own, which the engine does not look at: it stands in
  /// the log between the events before and after it. Does not wait; it is durable before anything
  /// that follows from a later event.
  Status Note(const std::string& trial, Value body);
  /// While one lives, events of several calls gather and get into the log by one sync. Nothing is
  /// written meanwhile: for moments, in which nothing is waited for.
  class Together {
   public:
    explicit Together(TrialEngine* engine) : engine_(engine) { engine_->writer_->Hold(); }
    ~Together() { engine_->writer_->Release(); }
    Together(const Together&) = delete;
    Together& operator=(const Together&) = delete;

   private:
    TrialEngine* const engine_;
  };
  /// Waits until all that happened so far is durable and was told to on_event.
  Status Flush() { return WaitDurable(); }
  /// Why the log cannot be written now, and is tried again; Aborted for good: another engine has
  /// it. OK when it can.
  Status LogTrouble() const { return writer_->trouble(); }

  // --- runs ---
  struct RunKey {
    std::string trial;
    std::uint64_t run = 0;
  };
  /// OK when the token is that of the run. NotFound: no such trial. Aborted: a token of an older
  /// run cannot be told from a wrong one, so the number decides first.
  Status Authenticate(const RunKey& key, std::string_view token);
  /// OK when the token admits new processes.
  Status AuthenticateJoin(std::string_view token) const;
  void Describe(const RunKey& key, Done<Value> done);
  void Ready(const RunKey& key, const Value& body, Done<Value> done);
  void Report(const RunKey& key, Value body, Done<Value> done);
  void Progress(const RunKey& key, const Value& body, Done<Value> done);
  void SetStatus(const RunKey& key, const Value& body, Done<Value> done);
  void StartCheckpoint(const RunKey& key, const Value& body, Done<Value> done);
  void CompleteCheckpoint(const RunKey& key, const std::string& registration, const Value& body,
                          Done<Value> done);
  void AbandonCheckpoint(const RunKey& key, const std::string& registration, const Value& body,
                         Done<Value> done);
  void CheckpointDeleted(const RunKey& key, const std::string& id, Done<Value> done);
  void ListCheckpoints(const RunKey& key, Done<Value> done);
  void GetCheckpoint(const RunKey& key, const std::string& id, Done<Value> done);
  /// Answers when the version is not `seen`, or after `timeout`.
  void WaitPreemption(const RunKey& key, std::uint64_t seen, std::chrono::nanoseconds timeout,
                      Done<Value> done);
  void AcknowledgePreemption(const RunKey& key, Done<Value> done);
  void Heartbeat(const RunKey& key, Done<Value> done);
  void Logs(const RunKey& key, const Value& body, Done<Value> done);
  void Exit(const RunKey& key, const Value& body, Done<Value> done);
  /// A process that was started by hand becomes a run.
  void Join(std::string_view token, const Value& body, Done<Value> done);

  /// The launcher's listener.
  void OnLaunch(const LaunchInfo& info);
  /// The run that a launch is. Nothing for one that is none of ours: it may be of a record that was
  /// lost, in which other trials had the same numbers.
  std::optional<RunKey> RunOfLaunch(std::string_view launch);

 private:
  struct Poll {
    std::uint64_t id = 0;
    RunKey key;
    std::uint64_t seen = 0;
    Done<Value> done;
  };

  explicit TrialEngine(Options options);
  Status Replay();

  // Under the lock: applies the event and queues it for the log, or refuses it.
  Status Emit(std::string trial, std::uint64_t run, EventKind kind, Value body) REQUIRES(mu_);
  const TrialRecord* Find(std::string_view trial) REQUIRES(mu_) { return records_.Find(trial); }
  Result<const TrialRecord*> FindLiving(const RunKey& key) REQUIRES(mu_);
  void Changed(const std::string& trial) REQUIRES(mu_);
  PreemptionInfo PreemptionOf(const TrialRecord& trial) REQUIRES(mu_);
  Value Describe(const TrialRecord& trial) REQUIRES(mu_);
  TrialView ViewOf(const TrialRecord& trial) REQUIRES(mu_);
  void FillView(const TrialRecord& trial, TrialView* view) REQUIRES(mu_);  // all but `record`
  /// Calls done(value) when all that was emitted so far is durable.
  void Answer(Value value, Done<Value> done) EXCLUDES(mu_);
  /// Calls done(status). That a run is over it is told when that is durable, and never by an engine
  /// that has lost its log: it does not know.
  void Refuse(const Status& status, const Done<Value>& done) EXCLUDES(mu_);
  Status WaitDurable() EXCLUDES(mu_);
  /// The same for a user who waits.
  Status WaitForUser() EXCLUDES(mu_);
  /// Emits on behalf of a living run and answers.
  void EmitForRun(const RunKey& key, EventKind kind, Value body, Done<Value> done) EXCLUDES(mu_);
  Status Ask(const std::string& trial, EventKind kind) EXCLUDES(mu_);
  std::string NextId() REQUIRES(mu_);
  /// Members of a checkpoint to remove, for answers.
  std::vector<std::string> RemovableOf(const TrialRecord& trial) REQUIRES(mu_);

  /// Asks for a compaction when it is time.
  void CountEvent() REQUIRES(mu_);
  /// After how many events, when what came before are `known` ones.
  std::uint64_t CompactAt(std::uint64_t known) const;
  /// Brings live_ and queued_ up to date.
  void Index(const TrialRecord& trial) REQUIRES(mu_);

  // Tasks, on the worker's thread, and those that wait for storage on threads of their own.
  void Post(std::function<void()> task) EXCLUDES(mu_);
  void PostStorage(const std::string& trial, std::function<void()> task) EXCLUDES(mu_);
  void PostAfterDurable(std::function<void()> task) EXCLUDES(mu_);
  void StartQueued() EXCLUDES(mu_);
  /// Those that may begin now; they are in preparing_ from now on.
  std::vector<std::string> TakeQueued() REQUIRES(mu_);
  void PrepareRun(const std::string& trial) EXCLUDES(mu_);
  /// False when it does not begin now.
  bool BeginRun(const std::string& trial) EXCLUDES(mu_);
  /// `again`: an earlier try may have got through.
  void Submit(const std::string& trial, std::uint64_t run, const std::string& token, bool again)
      EXCLUDES(mu_);
  void Ended(const std::string& trial, std::uint64_t run, const Value& how) EXCLUDES(mu_);
  void Enforce(const std::string& trial) EXCLUDES(mu_);
  void Reattach(const std::string& trial, std::uint64_t run) EXCLUDES(mu_);
  void Retain(const std::string& trial) EXCLUDES(mu_);
  /// Goes on with removals of trials at rest that the last life did not come to the end of.
  void EndRemovals() EXCLUDES(mu_);
  Result<Removed> RemoveNow(const std::string& trial, const std::vector<std::string>& ids,
                            const std::string& reason) EXCLUDES(mu_);
  Result<Removed> LeaveToRun(const std::string& trial, const std::vector<std::string>& ids,
                             const std::string& reason) REQUIRES(mu_);
  /// Takes back what was written down about those that are not gone: whoever asked is told so.
  void KeepAfterAll(const std::string& trial, const std::vector<std::string>& asked,
                    const std::vector<std::string>& gone) EXCLUDES(mu_);
  /// Removes from the repository and records what is gone, which it returns.
  Result<std::vector<std::string>> Remove(const std::string& trial, const std::string& repository,
                                          const std::vector<Removal>& removals) EXCLUDES(mu_);
  /// Retain for all whose rules look at the clock or at other trials.
  void RetainAll() EXCLUDES(mu_);
  void PostRetainAll() EXCLUDES(mu_);
  void ArmRetention() EXCLUDES(mu_);
  Status RegisterFound(const std::string& trial) EXCLUDES(mu_);
  /// Its checkpoints that are not there any more.
  Status RegisterGone(const TrialRecord& trial, const std::set<std::string>& there) REQUIRES(mu_);
  /// Before a run: makes sure that its repository is the trial's own, in another directory when the
  /// first one is taken. FailedPrecondition: another's stands where its checkpoints were.
  Status ChooseRepository(const std::string& trial) EXCLUDES(mu_);
  /// Before the engine writes there itself: numbers that runs of a lost record had are taken, and
  /// that is durable. OK when none are.
  Status LearnRuns(const std::string& trial) EXCLUDES(mu_);
  /// Deletes what its runs left half made or half removed. While none lives.
  Status Tidy(const std::string& trial) EXCLUDES(mu_);
  /// Whose the repository is; "": nobody's. `claim`: then it becomes that job's, if that is
  /// possible.
  Result<std::string> OwnerOf(const std::string& repository, const std::string& claim);
  std::string Locate(std::string_view place) const {
    return Located(place, options_.data_directory);
  }
  /// As it is told to processes.
  Value LocatedValue(const std::optional<StartPoint>& point) const;
  /// The body of a trial's creation, with a job of its own where trials have one.
  Value WithJob(Value::Object body) const;
  /// The body of a run's beginning.
  Value RunBody(const TrialRecord& trial, const std::string& token) const;
  std::optional<RunKey> RunOf(std::string_view launch) REQUIRES(mu_);
  /// Says when a wait begins, with another reason, now and then, and when it is over: not each time
  /// that the storage was looked at.
  void TellStorageWait(const std::string& trial, const Status& read) EXCLUDES(mu_);
  void WorkerLoop(const std::stop_token& stop);

  // Timers.
  void At(Clock::Duration when, std::function<void()> what) EXCLUDES(mu_);
  void TimerLoop(const std::stop_token& stop);
  void ArmDeadline(const std::string& trial) EXCLUDES(mu_);
  void ArmHeartbeat(const std::string& trial, std::uint64_t run) EXCLUDES(mu_);
  void DeadlinePassed(const std::string& trial, std::uint64_t run) EXCLUDES(mu_);

  const Options options_;

  Mutex mu_;
  CondVar changed_;
  bool stopping_ GUARDED_BY(mu_) = false;
  bool started_ GUARDED_BY(mu_) = false;
  bool draining_ GUARDED_BY(mu_) = false;
  std::string url_ GUARDED_BY(mu_);
  std::string ca_ GUARDED_BY(mu_);
  std::string remote_url_ GUARDED_BY(mu_);
  TrialRecords records_ GUARDED_BY(mu_);
  // By record: trials with a living run, trials in QUEUED.
  std::set<std::string, std::less<>> live_ GUARDED_BY(mu_);
  std::set<std::string, std::less<>> queued_ GUARDED_BY(mu_);
  std::set<std::string> preparing_ GUARDED_BY(mu_);
  std::uint64_t tail_events_ GUARDED_BY(mu_) = 0;  // since the last compaction
  std::uint64_t compact_at_ GUARDED_BY(mu_) = 0;   // so many of them call for the next
  Mutex compacting_;                               // taken before mu_
  std::set<std::string> waits_for_storage_ GUARDED_BY(mu_);
  // What was last said of a trial that cannot begin without its storage.
  struct StorageWait {
    Clock::Duration since{};
    Clock::Duration told{};
    std::string why;
  };
  std::map<std::string, StorageWait, std::less<>> storage_waits_ GUARDED_BY(mu_);
  bool retaining_ GUARDED_BY(mu_) = false;          // RetainAll is asked for already
  bool retains_by_others_ GUARDED_BY(mu_) = false;  // some trial's rules look beyond it: RetainAll
  std::set<std::string> waits_for_slots_ GUARDED_BY(mu_);
  std::map<std::string, std::uint64_t, std::less<>> versions_ GUARDED_BY(mu_);
  std::map<std::string, Clock::Duration, std::less<>> deadlines_ GUARDED_BY(mu_);
  std::map<std::string, Clock::Duration, std::less<>> heard_ GUARDED_BY(mu_);  // detached
  std::map<std::string, std::vector<std::string>, std::less<>> removable_ GUARDED_BY(mu_);
  std::vector<Poll> polls_ GUARDED_BY(mu_);
  std::uint64_t next_poll_ GUARDED_BY(mu_) = 1;
  std::uint64_t next_id_ GUARDED_BY(mu_) = 0;  // 0: not looked for yet
  std::deque<std::function<void()>> tasks_ GUARDED_BY(mu_);
  std::multimap<Clock::Duration, std::function<void()>> timers_ GUARDED_BY(mu_);
  CondVar timer_changed_;
  CondVar task_changed_;

  std::unique_ptr<EventWriter> writer_;
  StorageTasks storage_;
  std::jthread worker_;
  std::jthread timer_;
};

}  // namespace cairn
