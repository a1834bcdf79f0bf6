// Loads by role. Both ways (a checkpoint, a foreign file) compare everything and verify everything
// before the first byte of a variable changes.

#include <fmt/format.h>

#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <cairn/io.h>

#include "base/status_macros.h"
#include "checkpoint/checkpoint_path.h"
#include "checkpoint/names.h"
#include "format/json.h"
#include "format/safetensors.h"
#include "model/foreign/foreign_file.h"
#include "model/match_variables.h"
#include "model/save_variables.h"
#include "model/variable_record.h"

namespace cairn {
namespace {

constexpr std::string_view kNotAParameter = "not a parameter";
constexpr std::string_view kFrozen =
    "a frozen scope (a clone for testing) cannot be loaded into; load into the scope that it was "
    "cloned from";

/// What is wrong with the request whatever is stored.
Status CheckRequest(std::span<const VariableView> variables, const LoadVarsOptions& options) {
  if (variables.empty()) {
    return InvalidArgumentError(
        "no variable was selected, so there is nothing to load; list_vars shows what the program "
        "has");
  }
  std::set<std::string_view> names;
  for (const VariableView& variable : variables) {
    if (variable.read_only) {
      return FailedPreconditionError("variable " + QuoteForMessage(variable.name) + ": " +
                                     std::string(kFrozen));
    }
    const auto bytes = TensorBytes(variable.dtype, variable.shape);
    if (!bytes.ok()) {
      return bytes.status().WithContext("variable " + QuoteForMessage(variable.name));
    }
    if (*bytes > 0 && variable.data == nullptr) {
      return InvalidArgumentError("variable " + QuoteForMessage(variable.name) + " has no memory");
    }
    if (!names.insert(variable.name).second) {
      return InvalidArgumentError("two variables are called " + QuoteForMessage(variable.name));
    }
  }
  for (const auto& [stored, target] : options.rename) {
    if (names.contains(target) || options.skip.contains(target)) continue;
    return InvalidArgumentError(
        fmt::format("rename: {} would become {}, which is not among the "
                    "variables to load",
                    QuoteForMessage(stored), QuoteForMessage(target)));
  }
  return Status::Ok();
}

/// "" for plain numbers, as state.json notes what else there is (docs/format/state.md).
std::string MeaningOf(const Value& tensor) {
  const auto text = [&](std::string_view member) {
    const Value* value = tensor.Find(member);
    const std::string* found = value == nullptr ? nullptr : value->if_string();
    return found == nullptr ? std::string() : *found;
  };
  if (std::string complex = text("complex"); !complex.empty()) return complex;
  if (const std::string typecode = text("typecode"); !typecode.empty()) {
    return "array('" + typecode + "')";
  }
  const std::string np = text("np");  // "<M8[D]"
  if (np.size() < 3 || np[2] != '8' || (np[1] != 'M' && np[1] != 'm')) return "";
  return (np[1] == 'M' ? "datetime64" : "timedelta64") + np.substr(3);
}

/// Adds the tensors of a state, wherever in it they stand.
void AddMeanings(const Value& node, VariableMeanings* meanings) {
  if (const Value::List* items = node.if_list()) {
    for (const Value& item : *items) AddMeanings(item, meanings);
  }
  const Value::Object* members = node.if_object();
  if (members == nullptr) return;
  const Value* tensor = node.Find("tensor");
  const Value* name = tensor == nullptr ? nullptr : tensor->Find("name");
  if (members->size() == 1 && name != nullptr && name->if_string() != nullptr) {
    meanings->emplace(*name->if_string(), MeaningOf(*tensor));
    return;
  }
  for (const auto& [key, value] : *members) AddMeanings(value, meanings);
}

/// Of the variables that a record speaks of.
Result<VariableMeanings> StoredMeanings(const std::map<std::string, std::string>& files) {
  const auto record = files.find(std::string(kVariablesFile));
  if (record != files.end()) {
    auto meanings = DecodeVariableMeanings(record->second);
    if (!meanings.ok()) return meanings.status().WithContext(std::string(kVariablesFile));
    return std::move(*meanings).value_or(VariableMeanings());
  }
  VariableMeanings meanings;
  const auto state = files.find("state.json");  // a Python program's checkpoint
  if (state == files.end()) return meanings;
  const auto decoded = DecodeJson(state->second);
  if (decoded.ok()) AddMeanings(*decoded, &meanings);
  return meanings;
}

/// One load out of a checkpoint.
class CheckpointLoad {
 public:
  CheckpointLoad(std::span<const VariableView> variables, const LoadVarsOptions& options)
      : options_(options) {
    request_.atomic = true;
    request_.strict = options.strict;
    request_.partial = options.stored == StoredVars::kAsked;
    request_.rename = options.rename;
    request_.skip = options.skip;
    request_.mismatch = options.mismatch;
    request_.progress = options.control.progress;
    request_.cancelled = options.control.cancelled;
    for (const VariableView& variable : variables) {
      request_.into.push_back({.name = variable.name,
                               .dtype = variable.dtype,
                               .shape = variable.shape,
                               .data = variable.data});
    }
    request_.prepare = [this](const Restored& head, RestoreRequest* request) -> Status {
      if (options_.stored == StoredVars::kParameters) {
        RETURN_IF_ERROR(PassOverPersistables(head, request));
      }
      return CompareMeanings(head, request);
    };
  }

