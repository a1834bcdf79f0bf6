#include "catalog/experiments.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/status_macros.h"
#include "catalog/database.h"
#include "catalog/row_inserter.h"
#include "format/json.h"

namespace cairn {
namespace {

constexpr std::string_view kSelect =
    "SELECT e.id, e.uuid, e.name, e.description, e.owner, e.state, e.code_digest, e.code_bytes, "
    "e.storage, e.parent_trial, e.parent_checkpoint, e.metric, e.smaller_is_better, e.labels, "
    "e.notes, e.progress, e.archived, e.created, e.started, e.ended, e.message, e.trials, "
    "e.best_metric, e.best_trial, e.checkpoints, e.checkpoint_bytes, e.ran, e.running_since FROM "
    "experiments e";
constexpr std::string_view kColumns =
    "ittttt"
    "ti"
    "ttt"
    "ti"
    "tt"
    "di"
    "iii"
    "ti"
    "dt"
    "ii"
    "ii";

Value LabelsToValue(const std::vector<std::string>& labels) {
  Value::List list;
  for (const std::string& label : labels) list.emplace_back(label);
  return list;
}

Result<std::vector<std::string>> LabelsFrom(const std::string& text) {
  ASSIGN_OR_RETURN(const Value value, DecodeJson(text));
  std::vector<std::string> labels;
  if (!value.is_list()) return CorruptionError("an experiment's labels are no list");
  for (const Value& label : *value.if_list()) {
    if (label.is_string()) labels.push_back(*label.if_string());
  }
  return labels;
}

Result<Experiment> ExperimentFrom(const SqlRow& row) {
  Experiment experiment;
  experiment.id = row.Int(0);
  experiment.uuid = row.Text(1);
  experiment.name = row.Text(2);
  experiment.description = row.Text(3);
  experiment.owner = row.Text(4);
  experiment.state = row.Text(5);
  experiment.code_digest = row.Text(6);
  experiment.code_bytes = row.Uint(7);
  experiment.storage = row.Text(8);
  experiment.parent_trial = row.Text(9);
  experiment.parent_checkpoint = row.Text(10);
  experiment.metric = row.Text(11);
  experiment.smaller_is_better = row.Bool(12);
  ASSIGN_OR_RETURN(experiment.labels, LabelsFrom(row.Text(13)));
  experiment.notes = row.Text(14);
  experiment.progress = row.Double(15);
  experiment.archived = row.Bool(16);
  experiment.created = row.Int(17);
  experiment.started = row.Int(18);
  experiment.ended = row.Int(19);
  experiment.message = row.Text(20);
  experiment.trials = row.Uint(21);
  experiment.best_metric = row.OptionalDouble(22);
  experiment.best_trial = row.Text(23);
  experiment.checkpoints = row.Uint(24);
  experiment.checkpoint_bytes = row.Uint(25);
  experiment.ran = row.Int(26);
  experiment.running_since = row.Int(27);
  return experiment;
}

std::string LowerCase(std::string text) {
  for (char& c : text) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return text;
}

/// What a search looks into. Lines, so that a word does not match across two of them.
std::string Haystack(std::int64_t id, const std::string& name, const std::string& description,
                     const std::string& owner, const std::vector<std::string>& labels) {
  std::string text = fmt::format("{}\n{}\n{}\n{}", id, name, owner, description);
  for (const std::string& label : labels) text += "\n" + label;
  return LowerCase(std::move(text));
}

/// What an experiment is called that was given no name: lists and searches want one.
std::string NameOf(std::int64_t id, const std::string& given) {
  return given.empty() ? fmt::format("experiment {}", id) : given;
}

std::string OrderOf(const ExperimentQuery& query, std::vector<Cell>* values) {
  const std::string direction = query.descending ? " DESC" : "";
  const auto by = [&](const std::string& what) {
    return fmt::format("{}{}, e.id{}", what, direction, direction);
  };
  switch (query.sort) {
    case ExperimentSort::kId:
      return "e.id" + direction;
    case ExperimentSort::kName:
      return by("e.name");
    case ExperimentSort::kState:
      return by("e.state");
    case ExperimentSort::kOwner:
      return by("e.owner");
    case ExperimentSort::kProgress:
      return by("e.progress");
    case ExperimentSort::kTrials:
      return by("e.trials");
    case ExperimentSort::kBest:
      return "CASE WHEN e.best_metric IS NULL THEN 1 ELSE 0 END, e.metric, e.smaller_is_better, "
             "CASE WHEN e.smaller_is_better = 1 THEN e.best_metric ELSE -e.best_metric END, e.id";
    case ExperimentSort::kBestMetric:
      return "CASE WHEN e.best_metric IS NULL THEN 1 ELSE 0 END, " + by("e.best_metric");
    case ExperimentSort::kCheckpointBytes:
      return by("e.checkpoint_bytes");
    case ExperimentSort::kStarted:
      return by("e.started");
    case ExperimentSort::kEnded:
      return by("e.ended");
    case ExperimentSort::kDuration:
      values->emplace_back(query.now);
      return by(
          "e.ran + CASE WHEN e.running_since = 0 THEN 0 ELSE CAST(? AS BIGINT) - e.running_since "
          "END");
  }
  return "e.id" + direction;
}

/// The ids, the first repeated: few lengths, so that few statements are prepared.
std::vector<Cell> Padded(const std::vector<std::int64_t>& ids) {
  std::size_t length = 1;
  while (length < ids.size()) length *= 4;
  std::vector<Cell> cells(ids.begin(), ids.end());
  cells.resize(length, ids.front());
  return cells;
}

Status AddCounts(Connection* connection, std::vector<Experiment>* experiments) {
  if (experiments->empty()) return Status::Ok();
  std::map<std::int64_t, Experiment*> by_id;
  std::vector<std::int64_t> plain;
  for (Experiment& experiment : *experiments) {
    by_id[experiment.id] = &experiment;
    plain.push_back(experiment.id);
  }
  const std::vector<Cell> ids = Padded(plain);
  return connection->Query(
      fmt::format("SELECT experiment_id, state, COUNT(*) FROM trials WHERE experiment_id IN ({}) "
                  "GROUP BY experiment_id, state",
                  Placeholders(ids.size())),
      ids, "iti", [&](const SqlRow& row) {
        by_id[row.Int(0)]->trials_by_state[row.Text(1)] = row.Uint(2);
        return Status::Ok();
      });
}

/// `id` 0: gets the next number.
Status Insert(Connection* connection, const NewExperiment& experiment, std::int64_t now,
              std::int64_t* id) {
  const bool numbered = *id != 0;
  std::vector<Cell> values = {experiment.uuid,
                              experiment.name,
                              experiment.description,
                              experiment.owner,
                              experiment.state,
                              experiment.code_digest,
                              Number(experiment.code_bytes),
                              experiment.storage,
                              experiment.parent_trial,
                              experiment.parent_checkpoint,
                              experiment.metric,
                              Flag(experiment.smaller_is_better),
                              experiment.metric_group,
                              EncodeJson(LabelsToValue(experiment.labels)),
                              experiment.notes,
                              now};
  if (numbered) values.emplace_back(*id);
  RETURN_IF_ERROR(connection->Query(
      fmt::format("INSERT INTO experiments (uuid, name, description, owner, state, code_digest, "
                  "code_bytes, storage, parent_trial, parent_checkpoint, metric, "
                  "smaller_is_better, metric_group, labels, notes, created, haystack{}) VALUES (?, "
                  "?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ''{}) RETURNING id",
                  numbered ? ", id" : "", numbered ? ", ?" : ""),
      values, "i", [&](const SqlRow& row) {
        *id = row.Int(0);
        return Status::Ok();
      }));
  const std::string name = NameOf(*id, experiment.name);
  RETURN_IF_ERROR(connection->Run(
      "UPDATE experiments SET name = ?, haystack = ? WHERE id = ?",
      {name, Haystack(*id, name, experiment.description, experiment.owner, experiment.labels),
       *id}));
  return connection->Run(
      "INSERT INTO experiment_texts (id, config_text, config, searcher_state) VALUES (?, ?, ?, ?)",
      {*id, experiment.config_text, EncodeJson(experiment.config),
       Blob{experiment.searcher_state}});
}

Status NoExperiment(std::int64_t id) { return NotFoundError(fmt::format("no experiment {}", id)); }

}  // namespace

Result<std::int64_t> CatalogExperiments::Create(const NewExperiment& experiment) {
  if (experiment.uuid.empty()) return InvalidArgumentError("an experiment wants a uuid");
  std::int64_t id = 0;
  RETURN_IF_ERROR(db_->Write([&](Connection& connection) -> Status {
    ASSIGN_OR_RETURN(
        const auto known,
        connection.QueryInt("SELECT id FROM experiments WHERE uuid = ?", {experiment.uuid}));
    if (known) {
      id = *known;
      return Status::Ok();
    }
    return Insert(&connection, experiment, db_->clock()->WallNanos(), &id);
  }));
  return id;
}

Result<bool> CatalogExperiments::Adopt(std::int64_t id, const NewExperiment& experiment) {
  bool added = false;
  RETURN_IF_ERROR(db_->Write([&](Connection& connection) -> Status {
    ASSIGN_OR_RETURN(const auto known,
                     connection.QueryInt("SELECT id FROM experiments WHERE id = ?", {id}));
    if (known) return Status::Ok();
    std::int64_t chosen = id;
    RETURN_IF_ERROR(Insert(&connection, experiment, db_->clock()->WallNanos(), &chosen));
    added = true;
    if (db_->dialect() == Dialect::kSqlite) return Status::Ok();
    // SQLite counts on from the greatest by itself.
    return connection
        .QueryInt(
            "SELECT setval(pg_get_serial_sequence('experiments', 'id'), (SELECT MAX(id) FROM "
            "experiments))")
        .status();
  }));
  return added;
}

Result<Experiment> CatalogExperiments::Get(std::int64_t id) {
  std::vector<Experiment> found;
  RETURN_IF_ERROR(db_->ReadSnapshot([&](Connection& connection) -> Status {
    found.clear();
    RETURN_IF_ERROR(connection.Query(std::string(kSelect) + " WHERE e.id = ? AND e.deleted = 0",
                                     {id}, kColumns, [&](const SqlRow& row) -> Status {
                                       ASSIGN_OR_RETURN(Experiment one, ExperimentFrom(row));
                                       found.push_back(std::move(one));
                                       return Status::Ok();
                                     }));
    RETURN_IF_ERROR(AddCounts(&connection, &found));
    return connection.Query("SELECT config_text, config FROM experiment_texts WHERE id = ?", {id},
                            "tt", [&](const SqlRow& row) -> Status {
                              if (found.empty()) return Status::Ok();
                              found[0].config_text = row.Text(0);
                              ASSIGN_OR_RETURN(found[0].config, DecodeJson(row.Text(1)));
                              return Status::Ok();
                            });
  }));
  if (found.empty()) return NoExperiment(id);
  return std::move(found[0]);
}

Result<Page<Experiment>> CatalogExperiments::List(const ExperimentQuery& query) {
  std::string where = " WHERE e.deleted = 0";
  std::vector<Cell> values;
  const auto any_of = [&](const std::string& column, const std::vector<std::string>& texts) {
    if (texts.empty()) return;
    where += fmt::format(" AND {} IN ({})", column, Placeholders(texts.size()));
    values.insert(values.end(), texts.begin(), texts.end());
  };
  // LIKE minds letter case in one database and not in the other.
  const std::string_view find = db_->dialect() == Dialect::kSqlite ? "instr" : "strpos";
  any_of("e.state", query.states);
  any_of("e.owner", query.owners);
  for (const std::string& label : query.labels) {
    where += fmt::format(" AND {}(e.labels, ?) > 0", find);
    values.emplace_back(EncodeJson(Value(label)));
  }
  if (!query.search.empty()) {
    where += fmt::format(" AND {}(e.haystack, ?) > 0", find);
    values.emplace_back(LowerCase(query.search));
  }
  if (!query.parent_trial.empty()) {
    where += " AND e.parent_trial = ?";
    values.emplace_back(query.parent_trial);
  }
  if (query.archived) {
    where += " AND e.archived = ?";
    values.push_back(Flag(*query.archived));
  }
  Page<Experiment> page;
  RETURN_IF_ERROR(db_->ReadSnapshot([&](Connection& connection) -> Status {
    page = {};
    RETURN_IF_ERROR(connection.Query("SELECT COUNT(*) FROM experiments e" + where, values, "i",
                                     [&](const SqlRow& row) {
                                       page.total = row.Uint(0);
                                       return Status::Ok();
                                     }));
    std::vector<Cell> all = values;
    const std::string order = OrderOf(query, &all);
    all.push_back(Number(std::min(query.limit, kMaxPage)));
    all.push_back(Number(query.offset));
    // Sorted by themselves, and then read: what is sorted is small.
    std::vector<std::int64_t> ids;
    RETURN_IF_ERROR(connection.Query(
        "SELECT e.id FROM experiments e" + where + " ORDER BY " + order + " LIMIT ? OFFSET ?", all,
        "i", [&](const SqlRow& row) {
          ids.push_back(row.Int(0));
          return Status::Ok();
        }));
    if (ids.empty()) return Status::Ok();
    std::map<std::int64_t, Experiment> found;
    const std::vector<Cell> wanted = Padded(ids);
    RETURN_IF_ERROR(connection.Query(
        std::string(kSelect) + fmt::format(" WHERE e.id IN ({})", Placeholders(wanted.size())),
        wanted, kColumns, [&](const SqlRow& row) -> Status {
          ASSIGN_OR_RETURN(Experiment one, ExperimentFrom(row));
          found.emplace(one.id, std::move(one));
          return Status::Ok();
        }));
    for (const std::int64_t id : ids) {
      if (const auto one = found.find(id); one != found.end()) {
        page.items.push_back(std::move(one->second));
      }
    }
    return AddCounts(&connection, &page.items);
  }));
  return page;
}

Status CatalogExperiments::Update(std::int64_t id, const ExperimentChange& change) {
  return db_->Write([&](Connection& connection) -> Status {
    std::optional<Experiment> known;
    RETURN_IF_ERROR(connection.Query(std::string(kSelect) + " WHERE e.id = ? AND e.deleted = 0",
                                     {id}, kColumns, [&](const SqlRow& row) -> Status {
                                       ASSIGN_OR_RETURN(known, ExperimentFrom(row));
                                       return Status::Ok();
                                     }));
    if (!known) return NoExperiment(id);
    std::string sets;
    std::vector<Cell> values;
    const auto set = [&](std::string_view column, Cell value) {
      sets += fmt::format("{}{} = ?", sets.empty() ? "" : ", ", column);
      values.push_back(std::move(value));
    };
    const std::string name = change.name ? NameOf(id, *change.name) : known->name;
    if (change.name) set("name", name);
    if (change.description) set("description", *change.description);
    if (change.owner) set("owner", *change.owner);
    if (change.labels) set("labels", EncodeJson(LabelsToValue(*change.labels)));
    if (change.name || change.description || change.owner || change.labels) {
      set("haystack",
          Haystack(id, name, change.description.value_or(known->description),
                   change.owner.value_or(known->owner), change.labels.value_or(known->labels)));
    }
    if (change.state) set("state", *change.state);
    if (change.message) set("message", *change.message);
    if (change.ended) set("ended", *change.ended);
    if (change.progress) set("progress", *change.progress);
    if (change.notes) set("notes", *change.notes);
    if (change.archived) set("archived", Flag(*change.archived));
    if (!values.empty()) {
      values.emplace_back(id);
      RETURN_IF_ERROR(connection.Run("UPDATE experiments SET " + sets + " WHERE id = ?", values));
    }
    if (change.config_text) {
      RETURN_IF_ERROR(connection.Run("UPDATE experiment_texts SET config_text = ? WHERE id = ?",
                                     {*change.config_text, id}));
    }
    if (change.config) {
      RETURN_IF_ERROR(connection.Run("UPDATE experiment_texts SET config = ? WHERE id = ?",
                                     {EncodeJson(*change.config), id}));
    }
    if (change.searcher_state) {
      RETURN_IF_ERROR(connection.Run("UPDATE experiment_texts SET searcher_state = ? WHERE id = ?",
                                     {Blob{*change.searcher_state}, id}));
    }
    return InsertDeliveries(change.deliveries, db_->clock()->WallNanos(), &connection);
  });
}

Status CatalogExperiments::Delete(std::int64_t id) {
  return db_->Write([&](Connection& connection) -> Status {
    std::int64_t changed = 0;
    RETURN_IF_ERROR(connection.Run(
        "UPDATE experiments SET deleted = 1 WHERE id = ? AND deleted = 0", {id}, &changed));
    if (changed == 0) return NoExperiment(id);
    for (const std::string_view table : {"log_blocks", "log_trials", "log_positions"}) {
      RETURN_IF_ERROR(connection.Run(
          fmt::format(
              "DELETE FROM {} WHERE trial IN (SELECT id FROM trials WHERE experiment_id = ?)",
              table),
          {id}));
    }
    return Status::Ok();
  });
}

Result<std::string> CatalogExperiments::SearcherState(std::int64_t id) {
  std::optional<std::string> state;
  RETURN_IF_ERROR(db_->Read([&](Connection& connection) {
    return connection.Query("SELECT searcher_state FROM experiment_texts WHERE id = ?", {id}, "b",
                            [&](const SqlRow& row) {
                              state = row.Bytes(0);
                              return Status::Ok();
                            });
  }));
  if (!state) return NoExperiment(id);
  return std::move(*state);
}

}  // namespace cairn
