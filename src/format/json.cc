#include "format/json.h"

#include <simdjson.h>

#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/status_macros.h"

namespace cairn {
namespace {

constexpr std::string_view kNan = "NaN";
constexpr std::string_view kInfinity = "Infinity";
constexpr std::string_view kMinusInfinity = "-Infinity";

template <typename Number>
void AppendNumber(Number number, std::string* out) {
  std::array<char, 32> buffer;
  const auto result = std::to_chars(buffer.data(), buffer.data() + buffer.size(), number);
  out->append(buffer.data(), result.ptr);
}

void AppendDouble(double number, std::string* out) {
  if (!std::isfinite(number)) {
    *out += '"';
    *out += std::isnan(number) ? kNan : (number > 0 ? kInfinity : kMinusInfinity);
    *out += '"';
    return;
  }
  const std::size_t start = out->size();
  AppendNumber(number, out);
  // "1" would read back as an integer.
  if (out->find_first_of(".e", start) == out->npos) *out += ".0";
}

void AppendEscaped(std::string_view text, std::string* out) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::size_t plain = 0;  // start of the run not yet copied
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (static_cast<unsigned char>(c) >= 0x20 && c != '"' && c != '\\') continue;
    out->append(text, plain, i - plain);
    plain = i + 1;
    *out += '\\';
    switch (c) {
      case '"':
      case '\\':
        *out += c;
        break;
      case '\b':
        *out += 'b';
        break;
      case '\f':
        *out += 'f';
        break;
      case '\n':
        *out += 'n';
        break;
      case '\r':
        *out += 'r';
        break;
      case '\t':
        *out += 't';
        break;
      default:
        *out += "u00";
        *out += kHex[c >> 4];
        *out += kHex[c & 15];
    }
  }
  out->append(text, plain);
}

// How many bytes the character at the front of `text` takes; 0 when it is not UTF-8.
std::size_t CharacterBytes(std::string_view text) {
  for (std::size_t n = 1; n <= 4 && n <= text.size(); ++n) {
    if (IsValidUtf8(text.substr(0, n))) return n;
  }
  return 0;
}

std::string WithReplacementCharacters(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t n = CharacterBytes(text);
    out += n == 0 ? std::string_view("\xEF\xBF\xBD") : text.substr(0, n);
    text.remove_prefix(n == 0 ? 1 : n);
  }
  return out;
}

class Writer {
 public:
  Writer(std::string* out, int indent) : out_(out), indent_(indent) {}

  void Write(const Value& value, int level) {
    if (value.is_null()) {
      *out_ += "null";
    } else if (const auto* b = value.if_bool()) {
      *out_ += *b ? "true" : "false";
    } else if (const auto* i = value.if_int64()) {
      AppendNumber(*i, out_);
    } else if (const auto* u = value.if_uint64()) {
      AppendNumber(*u, out_);
    } else if (const auto* d = value.if_double()) {
      AppendDouble(*d, out_);
    } else if (const auto* s = value.if_string()) {
      AppendJsonString(*s, out_);
    } else if (const auto* list = value.if_list()) {
      WriteList(*list, level);
    } else if (const auto* object = value.if_object()) {
      WriteObject(*object, level);
    }
  }

 private:
  void WriteList(const Value::List& list, int level) {
    *out_ += '[';
    bool first = true;
    for (const Value& element : list) {
      Separate(std::exchange(first, false), level + 1);
      Write(element, level + 1);
    }
    if (!first) NewLine(level);
    *out_ += ']';
  }

  void WriteObject(const Value::Object& object, int level) {
    *out_ += '{';
    bool first = true;
    for (const auto& [key, member] : object) {
      Separate(std::exchange(first, false), level + 1);
      AppendJsonString(key, out_);
      *out_ += indent_ < 0 ? ":" : ": ";
      Write(member, level + 1);
    }
    if (!first) NewLine(level);
    *out_ += '}';
  }

  void Separate(bool first, int level) {
    if (!first) *out_ += ',';
    NewLine(level);
  }

  void NewLine(int level) {
    if (indent_ < 0) return;
    *out_ += '\n';
    out_->append(static_cast<std::size_t>(indent_) * static_cast<std::size_t>(level), ' ');
  }

  std::string* out_;
  int indent_;
};

