#include "rpc/socket_client.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/status_macros.h"
#include "rpc/addresses.h"
#include "rpc/frame_socket.h"
#include "rpc/socket_frames.h"

namespace cairn::rpc {
namespace {

using SteadyClock = std::chrono::steady_clock;

class SocketStream final : public ClientStream {
 public:
  SocketStream(int fd, const ConnectOptions& options)
      : socket_(fd, options.address, options.max_message_bytes, /*takes_while_sending=*/true) {}

  /// Tells who we are and waits to be let in: a process that stands still is not a server.
  Status Greet(const ConnectOptions& options, SteadyClock::time_point deadline) {
    const std::string& token = options.security.token;
    socket_.set_deadline(deadline);
    RETURN_IF_ERROR(socket_.SendBytes(
        Encode(ClientGreeting{static_cast<std::uint32_t>(token.size())}) + token));
    ASSIGN_OR_RETURN(const Received answer, socket_.ReceiveBytes(kGreetingBytes));
    RETURN_IF_ERROR(DecodeAnswer(answer.bytes()));
    socket_.set_deadline(std::nullopt);
    if (options.lifetime.count() > 0) socket_.set_deadline(SteadyClock::now() + options.lifetime);
    return Status::Ok();
  }

  Status Send(Message message) override { return socket_.Send(message); }
  Result<Received> Receive() override { return socket_.Receive(); }
  void Cancel() override { socket_.Cancel(); }

 private:
  FrameSocket socket_;
};

/// A connected, blocking descriptor.
Result<int> ConnectTo(const SocketAddress& address, SteadyClock::time_point deadline) {
  const int fd = socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return UnavailableError(std::string("socket: ") + std::strerror(errno));
  int error = connect(fd, address.raw(), address.size) == 0 ? 0 : errno;
  while (error == EINPROGRESS || error == EINTR) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - SteadyClock::now()).count();
    pollfd ready{fd, POLLOUT, 0};
    const int n = left <= 0 ? 0 : poll(&ready, 1, static_cast<int>(left));
    if (n < 0 && errno == EINTR) continue;
    socklen_t size = sizeof error;
    if (n <= 0) {
      error = ETIMEDOUT;
    } else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) {
      error = errno;
    }
  }
  if (error != 0) {
    close(fd);
    return UnavailableError(std::strerror(error));
  }
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
  TuneConnection(fd);
  return fd;
}

}  // namespace

Result<std::unique_ptr<ClientStream>> OpenSocketStream(const ConnectOptions& options) {
  if (!options.security.ca.empty()) {
    return InvalidArgumentError("plain connections know no TLS: use gRPC");
  }
  if (options.security.token.size() > kMaxTokenBytes) {
    return InvalidArgumentError("a token of more than 4,096 bytes");
  }
  const auto deadline = SteadyClock::now() + options.timeout;
  ASSIGN_OR_RETURN(const auto addresses, ResolveAddress(options.address, false));
  Status why;
  for (const SocketAddress& address : addresses) {
    const auto fd = ConnectTo(address, deadline);
    if (!fd.ok()) {
      why = fd.status();
      continue;
    }
    auto stream = std::make_unique<SocketStream>(*fd, options);
    why = stream->Greet(options, deadline);
    if (why.ok()) return std::unique_ptr<ClientStream>(std::move(stream));
    break;  // there is somebody, and that is what it says
  }
  if (why.Is(Code::kDeadlineExceeded) || why.Is(Code::kUnavailable)) {
    return UnavailableError(options.address + ": no connection within " +
                            std::to_string(options.timeout.count()) +
                            " ms: " + std::string(why.message()));
  }
  return why.WithContext(options.address);
}

}  // namespace cairn::rpc
