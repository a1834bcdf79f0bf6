#pragma once

#include <map>
#include <optional>
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

/// What the elements of a variable stand for where the dtype does not say it: "complex64".
using VariableMeanings = std::map<std::string, std::string>;

/// Without meanings nothing is said about them.
std::string EncodeVariableRoles(const VariableRoles& roles,
                                const VariableMeanings* meanings = nullptr);
/// Corruption for damaged bytes, Unimplemented for a newer version.
Result<VariableRoles> DecodeVariableRoles(std::string_view bytes);
/// Of every variable of the record, "" for most; nullopt where the record does not say.
Result<std::optional<VariableMeanings>> DecodeVariableMeanings(std::string_view bytes);

/// The name of the file of one variable: the variable's own, with ".safetensors". What a file's
/// name cannot hold, '/' among it, is escaped as %XX, and a name that is too long is cut and made
/// unique by a hash; different variables never share a file.
std::string VariableFileName(std::string_view variable);

}  // namespace cairn
