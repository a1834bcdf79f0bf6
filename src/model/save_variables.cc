// Saves by role: a checkpoint whose files the caller chose, made by the committer that imports and
// copies use (checkpoint/transfer.cc has the steps). The save before it is removed only when the
// new one is durable.

#include "model/save_variables.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <cairn/io.h>

#include "base/log.h"
#include "base/status_macros.h"
#include "checkpoint/checkpoint_path.h"
#include "checkpoint/manager.h"
#include "checkpoint/names.h"
#include "checkpoint/removal.h"
#include "checkpoint/transfer.h"
#include "format/json.h"
#include "format/safetensors.h"
#include "model/variable_record.h"
#include "storage/store.h"

namespace cairn {
namespace {

constexpr std::string_view kSafetensors = ".safetensors";

/// A variable's memory, which nobody changes during the save.
class MemorySource final : public TensorSource {
 public:
  explicit MemorySource(const void* data) : data_(static_cast<const std::byte*>(data)) {}
  Status Fill(std::uint64_t offset, std::span<std::byte> into) override {
    std::memcpy(into.data(), data_ + offset, into.size());
    return Status::Ok();
  }

 private:
  const std::byte* const data_;
};

Status CheckVariable(const VariableView& variable) {
  if (variable.name.empty()) return InvalidArgumentError("a variable needs a name");
  if (!IsValidUtf8(variable.name)) {
    return InvalidArgumentError("the name " + QuoteForMessage(variable.name) + " is not UTF-8");
  }
  const std::string what = "variable " + QuoteForMessage(variable.name);
  if (variable.role == Role::kTemporary) {
    return InvalidArgumentError(what + " is a temporary, which is never saved; leave it out");
  }
  const auto bytes = TensorBytes(variable.dtype, variable.shape);
  if (!bytes.ok()) return bytes.status().WithContext(what);
  if (*bytes > 0 && variable.data == nullptr) return InvalidArgumentError(what + " has no memory");
  return Status::Ok();
}

/// The variables by name. Refuses an empty selection and what cannot be saved.
Result<std::map<std::string, const VariableView*>> Sorted(std::span<const VariableView> variables) {
  if (variables.empty()) {
    return InvalidArgumentError(
        "no variable was selected, so there is nothing to save; list_vars shows what the program "
        "has");
  }
  std::map<std::string, const VariableView*> sorted;
  for (const VariableView& variable : variables) {
    RETURN_IF_ERROR(CheckVariable(variable));
    if (!sorted.emplace(variable.name, &variable).second) {
      return InvalidArgumentError("two variables are called " + QuoteForMessage(variable.name));
    }
  }
  return sorted;
}

/// "params" → "params.safetensors".
Result<std::string> SingleFileName(const std::string& filename) {
  std::string name =
      filename.ends_with(kSafetensors) ? filename : filename + std::string(kSafetensors);
  if (name.find('/') != name.npos || name.starts_with('.') || !IsValidUtf8(name) ||
      !ValidateObjectName(name).ok()) {
    return InvalidArgumentError("filename " + QuoteForMessage(filename) +
                                ": a plain name is wanted, without '/' and not hidden");
  }
  return name;
}

Status AddFile(const std::string& name, std::span<const VariableView* const> variables,
               IncomingFiles* files) {
  // Multiples of 4 KiB first: they then all stand aligned.
  std::vector<std::pair<std::uint64_t, const VariableView*>> sized;
  for (const VariableView* variable : variables) {
    ASSIGN_OR_RETURN(const std::uint64_t bytes, TensorBytes(variable->dtype, variable->shape));
    sized.emplace_back(bytes, variable);
  }
  std::stable_partition(sized.begin(), sized.end(),
                        [](const auto& one) { return one.first % kSafetensorsAlign == 0; });
  std::vector<TensorEntry> entries;
  std::vector<std::unique_ptr<TensorSource>> sources;
  std::uint64_t end = 0;
  for (const auto& [bytes, variable] : sized) {
    entries.push_back({variable->name, variable->dtype, variable->shape, end, end + bytes});
    sources.push_back(std::make_unique<MemorySource>(variable->data));
    end += bytes;
  }
  ASSIGN_OR_RETURN(std::string head, EncodeSafetensorsHeader(entries, {{"format", "cairn"}}));
  files->AddTensors(names::Path(names::kModel, name), std::string(kVariablesParticipant),
                    std::move(head), entries, std::move(sources));
  return Status::Ok();
}

Status AddFiles(const std::map<std::string, const VariableView*>& sorted,
                const SaveVarsOptions& options, IncomingFiles* files) {
  VariableRoles roles;
  VariableMeanings meanings;
  std::vector<const VariableView*> all;
  for (const auto& [name, variable] : sorted) {
    roles.emplace(name, variable->role);
    all.push_back(variable);
    const auto meaning = options.meanings.find(name);
    if (meaning != options.meanings.end()) meanings.insert(*meaning);
  }
  if (!options.filename.empty()) {
    ASSIGN_OR_RETURN(const std::string name, SingleFileName(options.filename));
    RETURN_IF_ERROR(AddFile(name, all, files));
  } else {
    for (const VariableView* variable : all) {
      RETURN_IF_ERROR(AddFile(VariableFileName(variable->name), {&variable, 1}, files));
    }
  }
  files->AddBytes(names::Path(kVariablesParticipant, kVariablesFile),
                  std::string(kVariablesParticipant), EncodeVariableRoles(roles, &meanings));
  return Status::Ok();
}

/// A text of a checkpoint's metadata; "" where there is none.
std::string MetadataText(const Checkpoint& checkpoint, std::string_view key) {
  const Value* value = checkpoint.manifest->metadata.Find(key);
  const std::string* text = value == nullptr ? nullptr : value->if_string();
  return text == nullptr ? "" : *text;
}

/// A directory of checkpoints that a job made is not a place for saves: they would be removed. Nor
/// are saves of another content: a model is no newer version of the variables.
Status CheckOwnSaves(const std::string& directory, const std::vector<Checkpoint>& checkpoints,
                     std::string_view content) {
  for (const Checkpoint& checkpoint : checkpoints) {
    if (MetadataText(checkpoint, "writer") == kVariablesWriter) {
      const std::string other = MetadataText(checkpoint, "content");
      if (other == content) continue;
      const bool model = other == kInferenceContent;
      return InvalidArgumentError(fmt::format(
          "\"{}\" holds {}, which a save of {} would replace; use another directory", directory,
          model ? "an inference model" : "saved variables", model ? "variables" : "a model"));
    }
    return InvalidArgumentError(fmt::format(
        "\"{}\" holds the checkpoints of a job (step {}), which a save of variables would replace; "
        "use another directory",
        directory, checkpoint.manifest->step));
  }
  return Status::Ok();
}

void RemoveOlder(const Environment& env, const Generation& generation,
                 const std::vector<Checkpoint>& older) {
  for (const Checkpoint& checkpoint : older) {
    if (checkpoint.pinned) continue;
    const Status removed = RemoveCheckpoint(env, generation, checkpoint, {}).status();
    // The new save is durable and the latest: what stays costs room, and the next save tries again.
    if (!removed.ok()) LogWarning("removing an older save: " + removed.ToString());
  }
}

}  // namespace

Result<SavedVars> SaveVarsTo(const Environment& env, const std::string& directory,
                             std::span<const VariableView> variables,
                             const SaveVarsOptions& options) {
  ASSIGN_OR_RETURN(const auto sorted, Sorted(variables));
  IncomingFiles files;
  RETURN_IF_ERROR(AddFiles(sorted, options, &files));
  SavedVars report;
  for (const auto& [name, variable] : sorted) {
    report.names.push_back(name);
    ASSIGN_OR_RETURN(const std::uint64_t bytes, TensorBytes(variable->dtype, variable->shape));
    report.bytes += bytes;
  }
  ASSIGN_OR_RETURN(report.info,
                   CommitOnlySave(env, directory, std::move(files), "variables", options.control));
  return report;
}

Result<CheckpointInfo> CommitOnlySave(const Environment& env, const std::string& directory,
                                      IncomingFiles files, std::string_view content,
                                      const TransferControl& control) {
  // Before anything is opened: a training that lives there is not to be fenced out.
  RepositoryReader reader(env.store.get());
  const auto before = reader.Read();
  if (before.ok()) {
    std::vector<Checkpoint> counting = before->checkpoints;
    std::erase_if(counting, [](const Checkpoint& checkpoint) { return !checkpoint.counts; });
    RETURN_IF_ERROR(CheckOwnSaves(directory, counting, content));
  } else if (!before.status().Is(Code::kNotFound)) {
    return before.status();
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<Generation> generation, OpenBriefly(env, {}));
  RETURN_IF_ERROR(CheckOwnSaves(directory, generation->sealed(), content));
  ASSIGN_OR_RETURN(const std::unique_ptr<IncomingCommitter> committer,
                   IncomingCommitter::Open(env, generation.get()));
  Manifest manifest;
  manifest.id = env.ids->NewUuid();
  manifest.time = env.clock->WallNanos();
  manifest.participants = {std::string(kVariablesParticipant)};
  manifest.metadata = Value::Object{{"writer", kVariablesWriter}, {"content", content}};
  if (const Checkpoint* latest = committer->Latest()) {
    manifest.step = latest->manifest->step + 1;
    manifest.parent = latest->manifest->id;
  }
  const std::string wish = names::CheckpointDirectory(false, false, manifest.step, 1);
  ASSIGN_OR_RETURN(const Checkpoint committed,
                   committer->Commit(std::move(manifest), wish, std::move(files),
                                     /*rebuild_index=*/true, control));
  RemoveOlder(env, *generation, generation->sealed());
  return MakeInfo(*env.store, committed);
}

std::vector<VariableView> ViewsOf(std::span<const Variable> variables,
                                  const VariablePredicate& wanted) {
  std::vector<VariableView> views;
  for (const Variable& variable : variables) {
    if (wanted && !wanted(variable)) continue;
    // Whoever loads looks at read_only.
    views.push_back({variable.name, variable.role, variable.dtype, variable.shape,
                     const_cast<std::byte*>(variable.data.get()), variable.frozen});
  }
  return views;
}

std::vector<VariableView> SelectVars(const Scope& scope, const VariablePredicate& wanted) {
  return ViewsOf(scope.Vars(), wanted);
}

Result<SavedVars> SaveVars(const std::string& directory, std::span<const VariableView> variables,
                           const SaveVarsOptions& options) {
  RETURN_IF_ERROR(CheckPath(directory));
  // What is wrong with the variables is said before a directory is made.
  RETURN_IF_ERROR(Sorted(variables).status());
  if (!options.filename.empty()) RETURN_IF_ERROR(SingleFileName(options.filename).status());
  ASSIGN_OR_RETURN(const Environment env, EnvironmentAt(directory, {.create = true}));
  auto saved = SaveVarsTo(env, directory, variables, options);
  if (!saved.ok()) return saved.status().WithContext("save variables into \"" + directory + "\"");
  return saved;
}

Result<SavedVars> SaveVars(const std::string& directory, const Scope& scope,
                           const VariablePredicate& wanted, const SaveVarsOptions& options) {
  // The variables' memory lives as long as these copies, whatever is done to the scope meanwhile.
  const std::vector<Variable> held = scope.Vars();
  return SaveVars(directory, ViewsOf(held, wanted), options);
}

Result<SavedVars> SaveParams(const std::string& directory, const Scope& scope,
                             const SaveVarsOptions& options) {
  return SaveVars(
      directory, scope, [](const Variable& v) { return v.role == Role::kParameter; }, options);
}

Result<SavedVars> SavePersistables(const std::string& directory, const Scope& scope,
                                   const SaveVarsOptions& options) {
  return SaveVars(
      directory, scope, [](const Variable& v) { return v.role != Role::kTemporary; }, options);
}

}  // namespace cairn
