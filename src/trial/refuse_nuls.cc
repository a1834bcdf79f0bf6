#include "trial/refuse_nuls.h"

#include <fmt/format.h>

#include <string_view>

#include "base/status_macros.h"
#include "format/json.h"

namespace cairn {

Status RefuseNuls(const Value& value, const std::string& where) {
  if (const std::string* text = value.if_string()) {
    if (text->find('\0') == text->npos) return Status::Ok();
    return InvalidArgumentError(fmt::format("{}: the text holds a NUL, which cannot be stored",
                                            where.empty() ? "the body" : QuoteForMessage(where)));
  }
  const auto inner = [&](std::string_view name) {
    return where.empty() ? std::string(name) : fmt::format("{}/{}", where, name);
  };
  if (const Value::Object* object = value.if_object()) {
    for (const auto& [key, item] : *object) {
      RETURN_IF_ERROR(RefuseNuls(Value(key), inner(key)));
      RETURN_IF_ERROR(RefuseNuls(item, inner(key)));
    }
  }
  if (const Value::List* list = value.if_list()) {
    for (std::size_t i = 0; i < list->size(); ++i) {
      RETURN_IF_ERROR(RefuseNuls((*list)[i], inner(std::to_string(i))));
    }
  }
  return Status::Ok();
}

}  // namespace cairn
