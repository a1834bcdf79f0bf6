#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

/// For tests: stands between a client and a server and cuts connections off in the middle.
namespace cairn::ps {

class DroppingProxy {
 public:
  /// `drop_after`: about how many bytes a connection lives; 0: for ever.
  DroppingProxy(int target_port, std::uint64_t drop_after, std::uint64_t seed)
      : DroppingProxy([target_port] { return target_port; }, drop_after, seed) {}
  /// `target_port` tells it anew for each connection; 0: nobody is there.
  DroppingProxy(std::function<int()> target_port, std::uint64_t drop_after, std::uint64_t seed)
      : target_port_(std::move(target_port)), drop_after_(drop_after), random_(seed) {
    listen_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = Loopback(0);
    socklen_t size = sizeof address;
    if (bind(listen_, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        listen(listen_, 64) != 0) {
      std::abort();
    }
    getsockname(listen_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    accept_ = std::jthread([this](const std::stop_token& stop) { Accept(stop); });
  }
  ~DroppingProxy() {
    accept_.request_stop();
    accept_.join();
    close(listen_);
  }
  DroppingProxy(const DroppingProxy&) = delete;
  DroppingProxy& operator=(const DroppingProxy&) = delete;

  int port() const { return port_; }
  int drops() const { return drops_; }
  /// From now on connections live.
  void Calm() { drop_after_ = 0; }

 private:
  static sockaddr_in Loopback(int port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    return address;
  }
  void Accept(const std::stop_token& stop) {
    std::vector<std::jthread> connections;
    while (!stop.stop_requested()) {
      pollfd ready{listen_, POLLIN, 0};
      if (poll(&ready, 1, 20) != 1) continue;
      const int client = accept4(listen_, nullptr, nullptr, SOCK_CLOEXEC);
      const int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      sockaddr_in address = Loopback(target_port_());
      if (connect(server, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
        close(client);
        close(server);
        continue;
      }
      const std::uint64_t limit = drop_after_ == 0 ? 0 : drop_after_ / 2 + random_() % drop_after_;
      connections.emplace_back([this, client, server, limit](const std::stop_token& end) {
        Pump(client, server, limit, end);
        close(client);
        close(server);
      });
    }
  }
  void Pump(int client, int server, std::uint64_t limit, const std::stop_token& stop) {
    std::uint64_t passed = 0;
    char buffer[65536];
    while (!stop.stop_requested()) {
      pollfd fds[2] = {{client, POLLIN, 0}, {server, POLLIN, 0}};
      if (poll(fds, 2, 20) <= 0) continue;
      for (const int from : {0, 1}) {
        if (fds[from].revents == 0) continue;
        const ssize_t n = recv(fds[from].fd, buffer, sizeof buffer, 0);
        if (n <= 0) return;
        auto bytes = static_cast<std::uint64_t>(n);
        if (limit != 0 && passed + bytes > limit) {
          // In the middle of a message, as often as not.
          bytes = limit - passed;
          (void)!send(fds[1 - from].fd, buffer, bytes, MSG_NOSIGNAL);
          ++drops_;
          return;
        }
        passed += bytes;
        for (std::uint64_t sent = 0; sent < bytes;) {
          const ssize_t m = send(fds[1 - from].fd, buffer + sent, bytes - sent, MSG_NOSIGNAL);
          if (m <= 0) return;
          sent += static_cast<std::uint64_t>(m);
        }
      }
    }
  }

  const std::function<int()> target_port_;
  std::atomic<std::uint64_t> drop_after_;
  std::mt19937_64 random_;  // of the accepting thread
  int listen_ = -1;
  int port_ = 0;
  std::atomic<int> drops_{0};
  std::jthread accept_;
};

}  // namespace cairn::ps
