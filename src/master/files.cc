#include "master/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/ids.h"
#include "launch/process_identity.h"

namespace cairn::master {
namespace {

Status Failed(const std::string& path) {
  const std::string message = fmt::format("{}: {}", path, std::strerror(errno));
  if (errno == ENOSPC || errno == EDQUOT) return ResourceExhaustedError(message);
  if (errno == ENOENT) return NotFoundError(message);
  if (errno == EACCES || errno == EPERM) return PermissionDeniedError(message);
  return UnavailableError(message);
}

Status WriteAll(int fd, const std::string& path, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Failed(path);
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return fsync(fd) == 0 ? Status::Ok() : Failed(path);
}

}  // namespace

Status WriteWhole(const std::string& path, std::string_view bytes, mode_t mode) {
  const std::string temporary = fmt::format("{}.{}.partial", path, IdSource::System()->NewUuid());
  OwnedFd file(open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
  if (!file.valid()) return Failed(temporary);
  Status status = WriteAll(file.get(), temporary, bytes);
  file.Reset();
  if (status.ok() && rename(temporary.c_str(), path.c_str()) != 0) status = Failed(path);
  if (!status.ok()) {
    unlink(temporary.c_str());
    return status;
  }
  const std::string parent = std::filesystem::path(path).parent_path().string();
  const OwnedFd above(
      open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return above.valid() && fsync(above.get()) == 0 ? Status::Ok() : Failed(parent);
}

Result<std::string> ReadWhole(const std::string& path) {
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  if (!in) return Failed(path);
  std::stringstream bytes;
  bytes << in.rdbuf();
  if (in.bad()) return Failed(path);
  return std::move(bytes).str();
}

}  // namespace cairn::master
