#include "storage/store.h"

#include <fmt/format.h>

namespace cairn {
namespace {

constexpr std::size_t kMaxNameBytes = 1024;
constexpr std::size_t kMaxComponentBytes = 255;
constexpr std::string_view kTemporaryPrefix = ".cairn-tmp";

// Names come from users and from damaged records: a message shows them short and printable.
std::string Quoted(std::string_view text) {
  constexpr std::size_t kShown = 80;
  std::string out = "\"";
  for (const char c : text.substr(0, kShown)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  out += text.size() > kShown ? "…\"" : "\"";
  return out;
}

Status Refused(std::string_view name, std::string_view reason) {
  return InvalidArgumentError(fmt::format("object name {}: {}", Quoted(name), reason));
}

}  // namespace

Status ValidateObjectName(std::string_view name) {
  if (name.empty()) return Refused(name, "is empty");
  if (name.size() > kMaxNameBytes) {
    return Refused(name,
                   fmt::format("has {} bytes, at most {} are allowed", name.size(), kMaxNameBytes));
  }
  if (name.front() == '/') return Refused(name, "is absolute, names are relative to the store");
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) return Refused(name, "contains a control character");
  }
  std::size_t begin = 0;
  while (begin <= name.size()) {
    const std::size_t end = std::min(name.find('/', begin), name.size());
    const std::string_view component = name.substr(begin, end - begin);
    if (component.empty()) return Refused(name, "has an empty component");
    if (component == "." || component == "..") {
      return Refused(name, "has a component \".\" or \"..\"");
    }
    if (component.size() > kMaxComponentBytes) {
      return Refused(name, fmt::format("has a component of {} bytes, at most {} are allowed",
                                       component.size(), kMaxComponentBytes));
    }
    if (component.starts_with(kTemporaryPrefix)) {
      return Refused(name,
                     "has a component that starts with \".cairn-tmp\", which the store keeps "
                     "for itself");
    }
    begin = end + 1;
  }
  return Status::Ok();
}

}  // namespace cairn
