#include "cli/token_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/status_macros.h"
#include "net/url.h"

namespace cairn::cli {
namespace {

namespace fs = std::filesystem;

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// <the variable>/cairn/tokens, or <home>/<fallback>/cairn/tokens.
Result<fs::path> TokenDirectory(const char* variable, const char* fallback) {
  const std::string named = Variable(variable);
  if (!named.empty() && named.front() == '/') return fs::path(named) / "cairn" / "tokens";
  const std::string home = Variable("HOME");
  if (home.empty()) return NotFoundError("there is no home directory: set HOME");
  return fs::path(home) / fallback / "cairn" / "tokens";
}

struct Place {
  std::string host;
  std::uint16_t port = 0;
  bool loopback = false;
};

Result<Place> PlaceOf(std::string_view url) {
  ASSIGN_OR_RETURN(const Url parsed, ParseUrl(url));
  Place place;
  place.host = parsed.Host();
  place.port = parsed.scheme == "https" ? 443 : 80;
  const std::size_t colon = parsed.authority.rfind(':');
  if (colon != std::string::npos && parsed.authority.back() != ']') {
    const char* const begin = parsed.authority.data() + colon + 1;
    const char* const end = parsed.authority.data() + parsed.authority.size();
    const auto [rest, error] = std::from_chars(begin, end, place.port);
    if (error != std::errc() || rest != end) {
      return InvalidArgumentError(fmt::format("\"{}\" has no port that makes sense", url));
    }
  }
  place.loopback =
      place.host == "localhost" || place.host == "::1" || place.host.starts_with("127.");
  for (const char c : place.host) {
    if (c == '/' || static_cast<unsigned char>(c) < ' ') {
      return InvalidArgumentError("that is no host name");
    }
  }
  return place;
}

Status Errno(const std::string& what) {
  return PermissionDeniedError(fmt::format("{}: {}", what, std::strerror(errno)));
}

}  // namespace

Result<std::string> LocalTokenPath(std::uint16_t port) {
  ASSIGN_OR_RETURN(const fs::path directory, TokenDirectory("XDG_RUNTIME_DIR", ".cache"));
  return (directory / fmt::format("local_{}", port)).string();
}

Result<std::string> LoginTokenPath(std::string_view url) {
  ASSIGN_OR_RETURN(const Place place, PlaceOf(url));
  ASSIGN_OR_RETURN(const fs::path directory, TokenDirectory("XDG_CONFIG_HOME", ".config"));
  const std::string host = place.loopback ? "local" : place.host;
  return (directory / fmt::format("{}_{}", host, place.port)).string();
}

Status WriteToken(const std::string& path, std::string_view token) {
  const fs::path directory = fs::path(path).parent_path();
  std::error_code error;
  fs::create_directories(directory.parent_path(), error);
  if (mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
    return Errno("cannot make " + directory.string());
  }
  std::string temporary = path + ".XXXXXX";
  const int file = mkostemp(temporary.data(), O_CLOEXEC);  // mode 0600
  if (file < 0) return Errno("cannot write " + path);
  const std::string line = std::string(token) + "\n";
  const bool written = write(file, line.data(), line.size()) == static_cast<ssize_t>(line.size());
  const bool closed = close(file) == 0;
  if (!written || !closed || rename(temporary.c_str(), path.c_str()) != 0) {
    Status status = Errno("cannot write " + path);
    unlink(temporary.c_str());
    return status;
  }
  return Status::Ok();
}

Result<std::string> ReadToken(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0) {
    if (errno == ENOENT || errno == ENOTDIR) return std::string();
    return Errno("cannot read the token in " + path);
  }
  struct stat about{};
  char text[512];
  const bool known = fstat(file, &about) == 0;
  const ssize_t length = known ? read(file, text, sizeof text) : -1;
  close(file);
  if (length < 0) return Errno("cannot read the token in " + path);
  if (about.st_uid != geteuid() || (about.st_mode & 077) != 0) {
    return PermissionDeniedError(
        fmt::format("{} can be read by others, so it is not used: make a new token", path));
  }
  std::string token(text, static_cast<std::size_t>(length));
  while (!token.empty() && static_cast<unsigned char>(token.back()) <= ' ') token.pop_back();
  return token;
}

Status RemoveToken(const std::string& path) {
  if (unlink(path.c_str()) != 0 && errno != ENOENT && errno != ENOTDIR) {
    return Errno("cannot remove " + path);
  }
  return Status::Ok();
}

Result<std::string> FindToken(std::string_view url) {
  std::string token = Variable("CAIRN_TOKEN");
  if (!token.empty()) return token;
  ASSIGN_OR_RETURN(const Place place, PlaceOf(url));
  if (const auto login = LoginTokenPath(url); login.ok()) {
    ASSIGN_OR_RETURN(token, ReadToken(*login));
    if (!token.empty()) return token;
  }
  if (!place.loopback) return token;
  if (const auto local = LocalTokenPath(place.port); local.ok()) return ReadToken(*local);
  return token;
}

}  // namespace cairn::cli
