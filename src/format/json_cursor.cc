#include "format/json_cursor.h"

#include <bit>
#include <cstring>
#include <limits>

#include "format/json.h"

namespace cairn {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::uint64_t kOnes = 0x0101010101010101;
constexpr std::uint64_t kHighs = 0x8080808080808080;

// The high bit of each byte that is zero; the lowest one set is exact, those above it may be not.
constexpr std::uint64_t ZeroBytes(std::uint64_t word) { return (word - kOnes) & ~word & kHighs; }

// Marks the bytes that end a plain run of a string: quote, backslash, control characters.
constexpr std::uint64_t SpecialBytes(std::uint64_t word) {
  const std::uint64_t control = (word - kOnes * 0x20) & ~word & kHighs;
  return ZeroBytes(word ^ (kOnes * '"')) | ZeroBytes(word ^ (kOnes * '\\')) | control;
}

bool IsSpecial(char c) { return c == '"' || c == '\\' || static_cast<unsigned char>(c) < 0x20; }

const char* FindSpecial(const char* at, const char* end) {
  while (end - at >= 8) {
    std::uint64_t word;
    std::memcpy(&word, at, sizeof(word));
    if (const std::uint64_t special = SpecialBytes(word); special != 0) {
      return at + std::countr_zero(special) / 8;
    }
    at += 8;
  }
  while (at != end && !IsSpecial(*at)) ++at;
  return at;
}

bool IsSpace(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

}  // namespace

void JsonCursor::SkipSpace() {
  while (at_ != end_ && IsSpace(*at_)) ++at_;
}

bool JsonCursor::Fail(std::string_view expected) {
  if (error_.empty()) {
    error_ = "at byte " + std::to_string(at_ - begin_) + ": expected ";
    error_ += expected;
    at_ = end_;
  }
  return false;
}

Status JsonCursor::status() const { return ok() ? Status() : CorruptionError(error_); }

bool JsonCursor::Consume(char c) {
  SkipSpace();
  if (at_ == end_ || *at_ != c) return false;
  ++at_;
  return true;
}

bool JsonCursor::ConsumeText(std::string_view text) {
  SkipSpace();
  if (!std::string_view(at_, end_).starts_with(text)) return false;
  at_ += text.size();
  return true;
}

bool JsonCursor::Expect(char c) { return Consume(c) || Fail(std::string{'\'', c, '\''}); }

bool JsonCursor::ReadString(std::string_view* out, std::string* scratch) {
  if (!Consume('"')) return Fail("a string");
  const char* start = at_;
  const char* stop = FindSpecial(start, end_);
  if (stop != end_ && *stop == '"') {
    *out = std::string_view(start, stop);
    at_ = stop + 1;
    return true;
  }
  // Escapes are rare: find the closing quote and leave them to the general decoder.
  while (stop != end_ && *stop == '\\' && end_ - stop >= 2) stop = FindSpecial(stop + 2, end_);
  if (stop == end_ || *stop != '"') {
    at_ = stop;
    return Fail("the end of a string");
  }
  Result<Value> value = DecodeJson(std::string_view(start - 1, stop + 1));
  if (!value.ok() || !value->is_string()) return Fail("a string with valid escapes");
  *scratch = *value->if_string();
  *out = *scratch;
  at_ = stop + 1;
  return true;
}

bool JsonCursor::ReadUint(std::uint64_t* out) {
  SkipSpace();
  constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();
  const char* start = at_;
  std::uint64_t value = 0;
  for (; at_ != end_ && *at_ >= '0' && *at_ <= '9'; ++at_) {
    const auto digit = static_cast<std::uint64_t>(*at_ - '0');
    if (value > (kMax - digit) / 10) return Fail("a number below 2^64");
    value = value * 10 + digit;
  }
  if (at_ == start || (at_ - start > 1 && *start == '0')) return Fail("a whole number");
  *out = value;
  return true;
}

// What stands up to the next delimiter: a number or a word.
std::string_view JsonCursor::Token() {
  SkipSpace();
  const char* start = at_;
  while (at_ != end_ && !IsSpace(*at_) && std::strchr(",:{}[]\"", *at_) == nullptr) ++at_;
  return {start, at_};
}

bool JsonCursor::ReadWholeNumber(std::uint64_t* out) {
  const Result<Value> value = DecodeJson(Token());
  if (value.ok() && value->is_number()) {
    constexpr double kExact = 9007199254740992.0;  // 2^53: doubles below hold every whole number
    if (const auto* i = value->if_int64(); i != nullptr && *i >= 0) {
      *out = static_cast<std::uint64_t>(*i);
      return true;
    }
    if (const auto* u = value->if_uint64(); u != nullptr) {
      *out = *u;
      return true;
    }
    if (const auto* d = value->if_double(); d != nullptr && *d >= 0 && *d <= kExact) {
      *out = static_cast<std::uint64_t>(*d);
      if (static_cast<double>(*out) == *d) return true;
    }
  }
  return Fail("a whole number");
}

char JsonCursor::Peek() {
  SkipSpace();
  return at_ == end_ ? '\0' : *at_;
}

bool JsonCursor::ReadScalar(Value* out) {
  if (Peek() == '"') {
    std::string_view text;
    std::string scratch;
    if (!ReadString(&text, &scratch)) return false;
    *out = Value(std::string(text));
    return true;
  }
  Result<Value> value = DecodeJson(Token());
  if (!value.ok()) return Fail("a string, number, boolean or null");
  *out = *std::move(value);
  return true;
}

bool JsonCursor::SkipScalar() {
  SkipSpace();
  if (at_ != end_ && *at_ == '"') {
    std::string_view text;
    std::string scratch;
    return ReadString(&text, &scratch);
  }
  return DecodeJson(Token()).ok() || Fail("a string, number, boolean or null");
}

bool JsonCursor::SkipValue(int depth) {
  const bool object = Consume('{');
  if (!object && !Consume('[')) return SkipScalar();
  if (depth <= 0) return Fail("a value that is nested less deeply");
  const char close = object ? '}' : ']';
  if (Consume(close)) return true;
  do {
    if (object) {
      std::string_view key;
      std::string scratch;
      if (!ReadString(&key, &scratch) || !Expect(':')) return false;
    }
    if (!SkipValue(depth - 1)) return false;
  } while (Consume(','));
  return Expect(close);
}

bool JsonCursor::ExpectEnd() {
  SkipSpace();
  return (at_ == end_ && ok()) || Fail("the end of the text");
}

}  // namespace cairn
