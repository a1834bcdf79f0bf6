#pragma once

#include <openssl/ssl.h>

#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "base/thread_annotations.h"

namespace cairn {

/// For tests: TLS in front of a server on the loopback interface that speaks none. Bytes go through
/// as they come. The destructor hangs up on all.
class TestTlsFront {
 public:
  TestTlsFront(std::uint16_t server, const std::string& certificate, const std::string& key);
  ~TestTlsFront();
  TestTlsFront(const TestTlsFront&) = delete;
  TestTlsFront& operator=(const TestTlsFront&) = delete;

  std::uint16_t port() const { return port_; }

 private:
  void Accept();
  void Serve(int client);

  const std::uint16_t server_;
  SSL_CTX* const context_;
  int listener_ = -1;
  std::uint16_t port_ = 0;
  Mutex mu_;
  bool stopping_ GUARDED_BY(mu_) = false;
  std::vector<int> sockets_ GUARDED_BY(mu_);
  std::vector<std::jthread> threads_ GUARDED_BY(mu_);
  std::jthread acceptor_;
};

}  // namespace cairn
