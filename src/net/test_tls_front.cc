#include "net/test_tls_front.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>

namespace cairn {
namespace {

sockaddr_in Loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

bool SendAll(int socket, const char* bytes, int count) {
  while (count > 0) {
    const ssize_t sent = send(socket, bytes, static_cast<std::size_t>(count), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes += sent;
    count -= static_cast<int>(sent);
  }
  return true;
}

/// Both ways, until one side is at its end. One thread, since a connection of OpenSSL is for one.
void Pump(SSL* tls, int client, int server) {
  char buffer[1 << 14];
  while (true) {
    if (SSL_pending(tls) == 0) {
      pollfd sides[2] = {{.fd = client, .events = POLLIN}, {.fd = server, .events = POLLIN}};
      if (poll(sides, 2, -1) < 0) return;
      if (sides[1].revents != 0) {
        const ssize_t count = recv(server, buffer, sizeof buffer, 0);
        if (count <= 0 || SSL_write(tls, buffer, static_cast<int>(count)) <= 0) return;
        continue;
      }
    }
    const int count = SSL_read(tls, buffer, sizeof buffer);
    if (count <= 0 || !SendAll(server, buffer, count)) return;
  }
}

}  // namespace

TestTlsFront::TestTlsFront(std::uint16_t server, const std::string& certificate,
                           const std::string& key)
    : server_(server), context_(SSL_CTX_new(TLS_server_method())) {
  signal(SIGPIPE, SIG_IGN);  // OpenSSL writes without MSG_NOSIGNAL
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = Loopback(0);
  socklen_t length = sizeof address;
  if (SSL_CTX_use_certificate_chain_file(context_, certificate.c_str()) != 1 ||
      SSL_CTX_use_PrivateKey_file(context_, key.c_str(), SSL_FILETYPE_PEM) != 1 ||
      bind(listener_, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      listen(listener_, 128) != 0 ||
      getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    throw std::runtime_error("the test's TLS server cannot begin");
  }
  port_ = ntohs(address.sin_port);
  acceptor_ = std::jthread([this] { Accept(); });
}

TestTlsFront::~TestTlsFront() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    for (const int open : sockets_) shutdown(open, SHUT_RDWR);
  }
  shutdown(listener_, SHUT_RDWR);
  acceptor_.join();
  close(listener_);
  std::vector<std::jthread> threads;
  {
    MutexLock lock(&mu_);
    threads.swap(threads_);
  }
  threads.clear();
  SSL_CTX_free(context_);
}

void TestTlsFront::Accept() {
  while (true) {
    const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (client < 0) return;
    MutexLock lock(&mu_);
    if (stopping_) {
      close(client);
      return;
    }
    sockets_.push_back(client);
    threads_.emplace_back([this, client] { Serve(client); });
  }
}

void TestTlsFront::Serve(int client) {
  const int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = Loopback(server_);
  SSL* tls = SSL_new(context_);
  SSL_set_fd(tls, client);
  if (connect(server, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
      SSL_accept(tls) == 1) {
    Pump(tls, client, server);
    SSL_shutdown(tls);
  }
  ERR_clear_error();
  SSL_free(tls);
  close(server);
  MutexLock lock(&mu_);
  std::erase(sockets_, client);
  close(client);
}

}  // namespace cairn
