#include "rpc/addresses.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <array>
#include <charconv>
#include <cstring>
#include <memory>

namespace cairn::rpc {
namespace {

bool IsAny(std::string_view host) {
  return host.empty() || host == "*" || host == "0.0.0.0" || host == "::";
}

/// Whether both ends of a connection have the same address.
bool WithinMachine(int fd) {
  sockaddr_storage here{};
  sockaddr_storage there{};
  socklen_t here_size = sizeof here;
  socklen_t there_size = sizeof there;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&here), &here_size) != 0 ||
      getpeername(fd, reinterpret_cast<sockaddr*>(&there), &there_size) != 0 ||
      here.ss_family != there.ss_family) {
    return false;
  }
  if (here.ss_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in*>(&here)->sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in*>(&there)->sin_addr.s_addr;
  }
  return here.ss_family == AF_INET6 &&
         IN6_ARE_ADDR_EQUAL(&reinterpret_cast<const sockaddr_in6*>(&here)->sin6_addr,
                            &reinterpret_cast<const sockaddr_in6*>(&there)->sin6_addr);
}

}  // namespace

Result<std::vector<SocketAddress>> ResolveAddress(std::string_view address, bool listen) {
  const std::size_t colon = address.rfind(':');
  if (colon == address.npos) {
    return InvalidArgumentError("\"" + std::string(address) + "\" is not host:port");
  }
  std::string_view host = address.substr(0, colon);
  const std::string_view port = address.substr(colon + 1);
  std::uint16_t number = 0;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
  if (error != std::errc() || end != port.data() + port.size() || (number == 0 && !listen)) {
    return InvalidArgumentError("\"" + std::string(address) + "\" has no port");
  }
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  std::vector<SocketAddress> found;
  if (listen && IsAny(host)) {
    // One socket for both protocols; where there is no IPv6, the other is taken instead.
    SocketAddress six;
    six.storage.ss_family = AF_INET6;
    six.size = sizeof(sockaddr_in6);
    SetPort(&six, number);
    SocketAddress four;
    four.storage.ss_family = AF_INET;
    four.size = sizeof(sockaddr_in);
    SetPort(&four, number);
    return std::vector<SocketAddress>{six, four};
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int failed = getaddrinfo(std::string(host).c_str(), nullptr, &hints, &list);
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(list, freeaddrinfo);
  if (failed != 0) {
    return UnavailableError("\"" + std::string(host) + "\": " + gai_strerror(failed));
  }
  for (const addrinfo* each = list; each != nullptr; each = each->ai_next) {
    if (each->ai_family != AF_INET && each->ai_family != AF_INET6) continue;
    SocketAddress one;
    std::memcpy(&one.storage, each->ai_addr, each->ai_addrlen);
    one.size = each->ai_addrlen;
    SetPort(&one, number);
    found.push_back(one);
  }
  if (found.empty()) return UnavailableError("\"" + std::string(host) + "\" has no address");
  return found;
}

int PortOf(const SocketAddress& address) {
  if (address.family() == AF_INET) {
    return ntohs(reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_port);
  }
  if (address.family() == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_port);
  }
  return 0;
}

void SetPort(SocketAddress* address, int port) {
  const std::uint16_t number = htons(static_cast<std::uint16_t>(port));
  if (address->family() == AF_INET) {
    reinterpret_cast<sockaddr_in*>(&address->storage)->sin_port = number;
  } else if (address->family() == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(&address->storage)->sin6_port = number;
  }
}

std::string Describe(const SocketAddress& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const std::string port = ":" + std::to_string(PortOf(address));
  if (address.family() == AF_INET) {
    const auto* four = reinterpret_cast<const sockaddr_in*>(&address.storage);
    inet_ntop(AF_INET, &four->sin_addr, text.data(), text.size());
    return std::string("ipv4:") + text.data() + port;
  }
  if (address.family() == AF_INET6) {
    const auto* six = reinterpret_cast<const sockaddr_in6*>(&address.storage);
    inet_ntop(AF_INET6, &six->sin6_addr, text.data(), text.size());
    return std::string("ipv6:[") + text.data() + "]" + port;
  }
  return "unknown";
}

void TuneConnection(int fd) {
  const auto set = [fd](int level, int option, int value) {
    setsockopt(fd, level, option, &value, sizeof value);  // what is not there is done without
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 20);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(IPPROTO_TCP, TCP_KEEPCNT, 4);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 40'000);  // also while something waits to be sent
  // Within a machine there is no road to share, and a congestion control that spaces packets out in
  // time (BBR) only holds answers back. Every kernel has this one, and lets everybody use it.
  if (WithinMachine(fd)) {
    constexpr std::string_view kUnpaced = "reno";
    setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, kUnpaced.data(), kUnpaced.size());
  }
}

}  // namespace cairn::rpc
