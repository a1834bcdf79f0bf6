#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/status.h>
#include <cairn/value.h>

#include "cli/console.h"
#include "cli/log_follow.h"
#include "cli/master_client.h"

namespace cairn::cli {

// Commands on experiments and trials of a master. `trial` says which of the two is meant where both
// have the command.

struct CreateOptions {
  MasterOptions master;
  std::string config;                  // YAML file
  std::string directory;               // of code
  std::vector<std::string> overrides;  // "hyperparameters.lr=0.1"
  bool follow = false;
  bool paused = false;
  bool validate = false;
};
Result<Output> CreateExperiment(const CreateOptions& options, Console* console);

struct ListOptions {
  MasterOptions master;
  std::string experiment;  // of trials
  std::string state;
  std::string owner;
  std::string label;
  std::string search;
  std::string sort;
  bool ascending = false;
  bool archived = false;
  std::uint64_t limit = 50;
  std::uint64_t offset = 0;
  double watch = 0;  // seconds between looks; 0: one look
};
Result<Output> ListExperiments(const ListOptions& options, Console* console);
Result<Output> ListTrials(const ListOptions& options, Console* console);

struct ShowOneOptions {
  MasterOptions master;
  std::string id;
  double watch = 0;
  bool config = false;  // print the config as it was written
};
Result<Output> ShowExperiment(const ShowOneOptions& options, Console* console);
Result<Output> ShowTrial(const ShowOneOptions& options, Console* console);

struct LogsOptions {
  MasterOptions master;
  std::string id;
  LogSelection selection;
  bool follow = false;
};
/// Of an experiment: those of its first trial.
Result<Output> Logs(const LogsOptions& options, bool trial, Console* console);

struct ActOptions {
  MasterOptions master;
  std::vector<std::string> ids;
};
/// pause, activate, cancel, kill.
Result<Output> Act(const ActOptions& options, const std::string& action, bool trial,
                   Console* console);

struct ContinueOptions {
  MasterOptions master;
  std::string id;
  bool as_new = false;
  std::string from;
  std::vector<std::string> overrides;
  bool follow = false;
};
Result<Output> Continue(const ContinueOptions& options, bool trial, Console* console);

struct CheckpointListOptions {
  MasterOptions master;
  std::string id;
  std::string state;
  bool best = false;  // by score, instead of the newest first
  std::uint64_t limit = 0;
};
Result<Output> ListCheckpoints(const CheckpointListOptions& options, bool trial, Console* console);

struct DownloadOptions {
  MasterOptions master;
  std::string id;
  std::string checkpoint;  // "": the latest, or …
  bool best = false;       // … the one with the best score
  bool code = false;       // instead: the code, as it was uploaded
  std::string out;         // a directory that is not there yet, or a file .tar, .tar.gz, .zip
};
Result<Output> Download(const DownloadOptions& options, bool trial, Console* console);

struct DeleteOptions {
  MasterOptions master;
  std::vector<std::string> ids;
  bool yes = false;
  bool force = false;
  bool keep_checkpoints = false;
};
Result<Output> DeleteExperiments(const DeleteOptions& options, Console* console);

struct WaitOptions {
  MasterOptions master;
  std::string id;
  double timeout = 0;  // seconds; 0: for ever
  bool or_paused = false;
};
/// What `wait --or-paused` exits with when it is paused: it has neither succeeded nor failed.
inline constexpr int kStillPaused = 3;
/// Until it has ended; exit code 1 when it ended with ERROR or CANCELED. With or_paused also until
/// it is paused.
Result<Output> Wait(const WaitOptions& options, bool trial, Console* console);

struct PolicyOptions {
  MasterOptions master;
  std::string id;
  // Empty: as it is. "none" takes the rule away.
  std::string keep_last, keep_best, experiment_best, keep_every, score, order;
  std::string max_age, max_bytes, experiment_bytes;
  bool preview = false;
};
Result<Output> SetPolicy(const PolicyOptions& options, Console* console);

struct EditOptions {
  MasterOptions master;
  std::string id;
  std::string name, description, notes;  // "": as it is
  std::vector<std::string> add_labels, remove_labels;
  std::string archived;  // "true", "false", "": as it is
};
Result<Output> EditExperiment(const EditOptions& options, Console* console);

struct MetricsOptions {
  MasterOptions master;
  std::string id;
  std::string group;
  std::string name;
  std::uint64_t points = 0;  // 0: all
  bool archived = false;
};
Result<Output> ShowMetrics(const MetricsOptions& options, Console* console);

// --- what several of them need ---

/// {"a": {"b": 0.5}} of "a.b=0.5"; a value that is no JSON is a text. InvalidArgument without '='.
Result<Value> ParseOverrides(const std::vector<std::string>& assignments);
/// All pages of a list.
Result<Value::List> AllPages(MasterClient* master, const std::string& path, std::string_view key,
                             MasterClient::Query query);
/// Seconds since 1970.
double UnixNow(Console* console);
/// Once, or again and again until a signal comes, on a cleared screen.
Result<Output> Watched(double seconds, Console* console,
                       const std::function<Result<Output>()>& look);
/// Follows the first trial of the experiment to its end, and says what became of it. `position`:
/// the last line that is not to be shown.
Result<Output> FollowExperiment(MasterClient* master, const std::string& id,
                                const LogSelection& selection, Console* console,
                                std::int64_t position = -1);

}  // namespace cairn::cli
