#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/status.h>
#include <cairn/value.h>

namespace cairn::tune {

/// Reads what people wrote: {"name": …, option: …}. Members that are missing or null leave the
/// option as it is. The first mistake is kept and Finish tells it: InvalidArgument that names the
/// member, also for members that nobody asked for.
class DescriptionReader {
 public:
  DescriptionReader(std::string_view what, const Value& description);

  void Text(std::string_view key, std::string* out);
  void Number(std::string_view key, double* out);
  void Int(std::string_view key, int* out);
  void Int64(std::string_view key, std::int64_t* out);
  void Uint64(std::string_view key, std::uint64_t* out);
  void Bool(std::string_view key, bool* out);
  void Numbers(std::string_view key, std::vector<double>* out);
  void Any(std::string_view key, Value* out);
  /// "min" or "max".
  void Mode(std::string_view key, bool* maximize);

  Status Finish() const;

 private:
  const Value* Take(std::string_view key);
  void Wrong(std::string_view key, std::string_view expected);

  std::string what_;
  const Value::Object* members_;
  std::set<std::string, std::less<>> asked_;
  Status status_;
};

}  // namespace cairn::tune
