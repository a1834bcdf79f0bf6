#include "net/held_port.h"

#include <gtest/gtest.h>

#include <deque>
#include <set>

namespace cairn {
namespace {

/// Whether a socket may be bound to that port, and listen at it.
bool Takes(std::uint16_t port, bool reuse) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = reuse ? 1 : 0;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  const bool taken = setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
                     bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
                     listen(fd, 1) == 0;
  close(fd);
  return taken;
}

TEST(HeldPort, EveryOneIsAnotherAndIsKeptForItsServer) {
  constexpr std::size_t kMany = 500;
  std::deque<HeldPort> ports(kMany);
  std::set<std::uint16_t> numbers;
  for (const HeldPort& port : ports) numbers.insert(port.number());
  EXPECT_EQ(numbers.size(), kMany);
  EXPECT_FALSE(numbers.contains(0));
  const std::uint16_t one = *numbers.begin();
  EXPECT_FALSE(Takes(one, /*reuse=*/false));
  for (int starts = 0; starts < 3; ++starts) EXPECT_TRUE(Takes(one, /*reuse=*/true));
}

}  // namespace
}  // namespace cairn
