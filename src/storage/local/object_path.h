#pragma once

#include <string>
#include <string_view>

namespace cairn {

/// Object names as paths below a local store's root. "" is the root itself.

inline constexpr std::string_view kTemporaryPrefix = ".cairn-tmp";

/// "a/b" for "a/b/c", "" for "a" and for "".
inline std::string_view ParentOf(std::string_view name) {
  const std::size_t slash = name.rfind('/');
  return slash == std::string_view::npos ? std::string_view() : name.substr(0, slash);
}

/// True when `name` is `prefix` or stands below it.
inline bool IsAtOrBelow(std::string_view name, std::string_view prefix) {
  if (prefix.empty()) return true;
  if (!name.starts_with(prefix)) return false;
  return name.size() == prefix.size() || name[prefix.size()] == '/';
}

inline std::string JoinPath(std::string_view directory, std::string_view name) {
  if (directory.empty()) return std::string(name);
  if (name.empty()) return std::string(directory);
  std::string out(directory);
  if (out.back() != '/') out += '/';
  out += name;
  return out;
}

}  // namespace cairn
