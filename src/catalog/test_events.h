#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "trial/event.h"
#include "trial/trial_record.h"

namespace cairn {

/// Makes events as an engine would: whatever can happen next to some trial. What was made is
/// folded in `records`. A pure function of the seed.
class EventMaker {
 public:
  explicit EventMaker(std::uint64_t seed, int experiments = 2)
      : random_(seed), experiments_(experiments) {}

  const TrialRecords& records() const { return records_; }

  Event Next() {
    for (;;) {
      Event event = Candidate();
      event.seq = records_.last_seq() + 1;
      event.time = 1'700'000'000'000'000'000 + static_cast<std::int64_t>(event.seq) * 1'000'000;
      if (records_.Apply(event).ok()) return event;
    }
  }
  std::vector<Event> Some(std::size_t count) {
    std::vector<Event> events;
    for (std::size_t i = 0; i < count; ++i) events.push_back(Next());
    return events;
  }
  /// How many of 100 events are reports.
  int reports = 60;
  int max_trials = 6;

 private:
  using K = EventKind;
  using O = Value::Object;

  int Pick(int count) { return static_cast<int>(random_() % static_cast<std::uint64_t>(count)); }

  Event Candidate() {
    const auto& trials = records_.trials();
    if (trials.empty() || (static_cast<int>(trials.size()) < max_trials && Pick(40) == 0)) {
      return Create();
    }
    auto at = trials.begin();
    std::advance(at, Pick(static_cast<int>(trials.size())));
    const TrialRecord& trial = at->second;
    Event event{.trial = trial.id, .run = trial.core.run};
    const int roll = Pick(100);
    if (trial.core.live && roll < reports) return Report(trial, std::move(event));
    switch (Pick(15)) {
      case 0:
      case 1:
        return StartRun(trial, std::move(event));
      case 2:
        event.kind = K::kRunReady;
        event.body = O{{"rank", Pick(2)}, {"pid", 7}, {"host", "h"}};
        return event;
      case 3:
        event.kind = K::kProgress;
        event.body = O{{"progress", Pick(100) / 100.0}};
        return event;
      case 4:
        event.kind = K::kStatus;
        event.body = O{{"status", "état " + std::to_string(Pick(9))}};
        return event;
      case 5:
      case 6:
        event.kind = K::kCheckpointStarted;
        event.body = O{{"registration", "r" + std::to_string(++names_)},
                       {"steps_completed", Steps(trial)},
                       {"ranks", 1 + Pick(3)},
                       {"metadata", O{{"note", "x"}}}};
        return event;
      case 7:
      case 8:
        return Complete(trial, std::move(event));
      case 9:
        return OfCheckpoint(trial, std::move(event));
      case 10:
        event.kind = K::kRunExited;
        event.body = O{{"code", Pick(3) == 0 ? 1 : 0},
                       {"signal", Pick(6) == 0 ? 9 : 0},
                       {"stopped", Pick(8) == 0},
                       {"message", "over"}};
        return event;
      case 11:
        event.kind = std::vector<K>{K::kPauseRequested, K::kCancelRequested, K::kKillRequested,
                                    K::kSignalled, K::kPreemptAcknowledged}[Pick(5)];
        event.body = O{{"deadline_ms", 5}};
        return event;
      case 12:
        event.kind = K::kActivated;
        event.body = O{{"from", ""}};
        return event;
      case 13:
        event.kind = K::kNote;
        event.trial = Pick(2) == 0 ? "" : event.trial;
        event.body = O{{"of", "the embedder"}};
        return event;
      default:
        event.kind = K::kRetentionChanged;
        event.body = O{{"retention", ToValue(RetentionPolicy{.keep_last = 1 + Pick(5)})}};
        return event;
    }
  }
  Event Create() {
    const TrialConfig config{.experiment = std::to_string(1 + Pick(experiments_)),
                             .hparams = O{{"lr", 0.1}, {"layers", 3}},
                             .argv = {"train"},
                             .storage = "/data",
                             .max_restarts = 3};
    return {.trial = std::to_string(records_.trials().size() + 1),
            .kind = K::kTrialCreated,
            .body = O{{"config", ToValue(config)}, {"parent", Value()}}};
  }
  std::int64_t Steps(const TrialRecord& trial) {
    return trial.reports.empty() ? Pick(5) : trial.reports.back().steps;
  }
  Event Report(const TrialRecord& trial, Event event) {
    const bool validation = Pick(4) == 0;
    O metrics{{"loss", std::sin(static_cast<double>(random_() % 1000))}, {"count", Pick(1000)}};
    if (validation) metrics["score"] = static_cast<double>(random_() % 10000) / 7;
    if (Pick(5) == 0) metrics["deep"] = O{{"er", Pick(10)}};
    if (Pick(20) == 0) metrics["loss"] = "NaN";
    if (Pick(50) == 0) metrics["count"] = 0.5;  // of two kinds
    if (Pick(50) == 0) metrics["big"] = std::uint64_t{18446744073709551615u};
    event.kind = K::kReport;
    event.body = O{{"sequence", trial.next_sequence},
                   {"group", validation ? "validation" : "training"},
                   {"steps_completed", Steps(trial) + Pick(3)},
                   {"metrics", std::move(metrics)}};
    if (Pick(50) == 0) (*event.body.if_object())["later"] = "a member that came later";
    return event;
  }
  Event StartRun(const TrialRecord& trial, Event event) {
    event.kind = K::kRunStarted;
    event.run = trial.core.run + 1;
    const auto start = trial.NextStart(RepositoryOf(trial));
    event.body = O{
        {"token_hash", "h"}, {"resume_mode", start ? "resume" : "fresh"}, {"from", ToValue(start)}};
    return event;
  }
  Event Complete(const TrialRecord& trial, Event event) {
    event.kind = K::kCheckpointCompleted;
    std::string registration;
    std::int64_t steps = Steps(trial);
    for (const CheckpointRecord& checkpoint : trial.checkpoints) {
      if (checkpoint.state != CheckpointState::kActive) continue;
      registration = checkpoint.registration;
      steps = checkpoint.steps;
    }
    event.body = O{{"registration", registration},
                   {"id", "c" + std::to_string(++names_)},
                   {"steps_completed", steps},
                   {"metadata", O{{"steps_completed", steps}}},
                   {"metrics", O{{"own", 1.5}}},
                   {"bytes", 100 + Pick(1000)},
                   {"generation", trial.core.run},
                   {"sequence", static_cast<std::int64_t>(trial.checkpoints.size())},
                   {"path", "/data/x"},
                   {"awaits_score", Pick(2) == 0}};
    return event;
  }
  Event OfCheckpoint(const TrialRecord& trial, Event event) {
    std::string id = "none";
    std::string registration;
    if (!trial.checkpoints.empty()) {
      const CheckpointRecord& one = trial.checkpoints[static_cast<std::size_t>(
          Pick(static_cast<int>(trial.checkpoints.size())))];
      id = one.id;
      registration = one.registration;
    }
    event.kind = std::vector<K>{K::kCheckpointDeleted, K::kCheckpointPinned,
                                K::kCheckpointAbandoned}[Pick(3)];
    event.body = O{{"id", id}, {"pinned", Pick(2) == 0}, {"reason", "because"}};
    if (id.empty()) event.body = O{{"registration", registration}, {"reason", "because"}};
    return event;
  }

  std::mt19937_64 random_;
  const int experiments_;
  TrialRecords records_;
  std::uint64_t names_ = 0;
};

}  // namespace cairn
