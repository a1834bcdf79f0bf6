#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <cairn/status.h>
#include <cairn/value.h>

namespace cairn {

/// Reads JSON of a known, flat shape from front to back without building a tree: for safetensors
/// headers and indexes, which may hold a million names. Every function skips white space before
/// what it reads. After the first failure all return false and status() says what was expected
/// where. The text must outlive the cursor, and the caller checks that it is UTF-8. One caller at a
/// time.
class JsonCursor {
 public:
  explicit JsonCursor(std::string_view text)
      : begin_(text.data()), at_(text.data()), end_(text.data() + text.size()) {}

  /// Takes `c` when it is next; not finding it is no failure.
  bool Consume(char c);
  /// Takes `text`, white space and all, when it is next; not finding it is no failure.
  bool ConsumeText(std::string_view text);
  /// Takes `c`, which must be next.
  bool Expect(char c);
  /// A string. `out` stands in the text, or in `scratch` when the string has escapes.
  bool ReadString(std::string_view* out, std::string* scratch);
  /// A whole number from 0 to 2^64 - 1, written without sign, fraction or exponent.
  bool ReadUint(std::uint64_t* out);
  /// A number, also with fraction or exponent, that is a whole number from 0 to 2^53.
  bool ReadWholeNumber(std::uint64_t* out);
  /// The character that comes next; NUL at the end.
  char Peek();
  /// A string, number, boolean or null, as DecodeJson gives it.
  bool ReadScalar(Value* out);
  bool SkipScalar();
  /// Any value, nested at most `depth` levels.
  bool SkipValue(int depth);
  /// Nothing but white space may be left.
  bool ExpectEnd();

  bool ok() const { return error_.empty(); }
  /// Corruption, with the position.
  Status status() const;

 private:
  void SkipSpace();
  bool Fail(std::string_view expected);
  std::string_view Token();

  const char* begin_;
  const char* at_;
  const char* end_;
  std::string error_;
};

}  // namespace cairn
