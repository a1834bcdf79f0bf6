#include "format/compact_value.h"

#include <bit>
#include <limits>
#include <utility>

#include "base/status_macros.h"

namespace cairn {
namespace {

constexpr int kMaxDepth = 200;

enum class Tag : std::uint8_t { kNull, kFalse, kTrue, kInt, kUint, kDouble, kText, kList, kObject };

char Byte(Tag tag) { return static_cast<char>(tag); }

}  // namespace

void CompactWriter::Number(std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out_.push_back(static_cast<char>(value | 0x80));
  out_.push_back(static_cast<char>(value));
}

void CompactWriter::Signed(std::int64_t value) {
  const auto bits = static_cast<std::uint64_t>(value);
  Number((bits << 1) ^ (value < 0 ? ~std::uint64_t{0} : 0));
}

void CompactWriter::Text(std::string_view text) {
  Number(text.size());
  out_ += text;
}

void CompactWriter::Any(const Value& value) {
  if (value.is_null()) return out_.push_back(Byte(Tag::kNull));
  if (const bool* b = value.if_bool()) {
    return out_.push_back(Byte(*b ? Tag::kTrue : Tag::kFalse));
  }
  if (const std::int64_t* i = value.if_int64()) {
    out_.push_back(Byte(Tag::kInt));
    return Signed(*i);
  }
  if (const std::uint64_t* u = value.if_uint64()) {
    out_.push_back(Byte(Tag::kUint));
    return Number(*u);
  }
  if (const double* d = value.if_double()) {
    out_.push_back(Byte(Tag::kDouble));
    const auto bits = std::bit_cast<std::uint64_t>(*d);
    for (int i = 0; i < 8; ++i) out_.push_back(static_cast<char>(bits >> (8 * i)));
    return;
  }
  if (const std::string* text = value.if_string()) {
    out_.push_back(Byte(Tag::kText));
    return Text(*text);
  }
  if (const Value::List* list = value.if_list()) {
    out_.push_back(Byte(Tag::kList));
    Number(list->size());
    for (const Value& item : *list) Any(item);
    return;
  }
  out_.push_back(Byte(Tag::kObject));
  Number(value.if_object()->size());
  for (const auto& [key, member] : *value.if_object()) {
    Text(key);
    Any(member);
  }
}

Status CompactReader::Wrong(std::string_view how) const {
  return CorruptionError(std::string(what_) + ": " + std::string(how));
}

Status CompactReader::Number(std::uint64_t* value) {
  *value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (rest_.empty()) return Wrong("cut short");
    const auto byte = static_cast<unsigned char>(rest_.front());
    rest_.remove_prefix(1);
    if (shift == 63 && byte > 1) return Wrong("a number is too large");
    *value |= std::uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) return byte == 0 && shift > 0 ? Wrong("a padded number") : Status::Ok();
  }
  return Wrong("a number is too long");
}

Status CompactReader::Signed(std::int64_t* value) {
  std::uint64_t bits = 0;
  RETURN_IF_ERROR(Number(&bits));
  *value = static_cast<std::int64_t>((bits >> 1) ^ ((bits & 1) != 0 ? ~std::uint64_t{0} : 0));
  return Status::Ok();
}

Status CompactReader::View(std::string_view* text) {
  std::uint64_t size = 0;
  RETURN_IF_ERROR(Number(&size));
  if (size > rest_.size()) return Wrong("cut short");
  *text = rest_.substr(0, size);
  rest_.remove_prefix(size);
  return Status::Ok();
}

Status CompactReader::Text(std::string* text) {
  std::string_view view;
  RETURN_IF_ERROR(View(&view));
  text->assign(view);
  return Status::Ok();
}

Status CompactReader::Count(std::uint64_t* count) {
  RETURN_IF_ERROR(Number(count));
  return *count > rest_.size() ? Wrong("cut short") : Status::Ok();
}

Status CompactReader::Any(Value* value, int depth) {
  if (depth > kMaxDepth) return Wrong("nested too deep");
  if (rest_.empty()) return Wrong("cut short");
  const auto tag = static_cast<Tag>(rest_.front());
  rest_.remove_prefix(1);
  switch (tag) {
    case Tag::kNull:
      *value = Value();
      return Status::Ok();
    case Tag::kFalse:
    case Tag::kTrue:
      *value = tag == Tag::kTrue;
      return Status::Ok();
    case Tag::kInt: {
      std::int64_t number = 0;
      RETURN_IF_ERROR(Signed(&number));
      *value = number;
      return Status::Ok();
    }
    case Tag::kUint: {
      std::uint64_t number = 0;
      RETURN_IF_ERROR(Number(&number));
      if (number <= std::numeric_limits<std::int64_t>::max()) {
        return Wrong("an integer of the wrong kind");
      }
      *value = number;
      return Status::Ok();
    }
    case Tag::kDouble: {
      if (rest_.size() < 8) return Wrong("cut short");
      std::uint64_t bits = 0;
      for (std::size_t i = 0; i < 8; ++i) {
        bits |= std::uint64_t{static_cast<unsigned char>(rest_[i])} << (8 * i);
      }
      rest_.remove_prefix(8);
      *value = std::bit_cast<double>(bits);
      return Status::Ok();
    }
    case Tag::kText: {
      std::string text;
      RETURN_IF_ERROR(Text(&text));
      *value = std::move(text);
      return Status::Ok();
    }
    case Tag::kList:
      return List(value, depth);
    case Tag::kObject:
      return Object(value, depth);
  }
  return Wrong("a value of no kind");
}

Status CompactReader::List(Value* value, int depth) {
  std::uint64_t count = 0;
  RETURN_IF_ERROR(Count(&count));
  Value::List list(count);
  for (Value& item : list) RETURN_IF_ERROR(Any(&item, depth + 1));
  *value = std::move(list);
  return Status::Ok();
}

Status CompactReader::Object(Value* value, int depth) {
  std::uint64_t count = 0;
  RETURN_IF_ERROR(Count(&count));
  Value::Object object;
  for (; count > 0; --count) {
    std::string key;
    RETURN_IF_ERROR(Text(&key));
    if (!object.empty() && key <= object.rbegin()->first) return Wrong("members out of order");
    const auto at = object.emplace_hint(object.end(), std::move(key), Value());
    RETURN_IF_ERROR(Any(&at->second, depth + 1));
  }
  *value = std::move(object);
  return Status::Ok();
}

}  // namespace cairn
