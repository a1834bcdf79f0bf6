#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace cairn {

/// A JSON-like value for counters, metrics and metadata: null, bool, 64-bit integer, double
/// (NaN and infinities allowed), string, list, object with sorted keys. A value type.
class Value {
 public:
  using List = std::vector<Value>;
  using Object = std::map<std::string, Value, std::less<>>;

  Value() = default;
  Value(std::nullptr_t) {}                            // NOLINT
  Value(bool b) : v_(b) {}                            // NOLINT
  Value(int i) : v_(static_cast<std::int64_t>(i)) {}  // NOLINT
  Value(std::int64_t i) : v_(i) {}                    // NOLINT
  Value(std::uint64_t i);                             // NOLINT
  Value(double d) : v_(d) {}                          // NOLINT
  Value(const char* s) : v_(std::string(s)) {}        // NOLINT
  Value(std::string s) : v_(std::move(s)) {}          // NOLINT
  Value(std::string_view s) : v_(std::string(s)) {}   // NOLINT
  Value(List list) : v_(std::move(list)) {}           // NOLINT
  Value(Object object) : v_(std::move(object)) {}     // NOLINT

  bool is_null() const { return std::holds_alternative<std::monostate>(v_); }
  bool is_bool() const { return std::holds_alternative<bool>(v_); }
  bool is_int() const {
    return std::holds_alternative<std::int64_t>(v_) || std::holds_alternative<std::uint64_t>(v_);
  }
  bool is_double() const { return std::holds_alternative<double>(v_); }
  bool is_number() const { return is_int() || is_double(); }
  bool is_string() const { return std::holds_alternative<std::string>(v_); }
  bool is_list() const { return std::holds_alternative<List>(v_); }
  bool is_object() const { return std::holds_alternative<Object>(v_); }

  // The typed pointers are null when the value is of another type.
  const bool* if_bool() const { return std::get_if<bool>(&v_); }
  const std::int64_t* if_int64() const { return std::get_if<std::int64_t>(&v_); }
  const std::uint64_t* if_uint64() const { return std::get_if<std::uint64_t>(&v_); }
  const double* if_double() const { return std::get_if<double>(&v_); }
  const std::string* if_string() const { return std::get_if<std::string>(&v_); }
  const List* if_list() const { return std::get_if<List>(&v_); }
  List* if_list() { return std::get_if<List>(&v_); }
  const Object* if_object() const { return std::get_if<Object>(&v_); }
  Object* if_object() { return std::get_if<Object>(&v_); }

  /// The number as a double (exactness may be lost above 2^53), or `fallback`.
  double AsDouble(double fallback = 0) const;
  /// The integer when it fits, or `fallback`.
  std::int64_t AsInt(std::int64_t fallback = 0) const;

  /// The member `key`, or null; `a/b` reaches into nested objects when no member is called so.
  const Value* Find(std::string_view key) const;

  friend bool operator==(const Value& a, const Value& b) { return a.v_ == b.v_; }

 private:
  // An integer that fits int64 is always held as int64, so that equality is by value.
  std::variant<std::monostate, bool, std::int64_t, std::uint64_t, double, std::string, List, Object>
      v_;
};

/// Compares two numbers exactly, whatever mix of integers and doubles: -1, 0, 1. Neither is NaN.
int CompareNumbers(const Value& a, const Value& b);

}  // namespace cairn
