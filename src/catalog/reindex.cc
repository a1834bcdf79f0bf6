#include "catalog/reindex.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/status_macros.h"
#include "catalog/trial_rows.h"
#include "format/json.h"
#include "storage/open_store.h"
#include "trial/trial_config.h"

namespace cairn {
namespace {

/// Gathers events with the numbers that follow, and appends them.
class Appender {
 public:
  Appender(Catalog* catalog, std::uint64_t last, std::int64_t now)
      : catalog_(catalog), last_(last), now_(now) {}

  void Add(std::string trial, std::uint64_t run, EventKind kind, Value body) {
    events_.push_back({.seq = ++last_,
                       .time = now_,
                       .trial = std::move(trial),
                       .run = run,
                       .kind = kind,
                       .body = std::move(body)});
  }
  Status Append() {
    const Status appended = catalog_->events().Append(events_);
    events_.clear();
    return appended;
  }

 private:
  Catalog* const catalog_;
  std::uint64_t last_;
  const std::int64_t now_;
  std::vector<Event> events_;
};

std::string JoinPlace(std::string root, std::string_view name) {
  while (root.size() > 1 && root.ends_with('/')) root.pop_back();
  return fmt::format("{}/{}", root, name);
}

Result<std::map<std::string, CheckpointRecord>> KnownCheckpoints(Catalog* catalog,
                                                                 const std::string& trial) {
  std::map<std::string, CheckpointRecord> known;
  for (CheckpointQuery query{.trial = trial, .limit = kMaxPage};; query.offset += kMaxPage) {
    ASSIGN_OR_RETURN(const auto page, catalog->trials().Checkpoints(query));
    for (const CheckpointRow& row : page.items) {
      if (!row.record.id.empty()) known[row.record.id] = row.record;
    }
    if (query.offset + page.items.size() >= page.total || page.items.empty()) return known;
  }
}

/// "7-1a2b3c4d": how a directory of experiment 7's trials is called where "7" is another's.
bool IsOtherName(std::string_view experiment) {
  const std::size_t dash = experiment.find('-');
  return dash != std::string_view::npos && ExperimentNumber(experiment.substr(0, dash)).has_value();
}

class Indexer {
 public:
  Indexer(Catalog* catalog, const ReindexOptions& options, const TrialRecords& records,
          std::int64_t now)
      : catalog_(catalog), options_(options), appender_(catalog, records.last_seq(), now) {
    for (const auto& [id, trial] : records.trials()) {
      Known known{.id = id, .job = trial.job, .repository = RepositoryOf(trial)};
      known.run = trial.core.run;
      known.live = trial.core.live;
      known.directory = trial.directory;
      Add(std::move(known));
      if (!trial.directory.empty()) elsewhere_.insert(trial.config.experiment);
    }
  }

  Status Root(const std::string& root) {
    ASSIGN_OR_RETURN(const auto store, OpenStore(root, {.create = false, .storage = {}}));
    ASSIGN_OR_RETURN(const Listing experiments, store->List(""));
    for (const std::string& experiment : experiments.prefixes) {
      if (!IsTrialId(experiment)) continue;  // a foreign directory
      const auto trials = store->List(experiment);
      if (!trials.ok()) {
        Problem(JoinPlace(root, experiment), trials.status());
        continue;
      }
      for (const std::string& path : trials->prefixes) {
        const std::string name = path.substr(path.rfind('/') + 1);
        if (IsTrialId(name)) RETURN_IF_ERROR(Repository(root, experiment, name));
      }
    }
    return Status::Ok();
  }
  ReindexReport Finish() && { return std::move(report_); }

  void Problem(const std::string& where, const Status& status) {
    report_.problems.push_back(fmt::format("{}: {}", where, status.ToString()));
  }

 private:
  struct Known {
    std::string id;
    std::string job;         // "": not recorded
    std::string repository;  // as it is recorded
    std::string directory;   // "": as its numbers say
    std::uint64_t run = 0;
    bool live = false;
  };

  void Add(Known known) {
    if (!known.job.empty()) by_job_[known.job] = known.id;
    if (const auto number = ExperimentNumber(known.id)) last_id_ = std::max(last_id_, *number);
    trials_[known.id] = std::move(known);
  }

  /// A root as it is recorded.
  std::string Recorded(const std::string& root) const {
    const std::string inside = options_.data_directory + "/";
    if (options_.data_directory.empty() || !root.starts_with(inside)) return root;
    return InDataDirectory(std::string_view(root).substr(inside.size()));
  }

  /// The trial whose repository it is, if that is known.
  Known* Find(const std::string& job, const std::string& recorded, const std::string& trial) {
    if (const auto own = by_job_.find(job); own != by_job_.end()) return &trials_[own->second];
    const auto named = trials_.find(trial);
    if (named == trials_.end() || !named->second.job.empty()) return nullptr;
    // Recorded before there were jobs.
    return SameNames(named->second.repository, recorded) ? &named->second : nullptr;
  }
  /// Whether they end with the same experiment and trial: storage may have been moved.
  static bool SameNames(const std::string& one, const std::string& other) {
    return one.ends_with(other.substr(other.rfind('/', other.rfind('/') - 1)));
  }

