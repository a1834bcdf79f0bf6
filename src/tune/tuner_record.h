#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <cairn/status.h>
#include <cairn/value.h>

#include "trial/event.h"
#include "tune/tune_policy.h"

namespace cairn {
class CompactReader;
class CompactWriter;
}  // namespace cairn

namespace cairn::tune {

/// Where a trial stands for the tuner (the engine knows about its processes).
enum class TunePhase : std::uint8_t {
  kPending,  // suggested, not started yet
  kRunning,  // has a run, or will get one again after a failure
  kPaused,   // by the scheduler
  kEnded,
};

/// What the tuner knows of a trial.
struct TuneTrial {
  std::string id;
  std::uint64_t number = 0;  // in the order of suggestions
  Value config = Value::Object{};
  TunePhase phase = TunePhase::kPending;
  bool created = false;        // the engine knows it
  bool failed = false;         // of kEnded
  bool restarting = false;     // from the beginning: its checkpoints are to be removed first
  bool extending = false;      // of kEnded: the experiment was extended, and it is to go on
  std::string error;           // of its last failure
  Value last_result;           // null before the first
  std::int64_t iteration = 0;  // of the newest result that the policy was told
  /// What was decided at an iteration, where it was not to go on.
  std::map<std::int64_t, Decision> decided;
  /// Goes on from another trial's checkpoint instead of its own (PBT), until it has saved.
  std::string donor;
  std::string donor_checkpoint;
  /// What runs up to this one saved is of before: a worker of a killed tuner may have been at it.
  std::uint64_t donor_after_run = 0;
  std::uint64_t run = 0;  // the newest that began
  /// Hyperparameters before it went on from another's checkpoint: those of runs up to this one,
  /// oldest first. What they reported was made with them. In no summary.
  std::vector<std::pair<std::uint64_t, Value>> former;

  Decision DecidedAt(std::int64_t at) const;
};

Value ToValue(const Decision& decision);
Decision DecisionFromValue(const Value* value);
Value ToValue(const Choice& choice);
Choice ChoiceFromValue(const Value& value);

/// The tuner's state: a fold of the reports and of its own notes in the engine's log
/// (docs/format/tune.md). Not synchronised.
class TunerRecord {
 public:
  /// Events that mean nothing to the tuner are passed over. Corruption for notes that cannot be.
  Status Apply(const Event& event);
  /// The same; takes what a report says out of the event.
  Status Apply(Event&& event);

  /// What the experiment is, as its first start wrote it down; null before.
  const Value& description() const { return description_; }
  const std::vector<std::string>& order() const { return order_; }
  const std::map<std::string, TuneTrial, std::less<>>& trials() const { return trials_; }
  TuneTrial* Find(std::string_view id);
  /// Suggested and not started, in order.
  const std::vector<std::string>& pending() const { return pending_; }
  /// Those that the scheduler paused, in the order in which it did.
  const std::vector<std::string>& paused() const { return paused_; }
  /// The whole experiment was ended by its stopper.
  bool stopped() const { return stopped_; }
  /// How long tuners were at work on it, up to the last event.
  std::chrono::nanoseconds worked() const { return std::chrono::nanoseconds(worked_ns_); }

  /// As a part of a summary (tuner_summary.h). DecodeFrom wants an empty record.
  void EncodeTo(CompactWriter* out) const;
  Status DecodeFrom(CompactReader* in);

 private:
  void CountTime(const Event& event);
  Status ApplyReport(const Event& event, Value metrics);
  Status ApplyNote(const Event& event);
  void SetPhase(TuneTrial* trial, TunePhase phase);

  Value description_;
  std::vector<std::string> order_;
  std::vector<std::string> pending_;
  std::vector<std::string> paused_;
  std::map<std::string, TuneTrial, std::less<>> trials_;
  bool stopped_ = false;
  std::int64_t worked_ns_ = 0;
  std::int64_t last_time_ = 0;  // of an event of the present life; 0: none yet
};

/// Makes the calls that belong to an event, as they were made when it happened. `record` is as it
/// was before the event.
Status ReplayToPolicy(const Event& event, TunerRecord* record, TunePolicy* policy);

}  // namespace cairn::tune
