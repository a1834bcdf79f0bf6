#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include <cairn/value.h>

namespace cairn::tune {

// Members of objects that this program wrote itself; what is missing or of another kind is empty.

inline std::string TextOf(const Value& object, std::string_view key) {
  const Value* value = object.Find(key);
  const std::string* text = value == nullptr ? nullptr : value->if_string();
  return text == nullptr ? "" : *text;
}

inline std::int64_t IntOf(const Value& object, std::string_view key, std::int64_t fallback = 0) {
  const Value* value = object.Find(key);
  return value == nullptr ? fallback : value->AsInt(fallback);
}

inline bool BoolOf(const Value& object, std::string_view key) {
  const Value* value = object.Find(key);
  const bool* truth = value == nullptr ? nullptr : value->if_bool();
  return truth != nullptr && *truth;
}

/// Taken out of the object; null when it is not there.
inline Value TakeMember(Value* object, std::string_view key) {
  Value::Object* const members = object->if_object();
  if (members == nullptr) return {};
  const auto found = members->find(key);
  return found == members->end() ? Value() : std::move(found->second);
}

}  // namespace cairn::tune
