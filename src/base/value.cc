#include <cairn/value.h>

#include <cmath>
#include <limits>

namespace cairn {

Value::Value(std::uint64_t i) {
  if (i <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    v_ = static_cast<std::int64_t>(i);
  } else {
    v_ = i;
  }
}

double Value::AsDouble(double fallback) const {
  if (const auto* d = if_double()) return *d;
  if (const auto* i = if_int64()) return static_cast<double>(*i);
  if (const auto* u = if_uint64()) return static_cast<double>(*u);
  return fallback;
}

std::int64_t Value::AsInt(std::int64_t fallback) const {
  const auto* i = if_int64();
  return i != nullptr ? *i : fallback;
}

const Value* Value::Find(std::string_view key) const {
  const Object* object = if_object();
  if (object == nullptr) return nullptr;
  if (auto it = object->find(key); it != object->end()) return &it->second;
  for (auto slash = key.find('/'); slash != key.npos; slash = key.find('/', slash + 1)) {
    auto it = object->find(key.substr(0, slash));
    if (it == object->end()) continue;
    if (const Value* found = it->second.Find(key.substr(slash + 1))) return found;
  }
  return nullptr;
}

int CompareNumbers(const Value& a, const Value& b) {
  // The x87 long double holds every 64-bit integer and every double exactly.
  static_assert(std::numeric_limits<long double>::digits >= 64);
  auto exact = [](const Value& v) -> long double {
    if (const auto* i = v.if_int64()) return static_cast<long double>(*i);
    if (const auto* u = v.if_uint64()) return static_cast<long double>(*u);
    return static_cast<long double>(v.AsDouble());
  };
  const long double x = exact(a);
  const long double y = exact(b);
  return x < y ? -1 : (x > y ? 1 : 0);
}

}  // namespace cairn