// Builds a Value from nlohmann's events. The parser itself keeps no stack of calls, so that the
// depth limit is this handler's to set.
class ValueBuilder : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return Add(Value()); }
  bool boolean(bool b) override { return Add(Value(b)); }
  bool number_integer(number_integer_t i) override {
    return Add(Value(static_cast<std::int64_t>(i)));
  }
  bool number_unsigned(number_unsigned_t u) override {
    return Add(Value(static_cast<std::uint64_t>(u)));
  }
  bool number_float(number_float_t d, const string_t&) override { return Add(Value(d)); }
  bool string(string_t& text) override { return Add(Value(std::move(text))); }
  bool binary(binary_t&) override { return Fail("binary data"); }
  bool start_object(std::size_t) override { return Open(Value::Object{}); }
  bool start_array(std::size_t) override { return Open(Value::List{}); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }

  bool key(string_t& name) override {
    Frame& frame = open_.back();
    if (frame.value.if_object()->contains(name)) {
      return Fail("member " + QuoteForMessage(name) + " stands there twice");
    }
    frame.key = std::move(name);
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception&) override {
    return Fail("not JSON, at byte " + std::to_string(position));
  }

  const std::string& error() const { return error_; }
  Value Take() { return std::move(root_); }

 private:
  struct Frame {
    Value value;
    std::string key;  // of the member that comes next
  };

  bool Add(Value value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (Frame& frame = open_.back(); Value::List* list = frame.value.if_list()) {
      list->push_back(std::move(value));
    } else {
      frame.value.if_object()->emplace(std::move(frame.key), std::move(value));
    }
    return true;
  }

  bool Open(Value container) {
    if (open_.size() >= kMaxJsonDepth) {
      return Fail("nested deeper than " + std::to_string(kMaxJsonDepth) + " levels");
    }
    open_.push_back({std::move(container), {}});
    return true;
  }

  bool Close() {
    Value value = std::move(open_.back().value);
    open_.pop_back();
    return Add(std::move(value));
  }

  bool Fail(std::string why) {
    error_ = std::move(why);
    return false;
  }

  std::vector<Frame> open_;
  Value root_;
  std::string error_;
};

}  // namespace

std::string EncodeJson(const Value& value, int indent) {
  std::string out;
  Writer(&out, indent).Write(value, 0);
  return out;
}

void AppendJson(const Value& value, std::string* out) { Writer(out, -1).Write(value, 0); }

void AppendJsonString(std::string_view text, std::string* out) {
  *out += '"';
  if (IsValidUtf8(text)) {
    AppendEscaped(text, out);
  } else {
    AppendEscaped(WithReplacementCharacters(text), out);
  }
  *out += '"';
}

Result<Value> DecodeJson(std::string_view text) {
  // Two things that the parser would let pass: it takes a NUL for the end of the text, and skips a
  // byte order mark.
  if (text.find('\0') != text.npos) return CorruptionError("not JSON: it holds a NUL byte");
  if (text.starts_with("\xEF"))
    return CorruptionError("not JSON: it starts with a byte order mark");
  ValueBuilder builder;
  try {
    if (!nlohmann::json::sax_parse(text.begin(), text.end(), &builder)) {
      return CorruptionError(builder.error());
    }
  } catch (const std::exception& e) {
    return CorruptionError(std::string("not JSON: ") + e.what());
  }
  return builder.Take();
}

Status ValidateJsonValue(const Value& value, int depth) {
  const auto check_text = [](const std::string& text) -> Status {
    if (IsValidUtf8(text)) return {};
    return InvalidArgumentError(QuoteForMessage(text) + " is not UTF-8 text");
  };
  if (const auto* text = value.if_string()) return check_text(*text);
  if (!value.is_list() && !value.is_object()) return {};
  if (depth <= 0) return InvalidArgumentError("the value is nested too deeply");
  if (const auto* list = value.if_list()) {
    for (const Value& element : *list) RETURN_IF_ERROR(ValidateJsonValue(element, depth - 1));
    return {};
  }
  for (const auto& [key, member] : *value.if_object()) {
    RETURN_IF_ERROR(check_text(key));
    RETURN_IF_ERROR(ValidateJsonValue(member, depth - 1).WithContext(QuoteForMessage(key)));
  }
  return {};
}

Value NumberFrom(const Value& value) {
  if (value.is_number()) return value;
  const std::string* text = value.if_string();
  if (text == nullptr) return {};
  if (*text == kNan) return std::numeric_limits<double>::quiet_NaN();
  if (*text == kInfinity) return std::numeric_limits<double>::infinity();
  if (*text == kMinusInfinity) return -std::numeric_limits<double>::infinity();
  return {};
}

void RestoreNonFinite(Value* value) {
  if (auto* list = value->if_list()) {
    for (Value& element : *list) RestoreNonFinite(&element);
  } else if (auto* object = value->if_object()) {
    for (auto& [key, member] : *object) RestoreNonFinite(&member);
  } else if (value->is_string()) {
    if (Value number = NumberFrom(*value); !number.is_null()) *value = std::move(number);
  }
}

bool IsValidUtf8(std::string_view text) {
  return simdjson::validate_utf8(text.data(), text.size());
}

std::string QuoteForMessage(std::string_view text) {
  constexpr std::size_t kMost = 200;
  std::string out;
  if (text.size() <= kMost) {
    AppendJsonString(text, &out);
    return out;
  }
  std::size_t cut = kMost;
  while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) --cut;
  AppendJsonString(text.substr(0, cut), &out);
  out += "… (" + std::to_string(text.size()) + " bytes)";
  return out;
}

}  // namespace cairn