  Result<LoadedVars> FromRepository(const std::string& path) {
    ASSIGN_OR_RETURN(const auto manager,
                     CheckpointManager::Open({.directory = path, .read_only = true}));
    Status gone;  // what became of the save that was tried
    std::string tried;
    while (true) {
      ASSIGN_OR_RETURN(const auto latest, manager->Latest());
      if (latest && latest->id == tried) return gone;
      RestoreRequest request = request_;
      // By id: a damaged save is an error here, never a reason to load an older one in silence.
      // Without any that is whole, Restore says what is wrong with those there are.
      if (latest) request.id = latest->id;
      auto restored = manager->Restore(std::move(request));
      if (restored.status().Is(Code::kNotFound) && latest) {
        // A newer save may have taken its place meanwhile, and is then the one to load.
        gone = restored.status();
        tried = latest->id;
        continue;
      }
      if (!restored.ok()) return restored.status();
      if (!*restored) return NotFoundError("there is no complete save yet");
      return Report(**std::move(restored));
    }
  }

  Result<LoadedVars> FromDirectory(const std::string& path) {
    request_.path = path;
    ASSIGN_OR_RETURN(Restored restored,
                     LoadCheckpoint(request_, std::string(kVariablesParticipant)));
    return Report(std::move(restored));
  }

 private:
  /// Persistables that are stored beside the parameters are no mismatch. Where roles are not
  /// recorded (a trainer's checkpoint) nothing that nobody asked for is.
  Status PassOverPersistables(const Restored& head, RestoreRequest* request) {
    const auto record = head.state_files.find(std::string(kVariablesFile));
    if (record == head.state_files.end()) {
      request->partial = true;
      return Status::Ok();
    }
    auto roles = DecodeVariableRoles(record->second);
    if (!roles.ok()) return roles.status().WithContext(std::string(kVariablesFile));
    std::set<std::string_view> asked;
    for (const MutableTensor& target : request->into) asked.insert(target.name);
    for (const auto& [name, role] : *roles) {
      const auto renamed = options_.rename.find(name);
      const std::string& target = renamed == options_.rename.end() ? name : renamed->second;
      if (role == Role::kParameter || asked.contains(target)) continue;
      if (request->skip.insert(name).second) passed_over_.insert(name);
    }
    return Status::Ok();
  }

  /// Bytes of the same dtype and shape may stand for something else: pairs of floats for complex
  /// numbers, integers for dates.
  Status CompareMeanings(const Restored& head, RestoreRequest* request) {
    ASSIGN_OR_RETURN(const VariableMeanings stored, StoredMeanings(head.state_files));
    std::map<std::string_view, std::string_view> stored_as;
    for (const auto& [name, target] : options_.rename) stored_as.emplace(target, name);
    MismatchReport report;
    std::erase_if(request->into, [&](const MutableTensor& target) {
      const auto renamed = stored_as.find(target.name);
      const std::string name(renamed == stored_as.end() ? target.name : renamed->second);
      const auto meaning = stored.find(name);
      if (meaning == stored.end() || request->skip.contains(name) ||
          request->skip.contains(target.name)) {
        return false;
      }
      const std::string why = DifferentMeaning(meaning->second, target.name, options_);
      if (why.empty()) return false;
      report.mismatched.push_back(target.name + ": " + why);
      request->skip.insert(name);
      of_another_meaning_[name] = why;
      return true;
    });
    if (report.mismatched.empty() || !options_.strict) return Status::Ok();
    const std::string message = fmt::format(
        "the variables do not match; {} of another type: {}. Nothing was changed; "
        "rename, skip or strict=false load the rest",
        report.mismatched.size(), fmt::join(report.mismatched, ", "));
    if (options_.mismatch != nullptr) *options_.mismatch = std::move(report);
    return MismatchError(message);
  }