  /// An error is the database's; what is wrong with a repository is noted.
  Status Repository(const std::string& root, const std::string& experiment,
                    const std::string& trial) {
    const std::string repository = JoinPlace(JoinPlace(root, experiment), trial);
    const auto found = options_.repositories->List(repository);
    if (found.status().Is(Code::kNotFound)) return Status::Ok();  // no repository
    const auto job = options_.repositories->Job(repository);
    if (!found.ok() || !job.ok()) {
      Problem(repository, found.ok() ? job.status() : found.status());
      return Status::Ok();
    }
    ++report_.repositories;
    const auto run = options_.repositories->NewestRun(repository);
    if (!run.ok()) {
      Problem(repository, run.status());
      return Status::Ok();
    }
    const std::string recorded = JoinPlace(JoinPlace(Recorded(root), experiment), trial);
    Known* known = Find(*job, recorded, trial);
    if (known == nullptr) {
      ASSIGN_OR_RETURN(known, Create(root, experiment, trial, *job));
    } else if (known->live) {
      return Status::Ok();
    } else if (!SameNames(known->repository, recorded)) {
      Problem(repository,
              AlreadyExistsError(fmt::format("it is a copy of trial {}'s, which is recorded at {}",
                                             known->id, known->repository)));
      return Status::Ok();
    }
    if (*run > known->run) {
      // Runs that this record does not know of: the next one has a greater number.
      known->run = *run;
      appender_.Add(known->id, 0, EventKind::kRepositoryChosen,
                    Value::Object{{"job", *job}, {"directory", known->directory}, {"run", *run}});
    }
    return Checkpoints(*known, *found);
  }

  Status Checkpoints(const Known& trial, const std::vector<FoundCheckpoint>& found) {
    ASSIGN_OR_RETURN(auto known, KnownCheckpoints(catalog_, trial.id));
    for (const FoundCheckpoint& one : found) {
      const auto at = known.find(one.id);
      const bool there = at != known.end() && at->second.state == CheckpointState::kCompleted;
      if (!there) {
        ++report_.checkpoints_added;
        appender_.Add(trial.id, trial.run, EventKind::kCheckpointCompleted, CompletedBody(one));
      }
      if (one.pinned != (there && at->second.pinned)) {
        appender_.Add(trial.id, 0, EventKind::kCheckpointPinned,
                      Value::Object{{"id", one.id}, {"pinned", one.pinned}});
      }
      known.erase(one.id);
    }
    for (const auto& [id, record] : known) {
      if (record.state != CheckpointState::kCompleted) continue;
      ++report_.checkpoints_removed;
      appender_.Add(trial.id, 0, EventKind::kCheckpointDeleted,
                    Value::Object{{"id", id}, {"reason", "it is not in the storage any more"}});
    }
    return appender_.Append();
  }

  /// What a user sees of an experiment that was found. Nobody knows the command of its trials.
  NewExperiment Found(const std::string& root, const std::string& experiment) const {
    const std::string recorded = Recorded(root);
    Value::Object config{{"name", "experiment " + experiment}, {"detached", true}};
    if (recorded == root) config["checkpoint_storage"] = root;
    return {.uuid = "reindex-" + experiment,
            .name = "experiment " + experiment,
            .description = "found in the storage by reindex",
            .state = "PAUSED",
            .config_text = EncodeJson(config, 2),
            .config = config,
            .storage = recorded};
  }

  Result<Known*> Create(const std::string& root, const std::string& experiment,
                        const std::string& trial, const std::string& job) {
    Known known{.id = trial, .job = job};
    known.repository = JoinPlace(JoinPlace(Recorded(root), experiment), trial);
    std::string name = experiment;
    std::string directory;
    const auto number = ExperimentNumber(experiment);
    if (trials_.contains(trial) || IsOtherName(experiment) || elsewhere_.contains(experiment)) {
      // The numbers are another's; where its checkpoints are is recorded with it.
      directory = fmt::format("{}/{}", experiment, trial);
      known.id = std::to_string(last_id_ + 1);
      NewExperiment other = Found(root, experiment);
      other.uuid = fmt::format("reindex-{}-{}", root, experiment);
      other.description += ", in " + directory;
      ASSIGN_OR_RETURN(const std::int64_t chosen, catalog_->experiments().Create(other));
      if (seen_.insert(chosen).second) ++report_.experiments_added;
      name = std::to_string(chosen);
    } else if (number && seen_.insert(*number).second) {
      ASSIGN_OR_RETURN(const bool added,
                       catalog_->experiments().Adopt(*number, Found(root, experiment)));
      if (added) ++report_.experiments_added;
    }
    ++report_.trials_added;
    const TrialConfig config{.experiment = name, .storage = Recorded(root), .detached = true};
    Value::Object body{{"config", ToValue(config)}, {"parent", Value()}, {"job", job}};
    if (!directory.empty()) body["directory"] = directory;
    known.directory = directory;
    appender_.Add(known.id, 0, EventKind::kTrialCreated, std::move(body));
    const std::string id = known.id;
    Add(std::move(known));
    return &trials_[id];
  }

  Catalog* const catalog_;
  const ReindexOptions& options_;
  Appender appender_;
  ReindexReport report_;
  std::set<std::int64_t> seen_;
  std::map<std::string, Known> trials_;
  std::map<std::string, std::string> by_job_;
  std::set<std::string> elsewhere_;  // experiments that found the directory of their number taken
  std::int64_t last_id_ = 0;         // the greatest number of a trial
};

}  // namespace

Result<ReindexReport> Reindex(Catalog* catalog, const ReindexOptions& options) {
  if (options.repositories == nullptr) return InvalidArgumentError("reindex: no repositories");
  ASSIGN_OR_RETURN(TrialRecords records, catalog->events().Restore());
  RETURN_IF_ERROR(catalog->events().Replay(
      records.last_seq() + 1, [&](const Event& event) { return records.Apply(event); }));
  Indexer indexer(catalog, options, records, Clock::System()->WallNanos());
  for (const std::string& root : options.roots) {
    const Status read = indexer.Root(root);
    if (read.Is(Code::kNotFound)) {
      indexer.Problem(root, read);
    } else {
      RETURN_IF_ERROR(read.WithContext("reindex " + root));
    }
  }
  return std::move(indexer).Finish();
}

}  // namespace cairn
