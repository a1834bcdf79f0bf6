#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/io.h>

#include "checkpoint/environment.h"
#include "checkpoint/transfer.h"

namespace cairn {

/// metadata.writer of the checkpoints that are saves of variables.
inline constexpr std::string_view kVariablesWriter = "cairn.io";
inline constexpr std::string_view kInferenceContent = "inference";  // else "variables"

/// SaveVars over a given store, clock and id source. `directory` is for messages.
Result<SavedVars> SaveVarsTo(const Environment& env, const std::string& directory,
                             std::span<const VariableView> variables,
                             const SaveVarsOptions& options);

/// Commits the files as the one content of a directory: saves of variables and of inference models
/// (`content`). The one before is removed when the new one is durable. InvalidArgument when the
/// directory holds a job's checkpoints.
Result<CheckpointInfo> CommitOnlySave(const Environment& env, const std::string& directory,
                                      IncomingFiles files, std::string_view content,
                                      const TransferControl& control);

/// Views of the variables that `wanted` is true for (all when it is empty).
std::vector<VariableView> ViewsOf(std::span<const Variable> variables,
                                  const VariablePredicate& wanted);

}  // namespace cairn
