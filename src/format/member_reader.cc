#include "format/member_reader.h"

#include "base/status_macros.h"
#include "format/json.h"

namespace cairn {
namespace {

Status Wrong(std::string_view key, std::string_view expected) {
  return CorruptionError("member " + QuoteForMessage(key) + " is not " + std::string(expected));
}

Status Missing(std::string_view key) {
  return CorruptionError("member " + QuoteForMessage(key) + " is missing");
}

}  // namespace

const Value* MemberReader::Find(std::string_view key) const {
  const auto it = members_.find(key);
  return it == members_.end() || it->second.is_null() ? nullptr : &it->second;
}

Status MemberReader::Text(std::string_view key, std::string* out) const {
  if (Find(key) == nullptr) return Missing(key);
  RETURN_IF_ERROR(OptionalText(key, out));
  return out->empty() ? Wrong(key, "a text of at least one character") : Status();
}

Status MemberReader::OptionalText(std::string_view key, std::string* out) const {
  const Value* value = Find(key);
  if (value == nullptr) return {};
  if (!value->is_string()) return Wrong(key, "a text");
  *out = *value->if_string();
  return {};
}

Status MemberReader::Int(std::string_view key, std::int64_t* out) const {
  return Find(key) == nullptr ? Missing(key) : OptionalInt(key, out);
}

Status MemberReader::OptionalInt(std::string_view key, std::int64_t* out) const {
  const Value* value = Find(key);
  if (value == nullptr) return {};
  if (value->if_int64() == nullptr) return Wrong(key, "a 64-bit integer");
  *out = *value->if_int64();
  return {};
}

Status MemberReader::Uint(std::string_view key, std::uint64_t* out) const {
  return Find(key) == nullptr ? Missing(key) : OptionalUint(key, out);
}

Status MemberReader::OptionalUint(std::string_view key, std::uint64_t* out) const {
  const Value* value = Find(key);
  if (value == nullptr) return {};
  if (const auto* u = value->if_uint64()) {
    *out = *u;
  } else if (const auto* i = value->if_int64(); i != nullptr && *i >= 0) {
    *out = static_cast<std::uint64_t>(*i);
  } else {
    return Wrong(key, "an unsigned 64-bit integer");
  }
  return {};
}

Status MemberReader::OptionalBool(std::string_view key, bool* out) const {
  const Value* value = Find(key);
  if (value == nullptr) return {};
  if (!value->is_bool()) return Wrong(key, "true or false");
  *out = *value->if_bool();
  return {};
}

Status MemberReader::Texts(std::string_view key, std::vector<std::string>* out) const {
  return Find(key) == nullptr ? Missing(key) : OptionalTexts(key, out);
}

Status MemberReader::OptionalTexts(std::string_view key, std::vector<std::string>* out) const {
  const Value::List* list = nullptr;
  RETURN_IF_ERROR(OptionalList(key, &list));
  if (list == nullptr) return {};
  out->clear();
  out->reserve(list->size());
  for (const Value& element : *list) {
    if (!element.is_string()) return Wrong(key, "a list of texts");
    out->push_back(*element.if_string());
  }
  return {};
}

Status MemberReader::OptionalObject(std::string_view key, Value* out) const {
  const Value* value = Find(key);
  if (value == nullptr) return {};
  if (!value->is_object()) return Wrong(key, "an object");
  *out = *value;
  return {};
}

Status MemberReader::OptionalList(std::string_view key, const Value::List** out) const {
  const Value* value = Find(key);
  if (value == nullptr) return {};
  if (!value->is_list()) return Wrong(key, "a list");
  *out = value->if_list();
  return {};
}

}  // namespace cairn
