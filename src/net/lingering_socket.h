#pragma once

// For http_server.cc alone: RESTinio's headers are heavy.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <restinio/all.hpp>
#include <restinio/tls.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// A server that closes a connection while the client is still sending resets it: the kernel answers
// bytes that nobody will read with RST, and the client's kernel then throws away the answer that it
// has not read yet. So a connection is closed in three steps: say that nothing more will come (the
// client can read the answer to its end), read on and throw away what comes, close. Decision 290.

namespace cairn {

/// How long connections that were closed are read on, and how many at once; any further one is
/// closed as it is.
struct LingerLimits {
  std::chrono::nanoseconds total{0};                        // from the close on
  std::chrono::nanoseconds idle = std::chrono::seconds(2);  // without a byte
  std::uint64_t bytes = std::uint64_t{1} << 30;
  int connections = 64;
};

/// The connections of one server that are read on. Any thread of the server.
class Lingerers {
 public:
  explicit Lingerers(LingerLimits limits) : limits_(limits) {}

  /// Takes the descriptor of a connection whose sending half is closed. False: there are too many
  /// already, and it is still the caller's.
  template <typename Executor>
  bool Take(const Executor& executor, int fd) {
    if (count_->fetch_add(1) >= limits_.connections) {
      count_->fetch_sub(1);
      return false;
    }
    std::make_shared<Reading>(asio::make_strand(executor), fd, limits_, count_)->Begin();
    return true;
  }

 private:
  using Strand = asio::strand<restinio::default_asio_executor>;
  using SteadyClock = std::chrono::steady_clock;

  /// One of them; held by its own operations, which end with it or with the server. All on one
  /// strand.
  class Reading : public std::enable_shared_from_this<Reading> {
   public:
    Reading(const Strand& strand, int fd, const LingerLimits& limits,
            std::shared_ptr<std::atomic<int>> count)
        : stream_(strand, fd), timer_(strand), limits_(limits), count_(std::move(count)) {}
    ~Reading() { count_->fetch_sub(1); }
    Reading(const Reading&) = delete;
    Reading& operator=(const Reading&) = delete;

    void Begin() {
      asio::dispatch(stream_.get_executor(), [self = shared_from_this()] {
        self->Read();
        self->Watch();
      });
    }

   private:
    void Read() {
      stream_.async_read_some(
          asio::buffer(buffer_),
          [self = shared_from_this()](const asio::error_code& error, std::size_t bytes) {
            self->read_ += bytes;
            self->last_ = SteadyClock::now();
            if (error || self->read_ > self->limits_.bytes) return self->End();
            self->Read();
          });
    }
    void Watch() {
      timer_.expires_after(std::min(limits_.idle, limits_.total));
      timer_.async_wait([self = shared_from_this()](const asio::error_code& cancelled) {
        const auto now = SteadyClock::now();
        const bool over =
            now - self->began_ >= self->limits_.total || now - self->last_ >= self->limits_.idle;
        if (cancelled || over) return self->End();
        self->Watch();
      });
    }
    void End() {
      asio::error_code ignored;
      stream_.close(ignored);
      timer_.cancel();
    }

    asio::posix::basic_stream_descriptor<Strand> stream_;
    asio::basic_waitable_timer<SteadyClock, asio::wait_traits<SteadyClock>, Strand> timer_;
    const LingerLimits limits_;
    const std::shared_ptr<std::atomic<int>> count_;
    const SteadyClock::time_point began_ = SteadyClock::now();
    SteadyClock::time_point last_ = began_;
    std::uint64_t read_ = 0;
    std::array<char, 65536> buffer_{};
  };

  const LingerLimits limits_;
  // Shared: readings end when the server's operations are taken apart, after it.
  const std::shared_ptr<std::atomic<int>> count_ = std::make_shared<std::atomic<int>>(0);
};

/// Those of the server that this thread works for; null elsewhere.
inline thread_local Lingerers* lingerers = nullptr;

/// The address of the client whose bytes this thread is looking at; "" elsewhere, and for clients
/// that came through a socket of this machine.
inline thread_local std::string_view reading_from;

/// A socket of RESTinio's that is closed as said above, and whose reader can see who sends.
/// RESTinio always calls shutdown and close, one after the other, on a thread of the server.
template <typename Socket>
class LingeringSocket : public Socket {
 public:
  using Socket::Socket;

