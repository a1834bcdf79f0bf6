#include "train/scope_variables.h"

#include "base/status_macros.h"

namespace cairn {

Result<ScopeVariables> ScopeVariables::Of(Scope* scope) {
  ScopeVariables out;
  if (scope == nullptr) return out;
  if (scope->frozen()) {
    return FailedPreconditionError(
        "a frozen scope (a clone for testing) cannot be trained; give the one that it was cloned "
        "from");
  }
  out.scope_ = scope;
  out.held_ = scope->Vars(Role::kPersistable);
  for (const Variable& variable : out.held_) {
    ASSIGN_OR_RETURN(const std::span<std::byte> memory, scope->MutableBytes(variable.name));
    out.tensors_.push_back({.name = variable.name,
                            .dtype = variable.dtype,
                            .shape = variable.shape,
                            .data = memory.data()});
  }
  return out;
}

void ScopeVariables::MarkLoaded(const std::vector<std::pair<std::string, std::string>>& skipped) {
  if (scope_ == nullptr) return;
  std::set<std::string_view> left_out;
  for (const auto& [name, reason] : skipped) left_out.insert(name);
  std::vector<std::string> loaded;
  for (const Variable& variable : held_) {
    if (!left_out.contains(variable.name)) loaded.push_back(variable.name);
  }
  scope_->MarkLoaded(loaded);
}

void ScopeVariables::EndIteration() {
  if (scope_ != nullptr) scope_->EndIteration();
}

}  // namespace cairn
