#include "format/sealed_json.h"

#include <span>
#include <utility>

#include "base/checksum.h"
#include "base/status_macros.h"
#include "format/json.h"

namespace cairn {
namespace {

// Before and after the digits. No byte of the frame is free, so that none can change unseen.
constexpr std::string_view kBeforeDigits = "\n  \"checksum\": \"";
constexpr std::string_view kAfterDigits = "\"\n}\n";
constexpr std::size_t kDigits = 32;
constexpr std::size_t kTailBytes = kBeforeDigits.size() + kDigits + kAfterDigits.size();

std::string Digits(std::string_view body) {
  return ToHex(Xxh3Wide(std::as_bytes(std::span(body.data(), body.size()))));
}

}  // namespace

std::string EncodeSealedJson(const Value::Object& members) {
  SealedJsonWriter writer;
  for (const auto& [key, value] : members) {
    if (key != "checksum") writer.Json(key, value);
  }
  return writer.Seal();
}

Result<Value::Object> DecodeSealedJson(std::string_view bytes) {
  if (bytes.size() <= kTailBytes) return CorruptionError("too short for a record");
  std::string_view body = bytes.substr(0, bytes.size() - kTailBytes);
  std::string_view tail = bytes.substr(body.size());
  if (!tail.starts_with(kBeforeDigits) || !tail.ends_with(kAfterDigits)) {
    return CorruptionError("the record does not end with its checksum (cut or overwritten?)");
  }
  // Only a record without members has no comma there.
  if (body.ends_with(',')) {
    body.remove_suffix(1);
  } else if (body != "{") {
    return CorruptionError("the record does not end with its checksum (cut or overwritten?)");
  }
  if (tail.substr(kBeforeDigits.size(), kDigits) != Digits(body)) {
    return CorruptionError("the record's checksum does not match its bytes");
  }
  ASSIGN_OR_RETURN(Value value, DecodeJson(bytes));
  Value::Object* members = value.if_object();
  if (members == nullptr) return CorruptionError("the record is not an object");
  members->erase("checksum");
  return std::move(*members);
}

std::string& SealedJsonWriter::Begin(std::string_view key) {
  out_ += out_.size() == 1 ? "\n  " : ",\n  ";
  AppendJsonString(key, &out_);
  out_ += ": ";
  return out_;
}

void SealedJsonWriter::Text(std::string_view key, std::string_view text) {
  AppendJsonString(text, &Begin(key));
}

void SealedJsonWriter::TextOrNull(std::string_view key, std::string_view text) {
  if (text.empty()) {
    Begin(key) += "null";
  } else {
    Text(key, text);
  }
}

void SealedJsonWriter::Int(std::string_view key, std::int64_t number) {
  Begin(key) += std::to_string(number);
}

void SealedJsonWriter::Uint(std::string_view key, std::uint64_t number) {
  Begin(key) += std::to_string(number);
}

void SealedJsonWriter::Texts(std::string_view key, std::span<const std::string> texts) {
  Begin(key) += '[';
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (i != 0) out_ += ", ";
    AppendJsonString(texts[i], &out_);
  }
  out_ += ']';
}

void SealedJsonWriter::Json(std::string_view key, const Value& value) {
  AppendJson(value, &Begin(key));
}

void SealedJsonWriter::Lines(std::string_view key, std::span<const std::string> elements) {
  Begin(key) += '[';
  for (std::size_t i = 0; i < elements.size(); ++i) {
    out_ += i == 0 ? "\n    " : ",\n    ";
    out_ += elements[i];
  }
  out_ += elements.empty() ? "]" : "\n  ]";
}

std::string SealedJsonWriter::Seal() {
  const std::string digits = Digits(out_);
  if (out_.size() != 1) out_ += ',';
  out_ += kBeforeDigits;
  out_ += digits;
  out_ += kAfterDigits;
  return std::exchange(out_, std::string(1, '{'));
}

}  // namespace cairn
