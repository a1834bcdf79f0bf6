#include "model/variable_record.h"

#include <cstdint>
#include <utility>

#include "base/checksum.h"
#include "base/status_macros.h"
#include "format/json.h"
#include "format/member_reader.h"

namespace cairn {
namespace {

constexpr std::int64_t kVersion = 1;
// With the suffix within the 255 bytes that file systems take.
constexpr std::size_t kMaxNameBytes = 200;

bool IsPlain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-' || c == '.' || c == '@' || c == ':' || c == '+' || c == '=' || c == ',' ||
         c == '(' || c == ')' || c == '[' || c == ']';
}

}  // namespace

std::string EncodeVariableRoles(const VariableRoles& roles, const VariableMeanings* meanings) {
  // A variable a line, for people.
  std::string out = "{\n\"version\": " + std::to_string(kVersion) + ",\n\"variables\": {";
  bool first = true;
  for (const auto& [name, role] : roles) {
    out += first ? "\n" : ",\n";
    first = false;
    AppendJsonString(name, &out);
    out += ": ";
    AppendJsonString(RoleName(role), &out);
  }
  out += "\n}";
  if (meanings != nullptr) {
    out += ",\n\"meanings\": {";
    first = true;
    for (const auto& [name, meaning] : *meanings) {
      out += first ? "\n" : ",\n";
      first = false;
      AppendJsonString(name, &out);
      out += ": ";
      AppendJsonString(meaning, &out);
    }
    out += first ? "}" : "\n}";
  }
  out += "\n}\n";
  return out;
}

Result<VariableRoles> DecodeVariableRoles(std::string_view bytes) {
  auto decoded = DecodeJson(bytes);
  if (!decoded.ok()) return CorruptionError(std::string(decoded.status().message()));
  const Value::Object* members = decoded->if_object();
  if (members == nullptr) return CorruptionError("the record of the variables is no object");
  std::int64_t version = 0;
  RETURN_IF_ERROR(MemberReader(*members).Int("version", &version));
  if (version < 1) return CorruptionError("version " + std::to_string(version));
  if (version > kVersion) {
    return UnimplementedError("the record of the variables is of version " +
                              std::to_string(version) + "; a newer Cairn reads it");
  }
  const Value* variables = decoded->Find("variables");
  const Value::Object* listed = variables == nullptr ? nullptr : variables->if_object();
  if (listed == nullptr) return CorruptionError("the record has no variables");
  VariableRoles roles;
  for (const auto& [name, value] : *listed) {
    const std::string* text = value.if_string();
    const auto role = text == nullptr ? std::nullopt : RoleFromName(*text);
    if (!role || *role == Role::kTemporary || name.empty()) {
      return CorruptionError("the variable " + QuoteForMessage(name) + " has no role");
    }
    roles.emplace(name, *role);
  }
  return roles;
}

Result<std::optional<VariableMeanings>> DecodeVariableMeanings(std::string_view bytes) {
  ASSIGN_OR_RETURN(const VariableRoles roles, DecodeVariableRoles(bytes));
  ASSIGN_OR_RETURN(const Value decoded, DecodeJson(bytes));
  const Value* member = decoded.Find("meanings");
  if (member == nullptr) return std::optional<VariableMeanings>();
  const Value::Object* listed = member->if_object();
  if (listed == nullptr) return CorruptionError("the meanings of the variables are no object");
  VariableMeanings meanings;
  for (const auto& [name, role] : roles) meanings.emplace(name, "");
  for (const auto& [name, value] : *listed) {
    const std::string* text = value.if_string();
    if (text == nullptr || !roles.contains(name)) {
      return CorruptionError("the meaning of " + QuoteForMessage(name) + " is none");
    }
    meanings[name] = *text;
  }
  return std::optional(std::move(meanings));
}

std::string VariableFileName(std::string_view variable) {
  constexpr std::string_view kHex = "0123456789ABCDEF";
  std::string name;
  for (std::size_t i = 0; i < variable.size(); ++i) {
    const char c = variable[i];
    // A leading dot would hide the file.
    if (IsPlain(c) && !(i == 0 && c == '.')) {
      name += c;
      continue;
    }
    const auto byte = static_cast<unsigned char>(c);
    name += '%';
    name += kHex[byte >> 4];
    name += kHex[byte & 15];
  }
  if (name.size() > kMaxNameBytes) {
    // '%' and a letter that is no hex digit: no escaped name looks like this.
    name.resize(kMaxNameBytes - 40);
    name += "%~" + ToHex(Xxh3Wide(std::as_bytes(std::span(variable))));
  }
  return name + ".safetensors";
}

}  // namespace cairn
