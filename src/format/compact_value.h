#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <cairn/status.h>
#include <cairn/value.h>

namespace cairn {

/// Numbers, texts and values as bytes, for summaries that are read faster than JSON
/// (docs/format/events.md, "Summaries"). Equal values are equal bytes: one number, one spelling.
class CompactWriter {
 public:
  void Number(std::uint64_t value);
  /// Small negative numbers are short, too.
  void Signed(std::int64_t value);
  void Text(std::string_view text);
  void Any(const Value& value);
  std::string Take() { return std::move(out_); }

 private:
  std::string out_;
};

/// The way back. Corruption, beginning with `what`, for bytes that no writer gave.
class CompactReader {
 public:
  CompactReader(std::string_view bytes, std::string_view what) : rest_(bytes), what_(what) {}

  bool empty() const { return rest_.empty(); }
  Status Number(std::uint64_t* value);
  Status Signed(std::int64_t* value);
  Status Text(std::string* text);
  /// The bytes of a text where they are.
  Status View(std::string_view* text);
  /// How many things follow, each of at least a byte.
  Status Count(std::uint64_t* count);
  Status Any(Value* value) { return Any(value, 0); }
  Status Wrong(std::string_view how) const;

 private:
  Status Any(Value* value, int depth);
  Status List(Value* value, int depth);
  Status Object(Value* value, int depth);

  std::string_view rest_;
  std::string_view what_;
};

}  // namespace cairn
