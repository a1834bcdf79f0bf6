#include "trial/rank_wire.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "format/json.h"

namespace cairn::core {
namespace {

constexpr char kTag[] = "__cairn__";
// A Value takes many times the memory of the number in an array.
constexpr std::size_t kMaxNumbers = 1u << 24;
constexpr std::string_view kDigits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

std::string ToBase64(std::string_view bytes) {
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t group = 0;
    const std::size_t count = std::min<std::size_t>(3, bytes.size() - i);
    for (std::size_t j = 0; j < 3; ++j) {
      group = group << 8 | (j < count ? static_cast<unsigned char>(bytes[i + j]) : 0u);
    }
    for (std::size_t j = 0; j < 4; ++j) {
      out += j <= count ? kDigits[group >> (18 - 6 * j) & 63] : '=';
    }
  }
  return out;
}

std::optional<std::string> FromBase64(std::string_view text) {
  while (text.ends_with('=')) text.remove_suffix(1);
  if (text.size() % 4 == 1) return std::nullopt;
  std::string out;
  out.reserve(text.size() / 4 * 3 + 2);
  std::uint32_t group = 0;
  int bits = 0;
  for (const char c : text) {
    const std::size_t digit = kDigits.find(c);
    if (digit == std::string_view::npos) return std::nullopt;
    group = group << 6 | static_cast<std::uint32_t>(digit);
    bits += 6;
    if (bits < 8) continue;
    bits -= 8;
    out += static_cast<char>(group >> bits & 0xFF);
  }
  return out;
}

Value Tagged(const char* kind, Value value) {
  return Value::Object{{kTag, kind}, {"v", std::move(value)}};
}

std::string FloatText(double value) {
  if (std::isnan(value)) return "nan";
  return value > 0 ? "inf" : "-inf";
}

Result<Value> Pack(const Value& value) {
  if (const double* number = value.if_double(); number && !std::isfinite(*number)) {
    return Tagged("float", FloatText(*number));
  }
  if (const std::string* text = value.if_string(); text && !IsValidUtf8(*text)) {
    return BytesForRanks(*text);
  }
  if (const Value::List* list = value.if_list()) {
    Value::List packed;
    packed.reserve(list->size());
    for (const Value& item : *list) {
      ASSIGN_OR_RETURN(Value one, Pack(item));
      packed.push_back(std::move(one));
    }
    return Value(std::move(packed));
  }
  const Value::Object* object = value.if_object();
  if (object == nullptr) return value;
  Value::Object packed;
  Value::List pairs;
  const bool ambiguous = object->contains(kTag);
  for (const auto& [key, item] : *object) {
    if (!IsValidUtf8(key)) {
      return InvalidArgumentError("a key that is not UTF-8 cannot be sent to other ranks");
    }
    ASSIGN_OR_RETURN(Value one, Pack(item));
    if (ambiguous) {
      Value::List pair;
      pair.emplace_back(key);
      pair.push_back(std::move(one));
      pairs.emplace_back(std::move(pair));
    } else {
      packed.emplace(key, std::move(one));
    }
  }
  return ambiguous ? Tagged("dict", std::move(pairs)) : Value(std::move(packed));
}

Status Damaged(std::string_view kind) {
  return CorruptionError(fmt::format("sent a damaged value of kind '{}'", kind));
}

Result<Value> Unpack(const Value& value);

Result<Value::List> UnpackAll(const Value::List& list) {
  Value::List out;
  out.reserve(list.size());
  for (const Value& item : list) {
    ASSIGN_OR_RETURN(Value one, Unpack(item));
    out.push_back(std::move(one));
  }
  return out;
}

double HalfToDouble(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const int fraction = bits & 1023;
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  if (exponent == 31) {
    return fraction != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  return sign * std::ldexp(1024 + fraction, exponent - 25);
}

template <typename T>
T Load(const char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

/// The kinds of numbers that arrays are sent in, as NumPy calls them; little-endian.
using ReadNumber = Value (*)(const char*);
struct NumberKind {
  std::string_view name;
  std::size_t bytes;
  ReadNumber read;
};
constexpr std::array<NumberKind, 12> kNumbers = {{
    {"|b1", 1, [](const char* p) { return Value(*p != 0); }},
    {"|i1", 1, [](const char* p) { return Value(std::int64_t{Load<std::int8_t>(p)}); }},
    {"|u1", 1, [](const char* p) { return Value(std::uint64_t{Load<std::uint8_t>(p)}); }},
    {"<i2", 2, [](const char* p) { return Value(std::int64_t{Load<std::int16_t>(p)}); }},
    {"<u2", 2, [](const char* p) { return Value(std::uint64_t{Load<std::uint16_t>(p)}); }},
    {"<i4", 4, [](const char* p) { return Value(std::int64_t{Load<std::int32_t>(p)}); }},
    {"<u4", 4, [](const char* p) { return Value(std::uint64_t{Load<std::uint32_t>(p)}); }},
    {"<i8", 8, [](const char* p) { return Value(Load<std::int64_t>(p)); }},
    {"<u8", 8, [](const char* p) { return Value(Load<std::uint64_t>(p)); }},
    {"<f2", 2, [](const char* p) { return Value(HalfToDouble(Load<std::uint16_t>(p))); }},
    {"<f4", 4, [](const char* p) { return Value(double{Load<float>(p)}); }},
    {"<f8", 8, [](const char* p) { return Value(Load<double>(p)); }},
}};
static_assert(std::endian::native == std::endian::little);

Value NestedList(const std::vector<std::size_t>& shape, std::size_t level, const NumberKind& kind,
                 const char** next) {
  if (level == shape.size()) return kind.read(std::exchange(*next, *next + kind.bytes));
  Value::List list;
  list.reserve(shape[level]);
  for (std::size_t i = 0; i < shape[level]; ++i) {
    list.push_back(NestedList(shape, level + 1, kind, next));
  }
  return list;
}

Result<Value> UnpackArray(const Value& value, std::string_view text) {
  const Value* dtype = value.Find("dtype");
  const Value* sizes = value.Find("shape");
  const auto bytes = FromBase64(text);
  if (!dtype || !dtype->if_string() || !sizes || !sizes->if_list() || !bytes) {
    return Damaged("array");
  }
  for (const NumberKind& kind : kNumbers) {
    if (kind.name != *dtype->if_string()) continue;
    std::vector<std::size_t> shape;
    std::size_t count = 1;
    for (const Value& size : *sizes->if_list()) {
      const std::int64_t length = size.AsInt(-1);
      if (length < 0 || shape.size() + 1 >= kMaxJsonDepth) return Damaged("array");
      shape.push_back(static_cast<std::size_t>(length));
      if (__builtin_mul_overflow(count, shape.back(), &count)) return Damaged("array");
    }
    if (count > bytes->size() || count * kind.bytes != bytes->size()) return Damaged("array");
    if (count > kMaxNumbers) {
      return ResourceExhaustedError(fmt::format(
          "sent an array of {} numbers, and a C++ rank takes {} in one: send it as bytes", count,
          kMaxNumbers));
    }
    // Without numbers, outer lists could still be of any length.
    if (count == 0) return Value(Value::List{});
    const char* next = bytes->data();
    return NestedList(shape, 0, kind, &next);
  }
  return UnimplementedError("sent an array of " + QuoteForMessage(*dtype->if_string()) +
                            ", which a C++ rank cannot take: send it as bytes");
}

Result<Value> UnpackTagged(const Value& value, const std::string& kind) {
  const Value* inner = value.Find("v");
  if (inner == nullptr) return Damaged(kind);
  const Value::List* list = inner->if_list();
  const std::string* text = inner->if_string();
  if (kind == "float" && text != nullptr) {
    if (*text == "nan") return Value(std::numeric_limits<double>::quiet_NaN());
    if (*text == "inf") return Value(std::numeric_limits<double>::infinity());
    if (*text == "-inf") return Value(-std::numeric_limits<double>::infinity());
  } else if (kind == "bytes" && text != nullptr) {
    if (auto bytes = FromBase64(*text)) return Value(*std::move(bytes));
  } else if ((kind == "tuple" || kind == "set") && list != nullptr) {
    ASSIGN_OR_RETURN(Value::List items, UnpackAll(*list));
    return Value(std::move(items));
  } else if (kind == "dict" && list != nullptr) {
    Value::Object object;
    for (const Value& pair : *list) {
      const Value::List* both = pair.if_list();
      if (both == nullptr || both->size() != 2) return Damaged(kind);
      ASSIGN_OR_RETURN(const Value key, Unpack((*both)[0]));
      if (key.if_string() == nullptr) {
        return UnimplementedError(
            "sent a dict whose keys are not all text, which a C++ rank cannot take");
      }
      ASSIGN_OR_RETURN(Value item, Unpack((*both)[1]));
      object.insert_or_assign(*key.if_string(), std::move(item));
    }
    return Value(std::move(object));
  } else if (kind == "array" && text != nullptr) {
    return UnpackArray(value, *text);
  } else if (kind != "float" && kind != "bytes" && kind != "tuple" && kind != "set" &&
             kind != "dict" && kind != "array") {
    return UnimplementedError("sent a value of kind " + QuoteForMessage(kind) +
                              ", which this version does not know");
  }
  return Damaged(kind);
}

Result<Value> Unpack(const Value& value) {
  if (const Value::List* list = value.if_list()) {
    ASSIGN_OR_RETURN(Value::List items, UnpackAll(*list));
    return Value(std::move(items));
  }
  const Value::Object* object = value.if_object();
  if (object == nullptr) return value;
  if (const auto tag = object->find(kTag); tag != object->end()) {
    if (tag->second.if_string() == nullptr) return Damaged("?");
    return UnpackTagged(value, *tag->second.if_string());
  }
  Value::Object out;
  for (const auto& [key, item] : *object) {
    ASSIGN_OR_RETURN(Value one, Unpack(item));
    out.emplace(key, std::move(one));
  }
  return Value(std::move(out));
}

}  // namespace

Value BytesForRanks(std::string_view bytes) { return Tagged("bytes", ToBase64(bytes)); }

Result<std::string> EncodeRankValue(const Value& value) {
  ASSIGN_OR_RETURN(const Value packed, Pack(value));
  RETURN_IF_ERROR(ValidateJsonValue(packed).WithContext("a value for other ranks"));
  return EncodeJson(packed);
}

Result<Value> DecodeRankValue(std::string_view bytes) {
  auto value = DecodeJson(bytes);
  if (!value.ok()) {
    return CorruptionError("sent no message: " + std::string(value.status().message()));
  }
  return Unpack(*value);
}

}  // namespace cairn::core
