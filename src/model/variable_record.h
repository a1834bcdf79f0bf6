#pragma once

#include <map>
#include <string>
#include <string_view>

#include <cairn/scope.h>
#include <cairn/status.h>

namespace cairn {

/// Name → role of every variable of a save. A temporary is never among them.
using VariableRoles = std::map<std::string, Role, std::less<>>;

/// The participant of a save by role, and its file that records the roles
/// (docs/format/variables.md).
inline constexpr std::string_view kVariablesParticipant = "rank_0";
inline constexpr std::string_view kVariablesFile = "variables.json";

std::string EncodeVariableRoles(const VariableRoles& roles);
/// Corruption for damaged bytes, Unimplemented for a newer version.
Result<VariableRoles> DecodeVariableRoles(std::string_view bytes);

/// The name of the file of one variable: the variable's own, with ".safetensors". What a file's
/// name cannot hold, '/' among it, is escaped as %XX, and a name that is too long is cut and made
/// unique by a hash; different variables never share a file.
std::string VariableFileName(std::string_view variable);

}  // namespace cairn
