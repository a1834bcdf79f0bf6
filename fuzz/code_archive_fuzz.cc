// Whatever an archive holds, every entry that is let through stays inside the directory it is
// unpacked into, and the bounds on bytes and entries hold.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "fuzz/require.h"
#include "master/code_archive.h"

namespace cairn::master {
namespace {

bool Climbs(std::string_view path) {
  return path == ".." || path.starts_with("../") || path.find("/../") != std::string_view::npos ||
         path.ends_with("/..");
}

void Check(std::string_view archive) {
  const CodeLimits limits{.archive_bytes = 1u << 20, .bytes = 1u << 20, .entries = 100};
  std::uint64_t entries = 0;
  std::uint64_t bytes = 0;
  CodeVisitor visitor;
  visitor.entry = [&](const CodeEntry& entry) {
    Require(++entries <= limits.entries, "entries are bounded");
    Require(!entry.path.empty() && entry.path.size() <= limits.path_bytes, "a name has a length");
    Require(entry.path.front() != '/' && !Climbs(entry.path), "a name stays inside");
    Require(entry.path.find('\0') == std::string::npos, "a name has no NUL");
    if (entry.kind == CodeEntry::Kind::kLink) {
      std::string_view target = entry.target;
      Require(!target.empty() && target.front() != '/', "a link is relative");
      auto depth = std::ranges::count(entry.path, '/');
      while (target.starts_with("../") || target.starts_with("./") || target.starts_with('/')) {
        if (target.starts_with("../")) --depth;
        target.remove_prefix(target.find('/') + 1);
      }
      if (target == "..") --depth;
      Require(depth >= 0, "a link does not climb out");
      Require(target == ".." || !Climbs(target), "a link climbs at its beginning alone");
    }
    return Status::Ok();
  };
  visitor.data = [&](std::string_view piece) {
    bytes += piece.size();
    Require(bytes <= limits.bytes, "bytes are bounded");
    return Status::Ok();
  };
  VisitCode(archive, limits, visitor).IgnoreError("most inputs are no archives");
}

}  // namespace
}  // namespace cairn::master

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  cairn::master::Check(std::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
