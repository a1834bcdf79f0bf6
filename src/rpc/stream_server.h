#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <cairn/status.h>

#include "rpc/client_stream.h"
#include "rpc/message.h"

namespace cairn::rpc {

/// The server's end of a stream; used by the thread of its handler.
class ServerStream {
 public:
  virtual ~ServerStream() = default;
  /// Cancelled when the client went away, said that it is done, or sent a message over the limit.
  virtual Result<Received> Receive() = 0;
  virtual Status Send(Message message) = 0;
  /// "ipv4:127.0.0.1:5000", for the log.
  virtual std::string peer() const = 0;
};

struct StreamServerOptions {
  std::string listen = "127.0.0.1:0";  // host:port; port 0: any free one
  Security security;
  std::uint64_t max_message_bytes =
      kDefaultMessageBytes;  // what comes in; larger ones end a stream
  /// Also takes Transport::kSocket, on the same port. Not with TLS: then there is gRPC alone.
  bool plain_connections = false;
};

/// Accepts streams and runs a handler for each, on a thread of its own. A client with a wrong token
/// is turned away before the handler sees it. Also answers gRPC's standard health service, which
/// whatever supervises processes can ask.
class StreamServer {
 public:
  /// Called once for each stream; when it returns the stream is over.
  using Handler = std::function<void(ServerStream*)>;

  /// Unavailable: the address is taken. InvalidArgument: unreadable certificate files.
  static Result<std::unique_ptr<StreamServer>> Start(const StreamServerOptions& options,
                                                     Handler handler);
  /// As Stop.
  virtual ~StreamServer() = default;

  virtual int port() const = 0;
  /// What the health service says; serving, until told otherwise. Any thread.
  virtual void SetServing(bool serving) = 0;
  /// Ends all streams and waits for their handlers, which must not block on anything else.
  virtual void Stop() = 0;
};

}  // namespace cairn::rpc
