#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <cairn/value.h>

#include "trial/event.h"

namespace cairn {

/// Members of an event's body; nothing when they are missing or of another type.
inline std::string TextOf(const Event& event, std::string_view member) {
  const Value* value = event.body.Find(member);
  return value != nullptr && value->is_string() ? *value->if_string() : std::string();
}
inline std::int64_t IntOf(const Event& event, std::string_view member) {
  const Value* value = event.body.Find(member);
  return value == nullptr ? 0 : value->AsInt();
}
inline bool BoolOf(const Event& event, std::string_view member) {
  const Value* value = event.body.Find(member);
  return value != nullptr && value->is_bool() && *value->if_bool();
}
inline Value ObjectOf(const Event& event, std::string_view member) {
  const Value* value = event.body.Find(member);
  return value != nullptr && value->is_object() ? *value : Value(Value::Object{});
}

/// Lays the members of `more` over `values`.
inline void MergeMembers(const Value& more, Value* values) {
  if (!more.is_object() || !values->is_object()) return;
  for (const auto& [key, value] : *more.if_object()) (*values->if_object())[key] = value;
}

}  // namespace cairn
