#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include <cairn/status.h>

#include "rpc/message.h"

namespace cairn::rpc {

/// How both sides of a connection are secured. All empty: plain text, for one machine or a network
/// that is trusted.
struct Security {
  std::string token;        // both sides have the same; "": none is asked for
  std::string ca;           // client: PEM file of who signed the server's certificate; "" no TLS
  std::string certificate;  // server: PEM file of its certificate chain; "" no TLS
  std::string key;          // server: PEM file of its key
  std::string server_name;  // client: the name in the certificate, where it is not the address's
};

inline constexpr std::uint64_t kDefaultMessageBytes = std::uint64_t{256} << 20;

/// What messages travel over; servers may take both on one port.
enum class Transport : std::uint8_t {
  kGrpc,
  kSocket,  // a TCP connection with frames of our own, without TLS: several times faster for small
            // messages, because nobody but the two ends handles them
};

struct ConnectOptions {
  std::string address;  // host:port
  Transport transport = Transport::kGrpc;
  Security security;
  std::chrono::milliseconds timeout{5000};  // for the connection to stand
  /// After so long the stream ends (DeadlineExceeded), whatever it is doing; 0: it may live for
  /// ever.
  std::chrono::milliseconds lifetime{0};
  std::uint64_t max_message_bytes = kDefaultMessageBytes;
};

/// One stream of messages to a server and back, over a connection of its own. Messages arrive in
/// order. One thread sends, one (the same or another) receives; Cancel comes from any. After an
/// error the stream is useless: open another one.
class ClientStream {
 public:
  /// Unavailable when nobody answers in time. A wrong token (PermissionDenied) shows here or at the
  /// first Receive.
  static Result<std::unique_ptr<ClientStream>> Open(const ConnectOptions& options);
  virtual ~ClientStream() = default;

  /// Waits while the other side is behind: this is the back-pressure.
  virtual Status Send(Message message) = 0;
  /// The next message. Unavailable: the other side is gone; ResourceExhausted: a message was over
  /// a limit, here or there; PermissionDenied; Cancelled.
  virtual Result<Received> Receive() = 0;
  /// Ends what Send and Receive are waiting for, now and later.
  virtual void Cancel() = 0;
};

}  // namespace cairn::rpc
