#pragma once

#include <string>
#include <string_view>

#include <cairn/status.h>
#include <cairn/value.h>

namespace cairn {

/// JSON text nests at most so deep; the outermost value is level 1.
inline constexpr int kMaxJsonDepth = 64;

/// JSON text of a Value: members in key order, shortest digits that read back to the same double
/// (a double always has a point or an exponent, so that it stays one), NaN and infinities as the
/// strings "NaN", "Infinity", "-Infinity". `indent` < 0: one line. The result is always valid JSON:
/// bytes that are not UTF-8 become U+FFFD; what must not be changed is checked with
/// ValidateJsonValue first.
std::string EncodeJson(const Value& value, int indent = -1);
/// The same, appended to `out`, on one line.
void AppendJson(const Value& value, std::string* out);
/// A quoted and escaped string, appended to `out`.
void AppendJsonString(std::string_view text, std::string* out);

/// Strict JSON (RFC 8259, UTF-8 checked, no byte order mark, at most kMaxJsonDepth levels, no
/// member twice). Integers that fit 64 bits stay integers, larger ones become doubles, numbers
/// beyond the doubles are refused. "NaN" and the like stay strings: a reader of numbers uses
/// NumberFrom.
Result<Value> DecodeJson(std::string_view text);

/// InvalidArgument for a value that would not come back from EncodeJson and DecodeJson: nested
/// deeper than `depth`, or with text that is not UTF-8. (Non-finite numbers come back as strings.)
Status ValidateJsonValue(const Value& value, int depth = kMaxJsonDepth);

/// The value as a number where it is one, or where it is one of the three strings for non-finite
/// numbers; null value otherwise.
Value NumberFrom(const Value& value);
/// Puts back, at any depth, the non-finite numbers that were encoded as strings. For values that
/// hold numbers only: metrics and counters.
void RestoreNonFinite(Value* value);

bool IsValidUtf8(std::string_view text);

/// `text` in quotes for a message: escaped, and cut when it is very long.
std::string QuoteForMessage(std::string_view text);

}  // namespace cairn
