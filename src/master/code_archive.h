#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include <cairn/status.h>

namespace cairn::master {

struct CodeLimits {
  std::uint64_t archive_bytes = 64u << 20;  // packed
  std::uint64_t bytes = 256u << 20;         // of all files, unpacked
  std::uint64_t entries = 20'000;
  std::size_t path_bytes = 1024;
};

/// The directory as a .tar.gz, without what its .cairnignore leaves out. Files, directories,
/// symbolic links that stay inside; anything else is InvalidArgument with its name.
/// ResourceExhausted over a limit, naming the largest files. The same files give the same bytes.
Result<std::string> PackCode(const std::string& directory, const CodeLimits& limits = {});

/// Something in an archive, found to be harmless: `path` is relative, without "." and "..", and so
/// is what a link points to after its first "../"s, which do not leave the root.
struct CodeEntry {
  enum class Kind : std::uint8_t { kDirectory, kFile, kLink } kind = Kind::kFile;
  std::string path;
  bool executable = false;
  std::string target;  // of a link
};

struct CodeVisitor {
  std::function<Status(const CodeEntry&)> entry;
  std::function<Status(std::string_view bytes)> data;  // of the file named last
};

/// Reads a .tar or .tar.gz. InvalidArgument, with the name, for what is no archive or not harmless;
/// ResourceExhausted over a limit. Nobody's archive is trusted.
Status VisitCode(std::string_view archive, const CodeLimits& limits, const CodeVisitor& visitor);

/// Unpacks into `directory`, which must not be there and appears whole and synced, or not at all.
/// What a crash leaves is beside it, under a name that ends with ".partial".
Status ExtractCode(std::string_view archive, const std::string& directory,
                   const CodeLimits& limits = {});

}  // namespace cairn::master
