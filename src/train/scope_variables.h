#pragma once

#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <cairn/checkpoint_manager.h>
#include <cairn/scope.h>
#include <cairn/status.h>

namespace cairn {

/// The persistables of the scope that a training was given (null: none). Holds their memory,
/// whatever becomes of the scope's variables.
class ScopeVariables {
 public:
  /// FailedPrecondition for a frozen scope.
  static Result<ScopeVariables> Of(Scope* scope);

  const std::vector<MutableTensor>& tensors() const { return tensors_; }

  /// A checkpoint filled them, but for those that were skipped: initializers must not run now.
  void MarkLoaded(const std::vector<std::pair<std::string, std::string>>& skipped);
  /// A step is over.
  void EndIteration();

 private:
  Scope* scope_ = nullptr;
  std::vector<Variable> held_;
  std::vector<MutableTensor> tensors_;
};

}  // namespace cairn
