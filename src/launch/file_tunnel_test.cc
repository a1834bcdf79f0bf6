#include "launch/file_tunnel.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <thread>

#include "launch/launcher_fixture.h"
#include "launch/process_identity.h"

namespace cairn {
namespace {

/// Answers each connection with what it sent, byte for byte, until it ends.
class Echo {
 public:
  Echo() {
    listening_ = OwnedFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(bind(listening_.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(listening_.get(), 16), 0);
    getsockname(listening_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::jthread([this] {
      for (;;) {
        OwnedFd taken(accept(listening_.get(), nullptr, nullptr));
        if (!taken.valid()) return;
        serving_.emplace_back([fd = std::move(taken)] {
          char block[4096];
          for (ssize_t got = 0; (got = recv(fd.get(), block, sizeof block, 0)) > 0;) {
            if (send(fd.get(), block, static_cast<std::size_t>(got), MSG_NOSIGNAL) != got) return;
          }
        });
      }
    });
  }
  ~Echo() { shutdown(listening_.get(), SHUT_RDWR); }
  std::uint16_t port() const { return port_; }

 private:
  OwnedFd listening_;
  std::uint16_t port_ = 0;
  std::vector<std::jthread> serving_;
  std::jthread thread_;
};

OwnedFd Connect(const std::string& path) {
  OwnedFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  const timeval patience{.tv_sec = 30, .tv_usec = 0};
  setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  return fd;
}

std::string Receive(const OwnedFd& fd, std::size_t size) {
  std::string bytes(size, 0);
  std::size_t at = 0;
  while (at < size) {
    const ssize_t got = recv(fd.get(), bytes.data() + at, size - at, 0);
    if (got <= 0) break;
    at += static_cast<std::size_t>(got);
  }
  bytes.resize(at);
  return bytes;
}

class FileTunnelTest : public ::testing::Test {
 protected:
  std::string Directory() const { return (temp_.path() / "tunnel").string(); }
  bool Empty() const { return std::filesystem::is_empty(Directory()); }

  TempDir temp_;
  Echo echo_;
};

TEST_F(FileTunnelTest, PassesBytesBothWaysAndLeavesNothing) {
  auto exit = TunnelExit::Open(Directory(), echo_.port());
  ASSERT_TRUE(exit.ok()) << exit.status().ToString();
  auto entry = TunnelEntry::Open(Directory());
  ASSERT_TRUE(entry.ok()) << entry.status().ToString();
  {
    const OwnedFd one = Connect((*entry)->socket());
    const OwnedFd two = Connect((*entry)->socket());
    ASSERT_EQ(send(one.get(), "hello", 5, 0), 5);
    ASSERT_EQ(send(two.get(), "you", 3, 0), 3);
    EXPECT_EQ(Receive(one, 5), "hello");
    EXPECT_EQ(Receive(two, 3), "you");
    std::string much;
    for (int i = 0; much.size() < 3'000'000; ++i) much += std::to_string(i);
    std::jthread sender([&] {
      EXPECT_EQ(send(one.get(), much.data(), much.size(), 0), static_cast<ssize_t>(much.size()));
    });
    EXPECT_EQ(Receive(one, much.size()), much);
  }
  const auto deadline = std::chrono::steady_clock::now() + 30s;
  while (!Empty() && std::chrono::steady_clock::now() < deadline) std::this_thread::sleep_for(5ms);
  EXPECT_TRUE(Empty());
}

TEST_F(FileTunnelTest, AServerThatIsStartedAgainEndsWhatWasBegun) {
  auto exit = TunnelExit::Open(Directory(), echo_.port());
  auto entry = TunnelEntry::Open(Directory());
  const OwnedFd before = Connect((*entry)->socket());
  ASSERT_EQ(send(before.get(), "a", 1, 0), 1);
  EXPECT_EQ(Receive(before, 1), "a");
  exit->reset();
  exit = TunnelExit::Open(Directory(), echo_.port());
  EXPECT_EQ(Receive(before, 1), "") << "its end is seen";
  const OwnedFd after = Connect((*entry)->socket());
  ASSERT_EQ(send(after.get(), "b", 1, 0), 1);
  EXPECT_EQ(Receive(after, 1), "b");
}

TEST_F(FileTunnelTest, WhatIsSentBeforeTheServerIsThereIsRefusedWhenItComes) {
  std::filesystem::create_directory(Directory());
  auto entry = TunnelEntry::Open(Directory());
  const OwnedFd early = Connect((*entry)->socket());
  ASSERT_EQ(send(early.get(), "a", 1, 0), 1);
  while (Empty()) std::this_thread::sleep_for(2ms);
  auto exit = TunnelExit::Open(Directory(), echo_.port());
  EXPECT_EQ(Receive(early, 1), "") << "whoever sent it connects again";
}

}  // namespace
}  // namespace cairn
