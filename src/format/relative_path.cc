#include "format/relative_path.h"

#include <algorithm>
#include <string>

#include "base/status_macros.h"
#include "format/json.h"

namespace cairn {
namespace {

constexpr std::size_t kMaxPath = 1024;
constexpr std::size_t kMaxComponent = 255;
// Leaves room for what is put around a participant's name in a file's name.
constexpr std::size_t kMaxParticipant = 128;

Status Refuse(std::string_view path, std::string_view why) {
  return InvalidArgumentError("path " + QuoteForMessage(path) + " " + std::string(why));
}

bool IsControl(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; }

}  // namespace

Status ValidateRelativePath(std::string_view path) {
  if (path.empty()) return Refuse(path, "is empty");
  if (path.size() > kMaxPath) return Refuse(path, "is longer than 1024 bytes");
  if (std::ranges::any_of(path, IsControl)) return Refuse(path, "holds a control character");
  if (!IsValidUtf8(path)) return Refuse(path, "is not UTF-8");
  for (std::string_view rest = path;;) {
    const std::size_t slash = rest.find('/');
    const std::string_view component = rest.substr(0, slash);
    if (component.empty()) return Refuse(path, "has an empty component");
    if (component == "." || component == "..") return Refuse(path, "has a component '.' or '..'");
    if (component.size() > kMaxComponent) return Refuse(path, "has a component over 255 bytes");
    if (slash == rest.npos) return {};
    rest.remove_prefix(slash + 1);
  }
}

Status ValidateParticipant(std::string_view name) {
  RETURN_IF_ERROR(ValidateRelativePath(name).WithContext("participant"));
  if (name.find('/') != name.npos) return Refuse(name, "is no participant's name: it has a '/'");
  if (name.size() > kMaxParticipant) return Refuse(name, "is too long for a participant's name");
  return {};
}

}  // namespace cairn