  Result<LoadedVars> Report(Restored restored) const {
    LoadedVars report;
    report.info = std::move(restored.info);
    report.names = std::move(restored.restored);
    report.bytes = restored.bytes;
    report.skipped = std::move(restored.skipped);
    for (auto& [name, reason] : report.skipped) {
      if (passed_over_.contains(name)) reason = kNotAParameter;
      const auto why = of_another_meaning_.find(name);
      if (why != of_another_meaning_.end()) reason = why->second;
    }
    if (!report.names.empty()) return report;
    return MismatchError("none of the variables is stored there under its name; nothing changed");
  }

  const LoadVarsOptions& options_;
  RestoreRequest request_;
  std::set<std::string> passed_over_;
  std::map<std::string, std::string> of_another_meaning_;  // stored name → why
};

Result<LoadedVars> LoadForeign(const std::string& path, std::span<const VariableView> variables,
                               const LoadVarsOptions& options) {
  ASSIGN_OR_RETURN(const ForeignFile file,
                   ForeignFile::Open({path, options.format, options.names}));
  LoadedVars report;
  report.info.path = path;
  ASSIGN_OR_RETURN(const std::vector<VariableMatch> matches,
                   MatchVariables(file.tensors(), variables, options, &report.skipped));
  for (const auto& [tensor, variable] : matches) {
    const std::span<const std::byte> bytes = file.tensors()[tensor].Bytes();
    if (!bytes.empty()) std::memcpy(variables[variable].data, bytes.data(), bytes.size());
    report.names.push_back(variables[variable].name);
    report.bytes += bytes.size();
  }
  return report;
}

Result<LoadedVars> LoadFrom(const std::string& path, std::span<const VariableView> variables,
                            const LoadVarsOptions& options) {
  ASSIGN_OR_RETURN(const bool repository, IsRepository(path));
  if (repository) return CheckpointLoad(variables, options).FromRepository(path);
  if (IsCheckpointDirectory(path)) return CheckpointLoad(variables, options).FromDirectory(path);
  if (options.filename.empty()) return LoadForeign(path, variables, options);
  return LoadForeign(path + (path.ends_with('/') ? "" : "/") + options.filename, variables,
                     options);
}

}  // namespace

Result<LoadedVars> LoadVars(const std::string& path, std::span<const VariableView> variables,
                            const LoadVarsOptions& options) {
  RETURN_IF_ERROR(CheckPath(path));
  RETURN_IF_ERROR(CheckRequest(variables, options));
  auto loaded = LoadFrom(path, variables, options);
  if (!loaded.ok()) return loaded.status().WithContext("load variables from \"" + path + "\"");
  return loaded;
}

Result<LoadedVars> LoadVars(const std::string& path, Scope* scope, const VariablePredicate& wanted,
                            const LoadVarsOptions& options) {
  if (scope->frozen()) {
    return FailedPreconditionError(std::string(kFrozen));
  }
  // The variables' memory lives as long as these copies.
  const std::vector<Variable> held = scope->Vars();
  const auto saved = [&](const Variable& variable) {
    return variable.role != Role::kTemporary && (!wanted || wanted(variable));
  };
  ASSIGN_OR_RETURN(LoadedVars report, LoadVars(path, ViewsOf(held, saved), options));
  scope->MarkLoaded(report.names);
  return report;
}

Result<LoadedVars> LoadParams(const std::string& path, Scope* scope,
                              const LoadVarsOptions& options) {
  LoadVarsOptions parameters = options;
  parameters.stored = StoredVars::kParameters;
  return LoadVars(
      path, scope, [](const Variable& v) { return v.role == Role::kParameter; }, parameters);
}

Result<LoadedVars> LoadPersistables(const std::string& path, Scope* scope,
                                    const LoadVarsOptions& options) {
  LoadVarsOptions all = options;
  all.stored = StoredVars::kAll;
  return LoadVars(path, scope, {}, all);
}

}  // namespace cairn
