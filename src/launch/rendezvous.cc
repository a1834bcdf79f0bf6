#include "launch/rendezvous.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "base/status_macros.h"
#include "launch/process_identity.h"

namespace cairn {

Result<std::string> HostName() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return ErrnoStatus("gethostname", errno);
  return std::string(name.data());
}

Result<Rendezvous> FreeRendezvous() {
  ASSIGN_OR_RETURN(std::string host, HostName());
  const OwnedFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t size = sizeof address;
  if (!fd.valid() || bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return ErrnoStatus("find a free port", errno);
  }
  return Rendezvous{.host = std::move(host), .port = ntohs(address.sin_port)};
}

}  // namespace cairn