  /// `handler` is called with `reading_from` set: RESTinio parses inside it.
  template <typename Buffers, typename Handler>
  void async_read_some(const Buffers& buffers, Handler handler) {
    if (peer_ == nullptr) peer_ = std::make_shared<const std::string>(AddressOfPeer());
    const auto executor = asio::get_associated_executor(handler, this->get_executor());
    Socket::async_read_some(
        buffers, asio::bind_executor(executor,
                                     [peer = peer_, handler = std::move(handler)](
                                         const asio::error_code& error, std::size_t bytes) mutable {
                                       reading_from = *peer;
                                       handler(error, bytes);
                                       reading_from = {};
                                     }));
  }

  void shutdown(asio::socket_base::shutdown_type /*both*/, asio::error_code& error) {
    this->lowest_layer().shutdown(asio::socket_base::shutdown_send, error);
  }
  void close() {
    asio::error_code error;
    auto& socket = this->lowest_layer();
    if (lingerers == nullptr || !socket.is_open()) {
      socket.close(error);
      return;
    }
    const auto executor = socket.get_executor();
    const int fd = socket.release(error);
    if (error) {
      socket.close(error);
    } else if (!lingerers->Take(executor, fd)) {
      ::close(fd);
    }
  }

 private:
  std::string AddressOfPeer() {
    sockaddr_storage peer{};
    socklen_t length = sizeof peer;
    char text[INET6_ADDRSTRLEN] = "";
    if (getpeername(this->lowest_layer().native_handle(), reinterpret_cast<sockaddr*>(&peer),
                    &length) != 0) {
      return "";
    }
    if (peer.ss_family == AF_INET) {
      inet_ntop(AF_INET, &reinterpret_cast<sockaddr_in*>(&peer)->sin_addr, text, sizeof text);
    } else if (peer.ss_family == AF_INET6) {
      inet_ntop(AF_INET6, &reinterpret_cast<sockaddr_in6*>(&peer)->sin6_addr, text, sizeof text);
    }
    return text;
  }

  std::shared_ptr<const std::string> peer_;  // shared: a read may end after the socket has moved
};

using PlainSocket = LingeringSocket<asio::ip::tcp::socket>;
using TlsSocket = LingeringSocket<restinio::impl::tls_socket_t>;

}  // namespace cairn

// What RESTinio knows of its own TLS sockets alone.
namespace restinio {

template <typename Settings>
class socket_type_dependent_settings_t<Settings, cairn::TlsSocket>
    : public socket_type_dependent_settings_t<Settings, impl::tls_socket_t> {
 public:
  socket_type_dependent_settings_t() = default;
  socket_type_dependent_settings_t(socket_type_dependent_settings_t&&) = default;

 protected:
  ~socket_type_dependent_settings_t() = default;
};

namespace impl {

template <>
class socket_supplier_t<cairn::TlsSocket> {
 protected:
  template <typename Settings>
  socket_supplier_t(Settings& settings, asio::io_context& io)
      : tls_(settings.giveaway_tls_context()), io_(io) {
    while (sockets_.size() < settings.concurrent_accepts_count()) sockets_.emplace_back(io_, tls_);
  }
  cairn::TlsSocket& socket(std::size_t i) { return sockets_.at(i); }
  cairn::TlsSocket move_socket(std::size_t i) {
    return std::exchange(sockets_.at(i), cairn::TlsSocket(io_, tls_));
  }
  std::size_t concurrent_accept_sockets_count() const { return sockets_.size(); }

 private:
  std::shared_ptr<asio::ssl::context> tls_;  // shared: RESTinio's sockets hold it too
  asio::io_context& io_;
  std::vector<cairn::TlsSocket> sockets_;
};

}  // namespace impl
}  // namespace restinio
