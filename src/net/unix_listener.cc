#include "net/unix_listener.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace cairn {

Result<int> BindUnixSocket(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    return InvalidArgumentError(
        fmt::format("http server: the socket's path \"{}\" has {} bytes; 1 to {} are possible",
                    path, path.size(), sizeof address.sun_path - 1));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  auto* const raw = reinterpret_cast<sockaddr*>(&address);
  const int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (probe < 0) return InternalError(fmt::format("http server: socket: {}", strerror(errno)));
  const bool lives = connect(probe, raw, sizeof address) == 0;
  const bool refused = !lives && errno == ECONNREFUSED;
  close(probe);
  if (lives) {
    return UnavailableError(fmt::format("http server: somebody listens on \"{}\"", path));
  }
  if (refused) unlink(path.c_str());  // what a killed server left
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return InternalError(fmt::format("http server: socket: {}", strerror(errno)));
  // Before it has a name nobody can connect, so the mode is right from the first moment on.
  fchmod(fd, 0600);
  if (bind(fd, raw, sizeof address) != 0 || chmod(path.c_str(), 0600) != 0) {
    const int error = errno;
    close(fd);
    const std::string message = fmt::format("http server: bind \"{}\": {}", path, strerror(error));
    return error == EADDRINUSE ? UnavailableError(message) : InvalidArgumentError(message);
  }
  return fd;
}

}  // namespace cairn
