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
#include "storage/open_store.h"

namespace cairn {
namespace {

constexpr std::string_view kNotAParameter = "not a parameter";

/// What is wrong with the request whatever is stored.
Status CheckRequest(std::span<const VariableView> variables, const LoadVarsOptions& options) {
  if (variables.empty()) {
    return InvalidArgumentError(
        "no variable was selected, so there is nothing to load; list_vars shows what the program "
        "has");
  }
  std::set<std::string_view> names;
  for (const VariableView& variable : variables) {
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
    if (options.stored == StoredVars::kParameters) {
      request_.prepare = [this](const Restored& head, RestoreRequest* request) {
        return PassOverPersistables(head, request);
      };
    }
  }

  Result<LoadedVars> FromRepository(const std::string& path) {
    ASSIGN_OR_RETURN(const auto manager,
                     CheckpointManager::Open({.directory = path, .read_only = true}));
    ASSIGN_OR_RETURN(const auto latest, manager->Latest());
    // By id: a damaged save is an error here, never a reason to load an older one in silence.
    // Without any that is whole, Restore says what is wrong with those there are.
    if (latest) request_.id = latest->id;
    ASSIGN_OR_RETURN(auto restored, manager->Restore(std::move(request_)));
    if (!restored) return NotFoundError("there is no complete save yet");
    return Report(*std::move(restored));
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

  Result<LoadedVars> Report(Restored restored) const {
    LoadedVars report;
    report.info = std::move(restored.info);
    report.names = std::move(restored.restored);
    report.bytes = restored.bytes;
    report.skipped = std::move(restored.skipped);
    for (auto& [name, reason] : report.skipped) {
      if (passed_over_.contains(name)) reason = kNotAParameter;
    }
    if (!report.names.empty()) return report;
    return MismatchError("none of the variables is stored there under its name; nothing changed");
  }

  const LoadVarsOptions& options_;
  RestoreRequest request_;
  std::set<std::string> passed_over_;
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
  if (IsRemote(path)) {
    return NotFoundError(
        "there is neither a directory of checkpoints nor a checkpoint; files of other programs are "
        "read from a local disk: copy them there first");
  }
  ASSIGN_OR_RETURN(const std::string local, LocalPath(path));
  return LoadForeign(local, variables, options);
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
    return FailedPreconditionError(
        "a frozen scope (a clone for testing) cannot be loaded into; load into the scope that it "
        "was cloned from");
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
