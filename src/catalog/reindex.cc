#include "catalog/reindex.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/status_macros.h"
#include "catalog/trial_rows.h"
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

class Indexer {
 public:
  Indexer(Catalog* catalog, const ReindexOptions& options, std::uint64_t last, std::int64_t now)
      : catalog_(catalog), options_(options), appender_(catalog, last, now) {}

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
        if (IsTrialId(name)) RETURN_IF_ERROR(Trial(root, experiment, name));
      }
    }
    return Status::Ok();
  }
  ReindexReport Finish() && { return std::move(report_); }

  void Problem(const std::string& where, const Status& status) {
    report_.problems.push_back(fmt::format("{}: {}", where, status.ToString()));
  }

 private:
  /// An error is the database's; what is wrong with a repository is noted.
  Status Trial(const std::string& root, const std::string& experiment, const std::string& trial) {
    const std::string repository = JoinPlace(JoinPlace(root, experiment), trial);
    const auto found = options_.repositories->List(repository);
    if (found.status().Is(Code::kNotFound)) return Status::Ok();  // no repository
    if (!found.ok()) {
      Problem(repository, found.status());
      return Status::Ok();
    }
    ++report_.repositories;
    const auto row = catalog_->trials().Get(trial);
    if (!row.ok() && !row.status().Is(Code::kNotFound)) return row.status();
    std::uint64_t run = 0;
    if (!row.ok()) {
      RETURN_IF_ERROR(Create(root, experiment, trial));
    } else if (row->experiment != experiment) {
      Problem(repository, AlreadyExistsError(fmt::format("trial {} belongs to experiment {}", trial,
                                                         row->experiment)));
      return Status::Ok();
    } else if (row->core.live) {
      return Status::Ok();
    } else {
      run = row->core.run;
    }
    ASSIGN_OR_RETURN(auto known, KnownCheckpoints(catalog_, trial));
    for (const FoundCheckpoint& one : *found) {
      const auto at = known.find(one.id);
      const bool there = at != known.end() && at->second.state == CheckpointState::kCompleted;
      if (!there) {
        ++report_.checkpoints_added;
        appender_.Add(trial, run, EventKind::kCheckpointCompleted,
                      Value::Object{{"id", one.id},
                                    {"steps_completed", one.steps},
                                    {"metadata", one.metadata},
                                    {"metrics", one.metrics},
                                    {"bytes", one.bytes},
                                    {"generation", one.generation},
                                    {"sequence", one.sequence},
                                    {"path", one.path}});
      }
      if (one.pinned != (there && at->second.pinned)) {
        appender_.Add(trial, 0, EventKind::kCheckpointPinned,
                      Value::Object{{"id", one.id}, {"pinned", one.pinned}});
      }
      known.erase(one.id);
    }
    for (const auto& [id, record] : known) {
      if (record.state != CheckpointState::kCompleted) continue;
      ++report_.checkpoints_removed;
      appender_.Add(trial, 0, EventKind::kCheckpointDeleted,
                    Value::Object{{"id", id}, {"reason", "it is not in the storage any more"}});
    }
    return appender_.Append();
  }

  Status Create(const std::string& root, const std::string& experiment, const std::string& trial) {
    if (const auto number = ExperimentNumber(experiment); number && !seen_.contains(*number)) {
      seen_.insert(*number);
      ASSIGN_OR_RETURN(
          const bool added,
          catalog_->experiments().Adopt(*number, {.uuid = "reindex-" + experiment,
                                                  .name = "experiment " + experiment,
                                                  .description = "found in the storage by reindex",
                                                  .state = "PAUSED",
                                                  .storage = root}));
      if (added) ++report_.experiments_added;
    }
    ++report_.trials_added;
    const TrialConfig config{.experiment = experiment, .storage = root, .detached = true};
    appender_.Add(trial, 0, EventKind::kTrialCreated,
                  Value::Object{{"config", ToValue(config)}, {"parent", Value()}});
    return Status::Ok();
  }

  Catalog* const catalog_;
  const ReindexOptions& options_;
  Appender appender_;
  ReindexReport report_;
  std::set<std::int64_t> seen_;
};

}  // namespace

Result<ReindexReport> Reindex(Catalog* catalog, const ReindexOptions& options) {
  if (options.repositories == nullptr) return InvalidArgumentError("reindex: no repositories");
  ASSIGN_OR_RETURN(const std::uint64_t last, catalog->LastEvent());
  Indexer indexer(catalog, options, last, Clock::System()->WallNanos());
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
