// cairn experiment create and continue: what begins a training, and what follows it.

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "base/ids.h"
#include "base/status_macros.h"
#include "cli/experiment_commands.h"
#include "cli/experiment_tables.h"
#include "cli/output.h"
#include "format/json.h"
#include "format/yaml_scalar.h"
#ifdef CAIRN_WITH_MASTER
#include "master/code_archive.h"
#endif

namespace cairn::cli {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

constexpr milliseconds kLook{500};
constexpr int kInterrupted = 130;  // as shells tell of Ctrl-C

/// The configs that lie in a directory, as a command line names them.
std::vector<std::string> ConfigsIn(const std::string& directory) {
  std::vector<std::string> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    const std::string suffix = entry.path().extension();
    if (suffix == ".yaml" || suffix == ".yml") {
      found.push_back((fs::path(directory) / entry.path().filename()).string());
    }
  }
  std::ranges::sort(found);
  return found;
}

/// Says what is wrong with CONFIG and DIR before anybody is asked to read them.
Status CheckPlaces(const std::string& config, const std::string& directory) {
  std::error_code error;
  const bool swapped = fs::is_directory(config, error);
  if (swapped && fs::is_regular_file(directory, error)) {
    return InvalidArgumentError(
        fmt::format("\"{0}\" is a directory and \"{1}\" a file: the config comes first, `cairn e "
                    "create {1} {0}`",
                    config, directory));
  }
  if (swapped) {
    const std::vector<std::string> found = ConfigsIn(config);
    return InvalidArgumentError(fmt::format(
        "\"{}\" is a directory where the config belongs: name the YAML file, then the directory of "
        "code, `cairn e create {} {}`{}",
        config, found.empty() ? "config.yaml" : found.front(), directory,
        found.size() > 1
            ? fmt::format(
                  " (or {})",
                  fmt::join(found.begin() + 1,
                            found.begin() + std::min<std::ptrdiff_t>(std::ssize(found), 5), ", "))
            : ""));
  }
  if (!fs::exists(config, error)) {
    return NotFoundError(fmt::format("there is no config \"{}\": name the YAML file", config));
  }
  if (!directory.empty() && !fs::is_directory(directory, error)) {
    return InvalidArgumentError(fmt::format(
        "\"{}\" is {}: the second argument is the directory whose files the training needs",
        directory, fs::exists(directory, error) ? "a file, not a directory" : "not there"));
  }
  return Status::Ok();
}

Result<std::string> ReadConfig(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  std::error_code error;
  if (fs::file_size(path, error) == 0) {
    return InvalidArgumentError(fmt::format(
        "the config \"{}\" is empty: it needs at least an entrypoint, the command that trains",
        path));
  }
  if (!in) return NotFoundError(fmt::format("cannot read the config \"{}\"", path));
  if (!IsValidUtf8(text.view())) {
    return InvalidArgumentError(
        fmt::format("the config \"{}\" is not UTF-8: save it as UTF-8", path));
  }
  return std::move(text).str();
}

Result<std::string> Pack(const std::string& directory) {
#ifdef CAIRN_WITH_MASTER
  return master::PackCode(directory);
#else
  (void)directory;
  return UnimplementedError(
      "this build of Cairn cannot pack code: install libarchive-dev and what else the master "
      "needs, "
      "and build it again");
#endif
}

bool AtRest(std::string_view state) { return state == "PAUSED" || HasEnded(state); }

/// What may be done next, for people.
std::string Advice(const std::string& id, const std::string& state, bool checkpoints) {
  if (state == "PAUSED") return fmt::format("go on with `cairn e activate {}`", id);
  if (state == "COMPLETED" && !checkpoints) {
    return fmt::format(
        "it saved no checkpoints; what it said: `cairn e logs {0}`, `cairn e show {0}`", id);
  }
  if (state == "COMPLETED") {
    return fmt::format("begin a new training with its weights: `cairn e continue {} --new`", id);
  }
  if (state == "ERROR" && !checkpoints) {
    return fmt::format(
        "see `cairn e logs {0}`; mend it and create it again, or begin the same again: `cairn e "
        "continue {0}`",
        id);
  }
  if (state == "ERROR") {
    return fmt::format(
        "see `cairn e logs {0}`; go on from its last checkpoint: `cairn e continue {0}`", id);
  }
  return fmt::format("go on with `cairn e continue {}`", id);
}

struct Looked {
  Value experiment;
  std::string trial_state;  // of its first trial
};

