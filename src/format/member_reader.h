#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/status.h>
#include <cairn/value.h>

namespace cairn {

/// Reads the members of a decoded record by name and type. Each function gives Corruption, naming
/// the member, when it is missing or of another type; the Optional ones leave `out` as it is when
/// the member is missing or null. Members that nobody asks for are ignored. The object must outlive
/// the reader.
class MemberReader {
 public:
  explicit MemberReader(const Value::Object& members) : members_(members) {}

  bool Has(std::string_view key) const { return members_.find(key) != members_.end(); }

  Status Text(std::string_view key, std::string* out) const;  // not empty
  Status OptionalText(std::string_view key, std::string* out) const;
  Status Int(std::string_view key, std::int64_t* out) const;
  Status OptionalInt(std::string_view key, std::int64_t* out) const;
  Status Uint(std::string_view key, std::uint64_t* out) const;
  Status OptionalUint(std::string_view key, std::uint64_t* out) const;
  Status OptionalBool(std::string_view key, bool* out) const;
  Status Texts(std::string_view key, std::vector<std::string>* out) const;
  Status OptionalTexts(std::string_view key, std::vector<std::string>* out) const;
  Status OptionalObject(std::string_view key, Value* out) const;
  /// The elements of a list; null where it is missing or null.
  Status OptionalList(std::string_view key, const Value::List** out) const;

 private:
  const Value* Find(std::string_view key) const;

  const Value::Object& members_;
};

}  // namespace cairn
