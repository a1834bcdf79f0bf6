#include "cli/experiment_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "cli/master_client.h"
#include "cli/output.h"
#include "format/json.h"

namespace cairn::cli {
namespace {

using Align = TextTable::Align;

std::int64_t Nanos(double seconds) { return static_cast<std::int64_t>(seconds * 1e9); }

std::string Duration(const Value& object, std::string_view key) {
  const Value* value = object.Find(key);
  return value == nullptr || !value->is_number() ? "" : HumanAge(Nanos(value->AsDouble()));
}

std::string Ago(const Value& object, std::string_view key, double now) {
  const Value* value = object.Find(key);
  if (value == nullptr || !value->is_number()) return "";
  return HumanAge(Nanos(std::max(0.0, now - value->AsDouble())));
}

std::string Time(const Value& object, std::string_view key) {
  const Value* value = object.Find(key);
  return value == nullptr || !value->is_number() ? "" : UtcTime(Nanos(value->AsDouble()));
}

/// Of an experiment or a trial; "" of one that has reported nothing and has no others to count.
std::string Percent(const Value& object) {
  if (NumberIn(object, "progress") <= 0 && IntIn(object, "trials") <= 1) return "";
  return fmt::format("{:.0f} %", NumberIn(object, "progress") * 100);
}

std::string Bytes(const Value& object, std::string_view key) {
  const std::int64_t bytes = IntIn(object, key);
  return bytes <= 0 ? "" : HumanBytes(static_cast<std::uint64_t>(bytes));
}

std::string Best(const Value& object) {
  const Value* best = object.Find("best");
  if (best == nullptr || !best->is_object()) return "";
  return Printable(fmt::format("{}={}", TextIn(*best, "metric"), NumberText(best->Find("value"))));
}

std::string Labels(const Value& object) {
  std::string text;
  for (const Value& label : ListIn(object, "labels")) {
    if (label.is_string()) text += (text.empty() ? "" : ", ") + *label.if_string();
  }
  return Printable(text);
}

/// "name      value" lines; those without a value are left out.
class Facts {
 public:
  void Add(std::string_view name, const std::string& value) {
    if (!value.empty()) text_ += fmt::format("{:<13}{}\n", name, value);
  }
  std::string text() && { return std::move(text_); }

