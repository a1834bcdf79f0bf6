#pragma once

#include <string>
#include <string_view>

#include <cairn/status.h>

/// What the kernel would say, as posix_fs.cc turns it into a status.
namespace cairn::sim_errors {

inline std::string Message(std::string_view op, std::string_view path, std::string_view words) {
  std::string text(op);
  text.append(" ").append(path).append(": ").append(words);
  return text;
}

inline Status NoEntry(std::string_view op, std::string_view path) {
  return NotFoundError(Message(op, path, "No such file or directory"));
}
inline Status Exists(std::string_view op, std::string_view path) {
  return AlreadyExistsError(Message(op, path, "File exists"));
}
inline Status IsADirectory(std::string_view op, std::string_view path) {
  return InvalidArgumentError(Message(op, path, "Is a directory"));
}
inline Status NotADirectory(std::string_view op, std::string_view path) {
  return InvalidArgumentError(Message(op, path, "Not a directory"));
}
inline Status NotEmpty(std::string_view op, std::string_view path) {
  return FailedPreconditionError(Message(op, path, "Directory not empty"));
}
inline Status NoSpace(std::string_view op, std::string_view path) {
  return ResourceExhaustedError(Message(op, path, "No space left on device"));
}
inline Status Refused(std::string_view op, std::string_view path) {
  return InvalidArgumentError(Message(op, path, "Invalid argument"));
}

}  // namespace cairn::sim_errors
