#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include <cairn/scope.h>

namespace cairn {

/// A small program for tests: a layer with its bias, the optimizer's slots, a counter, a temporary.
inline void BuildProgram(Scope* scope, const std::string& prefix = "fc/") {
  ASSERT_TRUE(scope->Parameter(prefix + "w", DType::kF32, {3, 4}).ok());
  ASSERT_TRUE(scope->Parameter(prefix + "b", DType::kF32, {4}).ok());
  ASSERT_TRUE(scope->Parameter("out.w", DType::kF32, {4, 2}).ok());
  ASSERT_TRUE(scope->Persistable(prefix + "w_velocity", DType::kF32, {3, 4}).ok());
  ASSERT_TRUE(scope->Persistable(prefix + "b_velocity", DType::kF32, {4}).ok());
  ASSERT_TRUE(scope->Persistable("step", DType::kI64, {}).ok());
  ASSERT_TRUE(scope->Temporary("hidden", DType::kF32, {2, 4}).ok());
}

/// Gives every byte of every variable a value of its own.
inline void FillProgram(Scope* scope, int start) {
  for (const Variable& variable : scope->Vars()) {
    for (std::byte& byte : scope->MutableBytes(variable.name).value()) {
      byte = static_cast<std::byte>(start++ * 37);
    }
  }
}

/// All bytes by name: for seeing that nothing changed.
inline std::map<std::string, std::vector<std::byte>> Memory(const Scope& scope) {
  std::map<std::string, std::vector<std::byte>> memory;
  for (const Variable& variable : scope.Vars()) {
    memory[variable.name].assign(variable.data.get(), variable.data.get() + variable.bytes);
  }
  return memory;
}

}  // namespace cairn