 private:
  std::string text_;
};

std::string Parent(const Value& object) {
  const Value* parent = object.Find("parent");
  if (parent == nullptr || !parent->is_object()) return "";
  if (TextIn(*parent, "checkpoint").empty()) {  // recorded by an older version
    return Printable(fmt::format("trial {}", TextIn(*parent, "trial")));
  }
  return Printable(fmt::format("trial {}, checkpoint {} (step {})", TextIn(*parent, "trial"),
                               ShortId(TextIn(*parent, "checkpoint")),
                               IntIn(*parent, "steps_completed")));
}

}  // namespace

bool HasEnded(std::string_view state) {
  return state == "COMPLETED" || state == "CANCELED" || state == "ERROR";
}

std::string NumberText(const Value* value) {
  if (value == nullptr || value->is_null()) return "";
  if (const double* number = value->if_double()) return fmt::format("{:.6g}", *number);
  if (const std::string* text = value->if_string()) return *text;
  return EncodeJson(*value);
}

std::string ExperimentTable(const Value::List& experiments, double now) {
  TextTable table({{"ID", Align::kRight},
                   {"NAME"},
                   {"STATE"},
                   {"PROGRESS", Align::kRight},
                   {"TRIALS", Align::kRight},
                   {"BEST"},
                   {"CHECKPOINTS", Align::kRight},
                   {"OWNER"},
                   {"STARTED", Align::kRight},
                   {"DURATION", Align::kRight}});
  for (const Value& experiment : experiments) {
    const std::string started = Ago(experiment, "started", now);
    table.AddRow({Printable(TextIn(experiment, "id")), Printable(TextIn(experiment, "name")),
                  Printable(TextIn(experiment, "state")), Percent(experiment),
                  std::to_string(IntIn(experiment, "trials")), Best(experiment),
                  Bytes(experiment, "checkpoint_bytes"), Printable(TextIn(experiment, "owner")),
                  started.empty() ? "" : started + " ago", Duration(experiment, "duration")});
  }
  return table.Render();
}

std::string ExperimentText(const Value& experiment) {
  Facts facts;
  const std::string id = TextIn(experiment, "id");
  const std::string name = TextIn(experiment, "name");
  // One without a name is called by its number.
  facts.Add("experiment", Printable(name == "experiment " + id ? id : id + "  " + name));
  facts.Add("state", Printable(TextIn(experiment, "state")) + "  " + Percent(experiment));
  facts.Add("message", Printable(TextIn(experiment, "message")));
  facts.Add("description", Printable(TextIn(experiment, "description")));
  facts.Add("labels", Labels(experiment));
  facts.Add("owner", Printable(TextIn(experiment, "owner")));
  facts.Add("created", Time(experiment, "created"));
  facts.Add("started", Time(experiment, "started"));
  facts.Add("ran for", Duration(experiment, "duration"));
  std::string trials = std::to_string(IntIn(experiment, "trials"));
  if (const Value* states = experiment.Find("trial_states");
      states != nullptr && states->is_object()) {
    for (const auto& [state, count] : *states->if_object()) {
      if (count.AsInt() > 0) trials += fmt::format("  {} {}", count.AsInt(), Printable(state));
    }
  }
  facts.Add("trials", trials);
  facts.Add("best", Best(experiment));
  if (const Value* best = experiment.Find("best"); best != nullptr && best->is_object()) {
    facts.Add("best trial", Printable(TextIn(*best, "trial")));
  }
  const std::int64_t checkpoints = IntIn(experiment, "checkpoints");
  if (checkpoints > 0) {
    facts.Add(
        "checkpoints",
        fmt::format("{}, {}", checkpoints,
                    HumanBytes(static_cast<std::uint64_t>(IntIn(experiment, "checkpoint_bytes")))));
  }
  facts.Add("began with", Parent(experiment));
  facts.Add("storage", Printable(TextIn(experiment, "storage")));
  facts.Add("notes", Printable(TextIn(experiment, "notes")));
  return std::move(facts).text();
}

std::string TrialTable(const Value::List& trials) {
  TextTable table({{"ID", Align::kRight},
                   {"EXPERIMENT", Align::kRight},
                   {"STATE"},
                   {"PROGRESS", Align::kRight},
                   {"STEP", Align::kRight},
                   {"BEST"},
                   {"CHECKPOINTS", Align::kRight},
                   {"RUNS", Align::kRight},
                   {"DURATION", Align::kRight},
                   {"HYPERPARAMETERS"}});
  for (const Value& trial : trials) {
    const Value* hparams = trial.Find("hparams");
    table.AddRow({Printable(TextIn(trial, "id")), Printable(TextIn(trial, "experiment")),
                  Printable(TextIn(trial, "state")), Percent(trial),
                  std::to_string(IntIn(trial, "steps_completed")), Best(trial),
                  Bytes(trial, "checkpoint_bytes"), std::to_string(IntIn(trial, "run_id")),
                  Duration(trial, "duration"), hparams == nullptr ? "" : MetricsText(*hparams, 4)});
  }
  return table.Render();
}

std::string TrialText(const Value& trial, double now) {
  Facts facts;
  facts.Add("trial",
            Printable(TextIn(trial, "id") + " of experiment " + TextIn(trial, "experiment")));
  std::string state = Printable(TextIn(trial, "state")) + "  " + Percent(trial);
  if (const Value* deadline = trial.Find("preemption_deadline");
      deadline != nullptr && deadline->is_number()) {
    const double left = deadline->AsDouble() - now;
    state += left > 0 ? fmt::format("  ({:.0f} s until it is ended)", left)
                      : "  (its time is over: it got SIGTERM, and SIGKILL follows)";
  }
  facts.Add("state", state);
  const std::string word = TextIn(trial, "state");
  if (const Value* step = trial.Find("resumes_from_step"); step != nullptr && step->is_int()) {
    facts.Add("goes on", fmt::format("from step {}", step->AsInt()));
  } else if (word == "PAUSING" || word == "PAUSED") {
    facts.Add("goes on", "from the beginning: there is no checkpoint yet");
  }
  facts.Add("message", Printable(TextIn(trial, "message")));
  facts.Add("status", Printable(TextIn(trial, "status")));
  if (const Value* hparams = trial.Find("hparams")) {
    facts.Add("hparams", MetricsText(*hparams, 32));
  }
  facts.Add("step", std::to_string(IntIn(trial, "steps_completed")));
  if (const Value* metrics = trial.Find("latest_metrics")) {
    facts.Add("metrics", MetricsText(*metrics, 16));
  }
  facts.Add("best", Best(trial));
  facts.Add("runs", fmt::format("{} ({} of {} restarts after failures)", IntIn(trial, "run_id"),
                                // the failure that ended it was no restart
                                std::min(IntIn(trial, "restarts"), IntIn(trial, "max_restarts")),
                                IntIn(trial, "max_restarts")));
  facts.Add("started", Time(trial, "started"));
  facts.Add("ran for", Duration(trial, "duration"));
  if (const Value* latest = trial.Find("latest_checkpoint");
      latest != nullptr && latest->is_object()) {
    facts.Add("latest", Printable(fmt::format("checkpoint {} at step {}", TextIn(*latest, "id"),
                                              IntIn(*latest, "steps_completed"))));
  }
  facts.Add("began with", Parent(trial));
  facts.Add("repository", Printable(TextIn(trial, "repository")));
  return std::move(facts).text();
}

std::string CheckpointTable(const Value::List& checkpoints, double now) {
  TextTable table({{"ID"},
                   {"TRIAL", Align::kRight},
                   {"STEP", Align::kRight},
                   {"STATE"},
                   {"METRICS"},
                   {"KIND"},
                   {"BYTES", Align::kRight},
                   {"NEW", Align::kRight},
                   {"PINNED"},
                   {"AGE", Align::kRight}});
  for (const Value& checkpoint : checkpoints) {
    const Value* metrics = checkpoint.Find("metrics");
    table.AddRow({Printable(TextIn(checkpoint, "id")), Printable(TextIn(checkpoint, "trial")),
                  std::to_string(IntIn(checkpoint, "steps_completed")),
                  Printable(TextIn(checkpoint, "state")),
                  metrics == nullptr ? "" : MetricsText(*metrics, 3),
                  Printable(TextIn(checkpoint, "kind")), Bytes(checkpoint, "bytes"),
                  Bytes(checkpoint, "new_bytes"), BoolIn(checkpoint, "pinned") ? "yes" : "",
                  Ago(checkpoint, "time", now)});
  }
  return table.Render();
}

std::string MetricTable(const Value::List& reports) {
  TextTable table({{"STEP", Align::kRight}, {"GROUP"}, {"RUN", Align::kRight}, {"VALUES"}});
  for (const Value& report : reports) {
    const Value* values = report.Find("values");
    table.AddRow({std::to_string(IntIn(report, "steps_completed")),
                  Printable(TextIn(report, "group")), std::to_string(IntIn(report, "run_id")),
                  values == nullptr ? "" : MetricsText(*values, 16)});
  }
  return table.Render();
}

std::string PolicyText(const Value& policy) {
  std::string text;
  if (const Value::Object* rules = policy.if_object()) {
    for (const auto& [name, rule] : *rules) {
      if (rule.is_null() || rule == Value("")) continue;
      std::string shown = NumberText(&rule);
      if (name.ends_with("_bytes")) shown = HumanBytes(static_cast<std::uint64_t>(rule.AsDouble()));
      if (name == "max_age_seconds") shown = fmt::format("{:.0f}", rule.AsDouble());
      text += fmt::format("{:<17}{}\n", name, Printable(shown));
    }
  }
  return text.empty() ? "all checkpoints stay\n" : text;
}

std::string UserTable(const Value::List& users) {
  TextTable table({{"NAME"}, {"ROLE"}, {"ACTIVE"}, {"CREATED"}});
  for (const Value& user : users) {
    table.AddRow({Printable(TextIn(user, "username")), Printable(TextIn(user, "role")),
                  BoolIn(user, "active") ? "yes" : "no", Time(user, "created")});
  }
  return table.Render();
}

std::string TokenTable(const Value::List& tokens, double now) {
  TextTable table({{"ID"}, {"NAME"}, {"USER"}, {"EXPIRES"}, {"LAST USED", Align::kRight}});
  for (const Value& token : tokens) {
    const std::string used = Ago(token, "last_used", now);
    table.AddRow({Printable(TextIn(token, "id")), Printable(TextIn(token, "name")),
                  Printable(TextIn(token, "user")), Time(token, "expires"),
                  used.empty() ? "" : used + " ago"});
  }
  return table.Render();
}

}  // namespace cairn::cli
