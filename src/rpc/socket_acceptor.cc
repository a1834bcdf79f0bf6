#include "rpc/socket_acceptor.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <list>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/status_macros.h"
#include "base/thread_annotations.h"
#include "rpc/addresses.h"
#include "rpc/frame_socket.h"
#include "rpc/socket_frames.h"
#include "rpc/token.h"

namespace cairn::rpc {
namespace {

// Who connects and says nothing is given up then.
constexpr std::chrono::seconds kGreetTimeout{10};
// Each has a thread. Far more than trainers a server could serve.
constexpr std::size_t kMaxConnections = 4096;
constexpr int kBacklog = 256;

class Stream final : public ServerStream {
 public:
  explicit Stream(FrameSocket* socket) : socket_(socket) {}

  Result<Received> Receive() override {
    auto received = socket_->Receive();
    // Whoever is still there learns why it is not listened to any more.
    if (received.status().Is(Code::kResourceExhausted) || received.status().Is(Code::kCorruption)) {
      LogWarning(received.status().ToString());
      socket_->SendEnd(received.status());
    }
    if (!received.ok()) return CancelledError(peer() + " left");
    return received;
  }
  Status Send(Message message) override {
    if (socket_->Send(message).ok()) return Status::Ok();
    return CancelledError(peer() + " left");
  }
  std::string peer() const override { return socket_->who(); }

 private:
  FrameSocket* const socket_;
};

/// The descriptor of a socket that listens at the address.
Result<int> ListenAt(const SocketAddress& address) {
  const int fd = socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return UnavailableError(std::strerror(errno));
  const int on = 1;
  const int off = 0;
  // After a restart the port is free at once; two that listen at the same time it does not allow.
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (address.family() == AF_INET6) {
    setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  }
  if (bind(fd, address.raw(), address.size) != 0 || listen(fd, kBacklog) != 0) {
    const int error = errno;
    close(fd);
    return error == EADDRINUSE ? AlreadyExistsError(std::strerror(error))
                               : UnavailableError(std::strerror(error));
  }
  return fd;
}

/// Whether its first bytes, which stay where they are, are those of a plain connection. An error:
/// nothing came in time.
Result<bool> IsPlain(int fd) {
  const auto deadline = std::chrono::steady_clock::now() + kGreetTimeout;
  std::array<char, 8> first{};
  static_assert(kClientMagic.size() == 8);
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) return DeadlineExceededError("it said nothing");
    pollfd ready{fd, POLLIN, 0};
    const int n = poll(&ready, 1, static_cast<int>(left.count()));
    if (n < 0 && errno != EINTR) return UnavailableError(std::strerror(errno));
    if (n <= 0) continue;
    const ssize_t seen = recv(fd, first.data(), first.size(), MSG_PEEK | MSG_DONTWAIT);
    if (seen <= 0) return UnavailableError("it left");
    // Already the first byte decides: nobody has to wait for the rest to know whose it is.
    return first[0] == kClientMagic[0];
  }
}

class Acceptor final : public SocketAcceptor {
 public:
  Acceptor(const StreamServerOptions& options, StreamServer::Handler handler, Other other)
      : options_(options), handler_(std::move(handler)), other_(std::move(other)) {}
  ~Acceptor() override { Stop(); }

  Status Open();
  int port() const override { return port_; }
  Status Start() override;
  void Stop() override EXCLUDES(mu_);

 private:
  struct Connection {
    int fd = -1;  // until it has said what it is; under mu_
    std::string peer;
    std::unique_ptr<FrameSocket> socket;  // afterwards, where it is plain; under mu_
    bool stopped = false;                 // under mu_
    std::atomic<bool> done{false};
    std::jthread thread;  // last: it uses the rest
  };

  void Accept();
  void AcceptOne(int listener) EXCLUDES(mu_);
  void Run(Connection* connection, int fd) EXCLUDES(mu_);
  Status Welcome(FrameSocket* socket) const;
  void Reap() REQUIRES(mu_);

  const StreamServerOptions options_;
  const StreamServer::Handler handler_;
  const Other other_;
  std::vector<int> listeners_;
  int port_ = 0;
  int wake_ = -1;  // an eventfd: readable when it is time to stop

  Mutex mu_;
  bool stopping_ GUARDED_BY(mu_) = false;
  std::list<Connection> connections_ GUARDED_BY(mu_);  // they stay where they are

  std::jthread accepting_;
};

Status Acceptor::Open() {
  ASSIGN_OR_RETURN(const auto addresses, ResolveAddress(options_.listen, true));
  Status why;
  for (SocketAddress address : addresses) {
    // All at the port that the first one got.
    if (port_ != 0) SetPort(&address, port_);
    const auto fd = ListenAt(address);
    if (!fd.ok()) {
      if (why.ok()) why = fd.status();
      // A name may have addresses that this machine lacks; one that is taken is another's.
      if (fd.status().Is(Code::kAlreadyExists)) break;
      continue;
    }
    listeners_.push_back(*fd);
    SocketAddress bound;
    bound.size = sizeof bound.storage;
    if (port_ == 0 &&
        getsockname(*fd, reinterpret_cast<sockaddr*>(&bound.storage), &bound.size) == 0) {
      port_ = PortOf(bound);
    }
    // "Any address" of IPv6 is that of IPv4 too.
    const auto* six = reinterpret_cast<const sockaddr_in6*>(&address.storage);
    if (address.family() == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&six->sin6_addr)) break;
  }
  if (listeners_.empty() || port_ == 0 || why.Is(Code::kAlreadyExists)) {
    return UnavailableError("cannot listen on " + options_.listen + ": " +
                            std::string(why.message()) +
                            ": is the address in use, or not of this machine?");
  }
  return Status::Ok();
}

