#pragma once

#include <sys/socket.h>

#include <string>
#include <string_view>
#include <vector>

#include <cairn/status.h>

namespace cairn::rpc {

/// One address of a name, as the system's calls want it.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
  const sockaddr* raw() const { return reinterpret_cast<const sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
};

/// All addresses of "host:port", "[::1]:port". `listen`: the host may be empty, "*", "0.0.0.0" or
/// "[::]", any address of this machine in both protocols then. InvalidArgument: not of that form;
/// Unavailable: nobody knows the name.
Result<std::vector<SocketAddress>> ResolveAddress(std::string_view address, bool listen);

/// The port of an address; 0 where it has none.
int PortOf(const SocketAddress& address);
void SetPort(SocketAddress* address, int port);

/// "ipv4:127.0.0.1:5000" or "ipv6:[::1]:5000".
std::string Describe(const SocketAddress& address);

/// Small messages leave at once, and a machine that vanished without a word is noticed. Within a
/// machine nothing is held back to spare the network. Of a connected socket.
void TuneConnection(int fd);

}  // namespace cairn::rpc
