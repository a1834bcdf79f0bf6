#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <cairn/status.h>
#include <cairn/value.h>

#include "catalog/page.h"
#include "catalog/webhooks.h"

namespace cairn {

class CatalogDatabase;

/// What an experiment is when it is created.
struct NewExperiment {
  /// Chosen by the caller (a UUID). The same again gives the experiment that it made: a caller that
  /// does not know whether its Create got through asks again.
  std::string uuid;
  std::string name;
  std::string description;
  std::string owner;               // a user's name
  std::string state = "ACTIVE";    // the master's word, for example ACTIVE, PAUSED, COMPLETED
  std::string config_text;         // as the user wrote it
  Value config = Value::Object{};  // the same, checked and with defaults
  std::string code_digest;         // of the archive of the code; "": none
  std::uint64_t code_bytes = 0;
  std::string storage;                      // where its trials' repositories are
  std::string parent_trial;                 // it goes on from that one's …
  std::string parent_checkpoint;            // … checkpoint; "": it does not
  std::string metric;                       // by which trials are compared; "": none
  std::string metric_group = "validation";  // in whose reports it is looked for
  bool smaller_is_better = true;
  std::vector<std::string> labels;
  std::string notes;
  std::string searcher_state;  // any bytes
};

/// An experiment as it stands. What comes from its trials is kept by the events' transactions.
struct Experiment {
  std::int64_t id = 0;  // 1, 2, 3 …; TrialConfig::experiment of its trials is this in digits
  std::string uuid;
  std::string name;
  std::string description;
  std::string owner;
  std::string state;
  std::string config_text;         // empty in lists
  Value config = Value::Object{};  // empty in lists
  std::string code_digest;
  std::uint64_t code_bytes = 0;
  std::string storage;
  std::string parent_trial;
  std::string parent_checkpoint;
  std::string metric;
  bool smaller_is_better = true;
  std::vector<std::string> labels;
  std::string notes;
  double progress = 0;  // 0 … 1, as the master says
  bool archived = false;
  bool deleted = false;
  std::int64_t created = 0;  // times: nanoseconds since 1970; 0: not yet
  std::int64_t started = 0;  // when processes of it first ran
  std::int64_t ended = 0;    // when it got an ended state
  /// Nanoseconds in which at least one of its trials had processes, up to …
  std::int64_t ran = 0;
  std::int64_t running_since = 0;  // … since when that is so again; 0: it is not
  std::string message;             // why it is in its state, for people

  std::uint64_t trials = 0;
  std::map<std::string, std::uint64_t> trials_by_state;  // filled by Get and List
  std::optional<double> best_metric;                     // of all trials; never NaN
  std::string best_trial;
  std::uint64_t checkpoints = 0;  // COMPLETED ones
  std::uint64_t checkpoint_bytes = 0;
};

/// What Update changes; empty: stays.
struct ExperimentChange {
  std::optional<std::string> name;
  std::optional<std::string> description;
  std::optional<std::string> owner;
  std::optional<std::string> state;
  std::optional<std::string> message;
  std::optional<std::int64_t> ended;  // 0: runs again
  std::optional<double> progress;
  std::optional<std::vector<std::string>> labels;
  std::optional<std::string> notes;
  std::optional<bool> archived;
  std::optional<std::string> config_text;
  std::optional<Value> config;
  std::optional<std::string> searcher_state;
  /// What webhooks are told of it: queued with the change, or neither is there.
  std::vector<Delivery> deliveries;
};

enum class ExperimentSort : std::uint8_t {
  kId,
  kName,
  kState,
  kOwner,
  kProgress,
  kTrials,
  kBestMetric,  // those without one last
  /// The best first, whichever way the metric counts; one metric (and direction) after the other,
  /// since numbers of different ones say nothing about each other. `descending` means nothing.
  kBest,
  kCheckpointBytes,
  kStarted,
  kEnded,
  kDuration,  // until `now` for those that run
};

struct ExperimentQuery {
  std::vector<std::string> states;  // any of them; empty: all
  std::vector<std::string> owners;  // any of them; empty: all
  std::vector<std::string> labels;  // all of them
  std::string search;        // in id, name, description, owner, labels; letter case does not matter
  std::string parent_trial;  // "": any
  std::optional<bool> archived;  // empty: both. Deleted ones are never listed.
  ExperimentSort sort = ExperimentSort::kId;
  bool descending = true;
  std::uint64_t offset = 0;
  std::uint64_t limit = 50;
  std::int64_t now = 0;  // for kDuration
};

/// The experiments of a catalog. May be called from any thread.
class CatalogExperiments {
 public:
  explicit CatalogExperiments(CatalogDatabase* db) : db_(db) {}

  /// Durable when it returns; the number of the experiment.
  Result<std::int64_t> Create(const NewExperiment& experiment);
  /// An experiment that was found under this number. False, and nothing is done, when there is one
  /// (also a deleted one).
  Result<bool> Adopt(std::int64_t id, const NewExperiment& experiment);
  /// NotFound, also for deleted ones.
  Result<Experiment> Get(std::int64_t id);
  Result<Page<Experiment>> List(const ExperimentQuery& query);
  Status Update(std::int64_t id, const ExperimentChange& change);
  /// Hides it for ever and takes its logs away. The events of its trials stay: they are the
  /// record of the engine. Removing checkpoints from the storage is the caller's.
  Status Delete(std::int64_t id);

  Result<std::string> SearcherState(std::int64_t id);

 private:
  CatalogDatabase* const db_;
};

}  // namespace cairn
