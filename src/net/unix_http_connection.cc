#include "net/unix_http_connection.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

#include "base/status_macros.h"

namespace cairn {
namespace {

constexpr std::size_t kMaxHeaderBytes = 64u << 10;
constexpr auto kLook = std::chrono::milliseconds(50);

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

std::string_view Trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

template <typename T>
bool Parse(std::string_view text, T* number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size();
}

/// The head of an answer, without its last empty line.
Result<HttpResponse> ParseHead(std::string_view head) {
  const auto wrong = [] { return UnavailableError("the server's answer is not HTTP"); };
  const std::string_view line = head.substr(0, head.find("\r\n"));
  HttpResponse response;
  if (!line.starts_with("HTTP/1.") || line.size() < 12 ||
      !Parse(line.substr(9, 3), &response.status)) {
    return wrong();
  }
  head.remove_prefix(line.size());
  while (head.starts_with("\r\n")) {
    head.remove_prefix(2);
    const std::string_view header = head.substr(0, head.find("\r\n"));
    const std::size_t colon = header.find(':');
    if (colon == std::string_view::npos) return wrong();
    response.headers.push_back(
        {Lower(header.substr(0, colon)), std::string(Trim(header.substr(colon + 1)))});
    head.remove_prefix(header.size());
  }
  return response;
}

}  // namespace

UnixHttpConnection::UnixHttpConnection(Options options) : options_(std::move(options)) {}

UnixHttpConnection::~UnixHttpConnection() {
  MutexLock hold(&mu_);
  Disconnect();
}

void UnixHttpConnection::Disconnect() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
  input_.clear();
}

Status UnixHttpConnection::Connect() {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (options_.path.size() >= sizeof address.sun_path) {
    return InvalidArgumentError(fmt::format("{} is too long for a socket", options_.path));
  }
  std::memcpy(address.sun_path, options_.path.data(), options_.path.size());
  fd_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd_ < 0) return UnavailableError(fmt::format("no socket: {}", std::strerror(errno)));
  owner_ = getpid();
  if (connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return UnavailableError(
        fmt::format("{} is not reached: {}", options_.path, std::strerror(errno)));
  }
  return Status::Ok();
}

Status UnixHttpConnection::WaitFor(short events) {
  const auto until = options_.clock->Now() + options_.stall_timeout;
  for (;;) {
    pollfd polled{.fd = fd_, .events = events, .revents = 0};
    const int ready = poll(&polled, 1, static_cast<int>(kLook.count()));
    if (ready > 0) return Status::Ok();
    if (options_.cancelled && options_.cancelled()) return CancelledError("the call was ended");
    if (options_.clock->Now() >= until) {
      return DeadlineExceededError(fmt::format("{} does not answer", options_.path));
    }
  }
}

Status UnixHttpConnection::Send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN) {
      RETURN_IF_ERROR(WaitFor(POLLOUT));
    } else if (errno != EINTR) {
      return UnavailableError(fmt::format("{} hung up: {}", options_.path, std::strerror(errno)));
    }
  }
  return Status::Ok();
}

Status UnixHttpConnection::Receive() {
  char buffer[1 << 16];
  for (;;) {
    RETURN_IF_ERROR(WaitFor(POLLIN));
    const ssize_t got = recv(fd_, buffer, sizeof buffer, MSG_DONTWAIT);
    if (got > 0) {
      input_.append(buffer, static_cast<std::size_t>(got));
      return Status::Ok();
    }
    if (got == 0) return UnavailableError(fmt::format("{} hung up", options_.path));
    if (errno != EAGAIN && errno != EINTR) {
      return UnavailableError(fmt::format("{} hung up: {}", options_.path, std::strerror(errno)));
    }
  }
}

Result<HttpResponse> UnixHttpConnection::Exchange(const HttpRequest& request) {
  if (fd_ < 0) RETURN_IF_ERROR(Connect());
  std::string bytes = fmt::format("{} {} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n",
                                  request.method, request.url, request.body.size());
  for (const HttpHeader& header : request.headers) {
    bytes += fmt::format("{}: {}\r\n", header.name, header.value);
  }
  bytes += "\r\n";
  bytes.append(reinterpret_cast<const char*>(request.body.data()), request.body.size());
  input_.clear();
  RETURN_IF_ERROR(Send(bytes));
  std::size_t end = 0;
  while ((end = input_.find("\r\n\r\n")) == std::string::npos) {
    if (input_.size() > kMaxHeaderBytes) return UnavailableError("the answer's head does not end");
    RETURN_IF_ERROR(Receive());
  }
  ASSIGN_OR_RETURN(HttpResponse response, ParseHead(std::string_view(input_).substr(0, end)));
  std::size_t size = 0;
  if (!Parse(response.Header("content-length"), &size)) {
    return UnavailableError("the server's answer has no length");
  }
  if (size > options_.max_body_bytes) {
    return ResourceExhaustedError(fmt::format("an answer of {} bytes", size));
  }
  while (input_.size() < end + 4 + size) RETURN_IF_ERROR(Receive());
  response.body = input_.substr(end + 4, size);
  if (Lower(response.Header("connection")) == "close") Disconnect();
  return response;
}

Result<HttpResponse> UnixHttpConnection::Fetch(const HttpRequest& request) {
  MutexLock hold(&mu_);
  if (fd_ >= 0 && owner_ != getpid()) {
    return UnavailableError("the connection is of the process that this one was forked from");
  }
  auto response = Exchange(request);
  if (!response.ok()) Disconnect();
  return response;
}

}  // namespace cairn