/// The experiment as it is; finds its first trial when there is one.
Result<Looked> Look(MasterClient* master, const std::string& id, Value* first) {
  Looked looked;
  ASSIGN_OR_RETURN(looked.experiment, master->Get(ExperimentPath(id)));
  if (first->is_null()) {
    ASSIGN_OR_RETURN(const Value page,
                     master->Get(ExperimentPath(id, "/trials"), {{"limit", "1"}}));
    if (ListIn(page, "trials").empty()) return looked;
    *first = ListIn(page, "trials").front();
  }
  ASSIGN_OR_RETURN(const Value trial, master->Get(TrialPath(TextIn(*first, "id"))));
  looked.trial_state = TextIn(trial, "state");
  return looked;
}

Output Ended(const Value& experiment) {
  const std::string id = TextIn(experiment, "id");
  const std::string state = TextIn(experiment, "state");
  const std::string message = TextIn(experiment, "message");
  Output output;
  output.text = fmt::format("experiment {} is {}{}: {}\n", id, state,
                            message.empty() ? "" : " (" + Printable(message) + ")",
                            Advice(id, state, IntIn(experiment, "checkpoints") > 0));
  output.json = experiment;
  output.exit_code = state == "ERROR" || state == "CANCELED" ? 1 : 0;
  return output;
}

/// The last line that its first trial wrote; -1: none, or nobody can tell now.
std::int64_t LastLine(MasterClient* master, const std::string& experiment) {
  const auto trials = master->Get(ExperimentPath(experiment, "/trials"), {{"limit", "1"}});
  if (!trials.ok() || ListIn(*trials, "trials").empty()) return -1;
  const std::string trial = TextIn(ListIn(*trials, "trials").front(), "id");
  const auto page = master->Get(TrialPath(trial, "/logs"), {{"tail", "1"}});
  if (!page.ok() || ListIn(*page, "lines").empty()) return -1;
  return IntIn(ListIn(*page, "lines").back(), "id", -1);
}

/// `position`: the last line that is not to be shown.
Result<Output> Created(MasterClient* master, const Value& experiment, bool follow,
                       const std::string& line, std::int64_t position, Console* console) {
  const std::string id = TextIn(experiment, "id");
  if (follow) {
    console->Note(line);
    return FollowExperiment(master, id, {}, console, position);
  }
  Output output;
  output.text = line + "\n" + fmt::format("follow it with `cairn e logs -f {}`\n", id);
  output.json = experiment;
  return output;
}

}  // namespace

Result<Value> ParseOverrides(const std::vector<std::string>& assignments) {
  Value::Object root;
  for (const std::string& assignment : assignments) {
    const std::size_t equals = assignment.find('=');
    if (equals == std::string::npos || equals == 0) {
      return InvalidArgumentError(
          fmt::format("--config takes KEY=VALUE (hyperparameters.lr=0.1), not \"{}\"", assignment));
    }
    const std::string text = assignment.substr(equals + 1);
    auto parsed = DecodeJson(text);
    // What JSON does not know is what it would be in the file: `True` is no text.
    Value value = parsed.ok() ? *std::move(parsed) : text.empty() ? Value(text) : YamlScalar(text);
    std::string_view keys = std::string_view(assignment).substr(0, equals);
    Value::Object* object = &root;
    for (;;) {
      const std::size_t point = keys.find('.');
      const std::string key(keys.substr(0, point));
      if (key.empty()) {
        return InvalidArgumentError(fmt::format("--config {}: a key is empty", assignment));
      }
      if (point == keys.npos) {
        (*object)[key] = std::move(value);
        break;
      }
      Value& below = (*object)[key];
      if (!below.is_object()) below = Value::Object{};
      object = below.if_object();
      keys.remove_prefix(point + 1);
    }
  }
  return Value(std::move(root));
}