Status Acceptor::Start() {
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_ < 0) return InternalError(std::string("eventfd: ") + std::strerror(errno));
  accepting_ = std::jthread([this] { Accept(); });
  return Status::Ok();
}

void Acceptor::Stop() {
  {
    const MutexLock lock(&mu_);
    stopping_ = true;
    for (Connection& connection : connections_) {
      connection.stopped = true;
      if (connection.socket != nullptr) {
        connection.socket->Cancel();
      } else if (connection.fd >= 0) {
        shutdown(connection.fd, SHUT_RDWR);  // it waits for its first bytes
      }
    }
  }
  if (wake_ >= 0) eventfd_write(wake_, 1);
  accepting_ = {};  // joined: nobody is added any more
  std::list<Connection> last;
  {
    const MutexLock lock(&mu_);
    last.swap(connections_);
  }
  last.clear();  // joins
  for (const int fd : std::exchange(listeners_, {})) close(fd);
  if (wake_ >= 0) close(std::exchange(wake_, -1));
}

void Acceptor::Reap() {
  connections_.remove_if([](const Connection& each) { return each.done.load(); });
}

void Acceptor::Accept() {
  for (;;) {
    std::vector<pollfd> fds{{wake_, POLLIN, 0}};
    for (const int listener : listeners_) fds.push_back({listener, POLLIN, 0});
    if (poll(fds.data(), fds.size(), -1) < 0 && errno != EINTR) return;
    if (fds[0].revents != 0) return;
    for (std::size_t i = 1; i < fds.size(); ++i) {
      if (fds[i].revents != 0) AcceptOne(fds[i].fd);
    }
  }
}

void Acceptor::AcceptOne(int listener) {
  SocketAddress address;
  address.size = sizeof address.storage;
  const int fd =
      accept4(listener, reinterpret_cast<sockaddr*>(&address.storage), &address.size, SOCK_CLOEXEC);
  if (fd < 0) {
    if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
      // The connection stays where it is: until one of the others has ended, or for a moment.
      LogWarning(std::string("cannot accept a connection: ") + std::strerror(errno));
      pollfd wake{wake_, POLLIN, 0};
      poll(&wake, 1, 100);
    }
    return;
  }
  TuneConnection(fd);
  const MutexLock lock(&mu_);
  Reap();
  if (stopping_ || connections_.size() >= kMaxConnections) {
    close(fd);
    return;
  }
  Connection& connection = connections_.emplace_back();
  connection.fd = fd;
  connection.peer = Describe(address);
  try {
    connection.thread = std::jthread([this, &connection, fd] { Run(&connection, fd); });
  } catch (const std::system_error& error) {
    LogWarning(std::string("no thread for a connection: ") + error.what());
    connections_.pop_back();
    close(fd);
  }
}

Status Acceptor::Welcome(FrameSocket* socket) const {
  ASSIGN_OR_RETURN(const Received bytes, socket->ReceiveBytes(kGreetingBytes));
  const auto greeting = DecodeClientGreeting(bytes.bytes());
  if (greeting.status().Is(Code::kUnimplemented)) {
    socket->SendBytes(EncodeAnswer(Verdict::kOtherVersion)).IgnoreError("it is refused anyway");
  }
  if (!greeting.ok()) return greeting.status();
  ASSIGN_OR_RETURN(const Received token, socket->ReceiveBytes(greeting->token_bytes));
  const std::string_view given(reinterpret_cast<const char*>(token.bytes().data()),
                               token.bytes().size());
  if (!options_.security.token.empty() && !SameToken(given, options_.security.token)) {
    socket->SendBytes(EncodeAnswer(Verdict::kWrongToken)).IgnoreError("it is refused anyway");
    return PermissionDeniedError("the token is missing or wrong");
  }
  return socket->SendBytes(EncodeAnswer(Verdict::kWelcome));
}

void Acceptor::Run(Connection* connection, int fd) {
  const auto plain = IsPlain(fd);
  FrameSocket* socket = nullptr;
  {
    const MutexLock lock(&mu_);
    if (plain.ok() && *plain && !connection->stopped) {
      connection->socket = std::make_unique<FrameSocket>(
          fd, connection->peer, options_.max_message_bytes, /*takes_while_sending=*/false);
      socket = connection->socket.get();
    } else if (plain.ok() && !connection->stopped) {
      other_(fd);
    } else {
      close(fd);
    }
    connection->fd = -1;
  }
  if (socket != nullptr) {
    socket->set_deadline(std::chrono::steady_clock::now() + kGreetTimeout);
    const Status welcome = Welcome(socket);
    socket->set_deadline(std::nullopt);
    if (welcome.ok()) {
      Stream stream(socket);
      handler_(&stream);
    } else if (!welcome.Is(Code::kUnavailable) && !welcome.Is(Code::kCancelled)) {
      LogWarning(connection->peer + ": " + welcome.ToString());
    }
    socket->Linger();
    const MutexLock lock(&mu_);
    connection->socket = nullptr;
  }
  connection->done = true;
}

}  // namespace

Result<std::unique_ptr<SocketAcceptor>> SocketAcceptor::Bind(const StreamServerOptions& options,
                                                             StreamServer::Handler handler,
                                                             Other other) {
  auto acceptor = std::make_unique<Acceptor>(options, std::move(handler), std::move(other));
  RETURN_IF_ERROR(acceptor->Open());
  return std::unique_ptr<SocketAcceptor>(std::move(acceptor));
}

}  // namespace cairn::rpc
