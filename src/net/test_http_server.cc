#include "net/test_http_server.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <stdexcept>
#include <utility>

namespace cairn {
namespace {

sockaddr_in Loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

std::string LowerCase(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

/// False when the peer hung up first.
bool ReadMore(int socket, std::string* text) {
  char buffer[1 << 16];
  const ssize_t count = recv(socket, buffer, sizeof buffer, 0);
  if (count <= 0) return false;
  text->append(buffer, static_cast<std::size_t>(count));
  return true;
}

bool WriteAll(int socket, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
  return true;
}

TestHttpRequest ParseHead(std::string head) {
  TestHttpRequest request;
  std::string_view rest = head;
  const std::string_view line = rest.substr(0, rest.find("\r\n"));
  const std::size_t first = line.find(' ');
  const std::size_t second = line.rfind(' ');
  request.method = line.substr(0, first);
  request.target = line.substr(first + 1, second - first - 1);
  rest.remove_prefix(line.size() + 2);
  while (!rest.starts_with("\r\n") && !rest.empty()) {
    const std::string_view header = rest.substr(0, rest.find("\r\n"));
    const std::size_t colon = std::min(header.find(':'), header.size());
    std::string_view value = header.substr(std::min(colon + 1, header.size()));
    while (value.starts_with(' ')) value.remove_prefix(1);
    request.headers.push_back({LowerCase(header.substr(0, colon)), std::string(value)});
    rest.remove_prefix(header.size() + 2);
  }
  request.head = std::move(head);
  return request;
}

/// Takes one request from the connection; `pending` holds bytes that came early.
bool ReadRequest(int socket, std::string* pending, TestHttpRequest* request) {
  std::size_t end = 0;
  while ((end = pending->find("\r\n\r\n")) == std::string::npos) {
    if (!ReadMore(socket, pending)) return false;
  }
  *request = ParseHead(pending->substr(0, end + 4));
  pending->erase(0, end + 4);
  const std::string length(request->Header("content-length"));
  const std::size_t bytes = length.empty() ? 0 : std::stoull(length);
  while (pending->size() < bytes) {
    if (!ReadMore(socket, pending)) return false;
  }
  request->body = pending->substr(0, bytes);
  pending->erase(0, bytes);
  return true;
}

}  // namespace

std::string_view TestHttpRequest::Header(std::string_view lower_case_name) const {
  for (const HttpHeader& header : headers) {
    if (header.name == lower_case_name) return header.value;
  }
  return {};
}

TestHttpReply Answer(int status, std::string_view body, std::vector<HttpHeader> headers) {
  std::string bytes = fmt::format("HTTP/1.1 {} Said\r\n", status);
  for (const HttpHeader& header : headers) {
    bytes += fmt::format("{}: {}\r\n", header.name, header.value);
  }
  bytes += fmt::format("Content-Length: {}\r\n\r\n{}", body.size(), body);
  return {.bytes = std::move(bytes)};
}

TestHttpServer::TestHttpServer(Handler handler) : handler_(std::move(handler)) {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = Loopback(0);
  socklen_t length = sizeof address;
  if (bind(listener_, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      listen(listener_, 128) != 0 ||
      getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    throw std::runtime_error("the test's HTTP server cannot listen on 127.0.0.1");
  }
  port_ = ntohs(address.sin_port);
  acceptor_ = std::jthread([this] { Accept(); });
}

TestHttpServer::~TestHttpServer() {
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
}

void TestHttpServer::Accept() {
  while (true) {
    const int socket = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (socket < 0) return;
    const int one = 1;
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    MutexLock lock(&mu_);
    if (stopping_) {
      close(socket);
      return;
    }
    ++connections_;
    sockets_.push_back(socket);
    threads_.emplace_back([this, socket] { Serve(socket); });
  }
}

void TestHttpServer::Serve(int socket) {
  const int open = ++open_;
  for (int most = most_open_; open > most && !most_open_.compare_exchange_weak(most, open);) {
  }
  std::string pending;
  TestHttpRequest request;
  while (ReadRequest(socket, &pending, &request)) {
    const TestHttpReply reply = handler_(request);
    if (!WriteAll(socket, reply.bytes) || reply.close) break;
  }
  --open_;
  MutexLock lock(&mu_);
  std::erase(sockets_, socket);
  close(socket);
}

TestHttpReply ForwardTo(std::uint16_t port, const TestHttpRequest& request) {
  TestHttpReply reply{.close = true};
  const int upstream = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = Loopback(port);
  if (connect(upstream, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) {
    // Hanging up is then the end of the answer, whatever its framing.
    std::string head =
        request.head.substr(0, request.head.size() - 2) + "Connection: close\r\n\r\n";
    if (WriteAll(upstream, head) && WriteAll(upstream, request.body)) {
      while (ReadMore(upstream, &reply.bytes)) {
      }
    }
  }
  close(upstream);
  return reply;
}

}  // namespace cairn
