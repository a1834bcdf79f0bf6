#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <cairn/status.h>
#include <cairn/value.h>

namespace cairn {

/// How every record on disk is framed (docs/format/records.md): one JSON object, a member a line,
/// whose last member is "checksum": the XXH3-128, in 32 hex digits, of all bytes before the comma
/// that precedes it. The bytes from that comma on are fixed but for the digits, so that a changed,
/// cut or extended record never decodes.
std::string EncodeSealedJson(const Value::Object& members);

/// Corruption when the frame or the checksum is wrong. The members come without the checksum.
Result<Value::Object> DecodeSealedJson(std::string_view bytes);

/// Writes a sealed object with its members in the order of the calls. One caller at a time.
class SealedJsonWriter {
 public:
  void Text(std::string_view key, std::string_view text);
  /// null when empty.
  void TextOrNull(std::string_view key, std::string_view text);
  void Int(std::string_view key, std::int64_t number);
  void Uint(std::string_view key, std::uint64_t number);
  void Texts(std::string_view key, std::span<const std::string> texts);
  void Json(std::string_view key, const Value& value);
  /// A list, an element a line; each is JSON text already.
  void Lines(std::string_view key, std::span<const std::string> elements);

  /// The finished record; the writer is then empty.
  std::string Seal();

 private:
  std::string& Begin(std::string_view key);

  std::string out_ = "{";
};

}  // namespace cairn
