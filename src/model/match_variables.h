#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <cairn/io.h>

#include "model/foreign/foreign_tensor.h"

namespace cairn {

struct VariableMatch {
  std::size_t tensor = 0;    // index into the stored tensors
  std::size_t variable = 0;  // index into the variables
};

/// Which stored tensor fills which variable, by the rules of LoadVars; nothing is copied. The same
/// comparison as the engine's restore makes for checkpoints, for tensors that are in memory.
Result<std::vector<VariableMatch>> MatchVariables(
    std::span<const ForeignTensor> stored, std::span<const VariableView> variables,
    const LoadVarsOptions& options, std::vector<std::pair<std::string, std::string>>* skipped);

/// Why what is stored with this meaning ("": plain numbers) does not fit a variable; "" when it
/// does.
std::string DifferentMeaning(const std::string& stored, const std::string& variable,
                             const LoadVarsOptions& options);

}  // namespace cairn