Result<Output> CreateExperiment(const CreateOptions& options, Console* console) {
  RETURN_IF_ERROR(CheckPlaces(options.config, options.directory));
  ASSIGN_OR_RETURN(const std::string config, ReadConfig(options.config));
  ASSIGN_OR_RETURN(const Value overrides, ParseOverrides(options.overrides));
  console->CatchInterrupts();
  ASSIGN_OR_RETURN(const auto master, MasterClient::Open(options.master, console));
  Value::Object body{{"config", config}, {"request_id", IdSource::System()->NewUuid()}};
  if (!options.overrides.empty()) body["overrides"] = overrides;
  if (options.paused) body["paused"] = true;
  if (options.validate) body["validate_only"] = true;
  if (!options.directory.empty() && !options.validate) {
    ASSIGN_OR_RETURN(const std::string archive, Pack(options.directory));
    ASSIGN_OR_RETURN(const Value code, master->Upload("/api/v1/code", archive, "application/gzip"));
    body["code"] = TextIn(code, "code");
  }
  ASSIGN_OR_RETURN(const Value experiment,
                   master->Send("POST", "/api/v1/experiments", Value(std::move(body))));
  if (options.validate) {
    Output output;
    const Value* most = experiment.Find("searcher/max_trials");
    output.text = fmt::format(
        "{} is a config for {}\n", Printable(options.config),
        Counted(static_cast<std::uint64_t>(most == nullptr ? 1 : most->AsInt(1)), "trial"));
    output.json = experiment;
    return output;
  }
  const std::string name = TextIn(experiment, "name");
  const std::string line = fmt::format(
      "created experiment {}{}: {}/#/experiments/{}", TextIn(experiment, "id"),
      name.empty() || name == "experiment " + TextIn(experiment, "id") ? ""
                                                                       : fmt::format(" ({})", name),
      master->url(), TextIn(experiment, "id"));
  return Created(master.get(), experiment, options.follow, line, -1, console);
}

Result<Output> Continue(const ContinueOptions& options, bool trial, Console* console) {
  ASSIGN_OR_RETURN(const Value overrides, ParseOverrides(options.overrides));
  if (!options.overrides.empty() && !options.as_new) {
    return InvalidArgumentError(
        "--config is for --new: a trial that goes on keeps the config it was begun with");
  }
  console->CatchInterrupts();
  ASSIGN_OR_RETURN(const auto master, MasterClient::Open(options.master, console));
  Value::Object body{{"new", options.as_new}, {"request_id", IdSource::System()->NewUuid()}};
  if (!options.from.empty()) body["from"] = options.from;
  if (!options.overrides.empty()) body["config"] = overrides;
  const std::string path =
      trial ? TrialPath(options.id, "/continue") : ExperimentPath(options.id, "/continue");
  // What it wrote before is not what it does now.
  std::int64_t position = -1;
  if (options.follow && !options.as_new) {
    std::string of = options.id;
    if (trial) {
      ASSIGN_OR_RETURN(const Value known, master->Get(TrialPath(options.id)));
      of = TextIn(known, "experiment");
    }
    position = LastLine(master.get(), of);
  }
  ASSIGN_OR_RETURN(const Value experiment, master->Send("POST", path, Value(std::move(body))));
  const std::string id = TextIn(experiment, "id");
  const std::string line =
      options.as_new ? fmt::format("created experiment {}, which begins with weights of {} {}", id,
                                   trial ? "trial" : "experiment", options.id)
                     : fmt::format("experiment {} goes on", id);
  return Created(master.get(), experiment, options.follow, line, position, console);
}

Result<Output> FollowExperiment(MasterClient* master, const std::string& id,
                                const LogSelection& selection, Console* console,
                                std::int64_t position) {
  console->CatchInterrupts();
  bool followed = false;
  bool told = false;
  Value first;
  while (!Console::interrupted()) {
    const auto look = Look(master, id, &first);
    if (!look.ok() && look.status().Is(Code::kCancelled)) break;
    if (!look.ok() && !look.status().Is(Code::kUnavailable)) return look.status();
    if (look.ok()) {
      // Also when it has ended: its lines are still to be shown.
      if (!first.is_null() && (!followed || !AtRest(look->trial_state))) {
        const auto state = FollowLogs(master, first, selection, &position, console);
        if (!state.ok() && state.status().Is(Code::kCancelled)) break;
        if (!state.ok()) return state.status();
        followed = true;
        continue;
      }
      if (AtRest(TextIn(look->experiment, "state"))) return Ended(look->experiment);
      if (followed && !told && IntIn(look->experiment, "trials") > 1) {
        console->Note("its first trial is over and others go on; waiting (Ctrl-C detaches)");
        told = true;
      }
    }
    console->clock()->Sleep(kLook);
  }
  console->Note(fmt::format(
      "detached: experiment {0} goes on. Re-attach with `cairn e logs -f {0}`, pause it "
      "with `cairn e pause {0}`, end it with `cairn e cancel {0}`",
      id));
  Output output;
  output.json = Value::Object{{"id", id}, {"detached", true}};
  output.exit_code = kInterrupted;
  return output;
}

}  // namespace cairn::cli
