#include "launch/launch_spec.h"

#include <algorithm>
#include <string>

#include "base/status_macros.h"
#include "format/json.h"

namespace cairn {
namespace {

Status CheckText(std::string_view what, const std::string& text) {
  if (text.find('\0') != std::string::npos || !IsValidUtf8(text)) {
    return InvalidArgumentError(std::string(what) +
                                " holds bytes that are no text: " + QuoteForMessage(text));
  }
  return Status::Ok();
}

}  // namespace

bool IsLaunchId(std::string_view id) {
  if (id.empty() || id.size() > 128 || id[0] == '.') return false;
  return std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  });
}

Status ValidateSpec(const LaunchSpec& spec) {
  if (!IsLaunchId(spec.id)) {
    return InvalidArgumentError("id must be 1 to 128 letters, digits, '-', '_' or '.', not " +
                                QuoteForMessage(spec.id));
  }
  if (spec.argv.empty() || spec.argv[0].empty()) {
    return InvalidArgumentError("argv must name a program");
  }
  for (const std::string& argument : spec.argv) RETURN_IF_ERROR(CheckText("argv", argument));
  RETURN_IF_ERROR(CheckText("cwd", spec.cwd));
  for (const auto& [name, value] : spec.env) {
    if (name.empty() || name.find('=') != std::string::npos ||
        name.find('\0') != std::string::npos || value.find('\0') != std::string::npos) {
      return InvalidArgumentError("env: no variable can be called " + QuoteForMessage(name));
    }
  }
  if (spec.processes < 1 || spec.processes > kMaxLaunchProcesses) {
    return InvalidArgumentError("processes must be 1 to " + std::to_string(kMaxLaunchProcesses));
  }
  if (spec.slots < 0) return InvalidArgumentError("slots must not be negative");
  if (spec.grace.count() < 0) return InvalidArgumentError("grace must not be negative");
  if (spec.limits.wall_time.count() < 0) {
    return InvalidArgumentError("limits.wall_time must not be negative");
  }
  return Status::Ok();
}

}  // namespace cairn
