#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>

namespace cairn {

/// A port of 127.0.0.1 that is kept for one server, for who starts it in a process of its own, or
/// starts it again at the same place: nobody else is given it, neither as "any port"
/// nor for an outgoing connection, also while the server is not running. The socket is bound with
/// SO_REUSEADDR and never listens, so that whoever names the port and binds with SO_REUSEADDR too,
/// as servers do, may listen at it (decision 471).
class HeldPort {
 public:
  HeldPort() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    const int on = 1;
    if (fd_ >= 0 && setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
        bind(fd_, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
        getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size) == 0) {
      number_ = ntohs(address.sin_port);
    }
  }
  ~HeldPort() {
    if (fd_ >= 0) close(fd_);
  }
  HeldPort(const HeldPort&) = delete;
  HeldPort& operator=(const HeldPort&) = delete;

  /// 0: none was free.
  std::uint16_t number() const { return number_; }

 private:
  const int fd_;
  std::uint16_t number_ = 0;
};

}  // namespace cairn
