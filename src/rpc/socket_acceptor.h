#pragma once

#include <functional>
#include <memory>

#include <cairn/status.h>

#include "rpc/stream_server.h"

namespace cairn::rpc {

/// Listens, and runs a thread for each plain connection, which serves it from the first byte to the
/// last. A connection that begins with anything else is HTTP/2's: its descriptor is handed on as it
/// came. Any thread.
class SocketAcceptor {
 public:
  /// Gets the descriptor of a connection that is not plain, from any thread; it is the callee's.
  using Other = std::function<void(int fd)>;

  /// Takes the address; who connects waits until Start. Unavailable: it is taken.
  static Result<std::unique_ptr<SocketAcceptor>> Bind(const StreamServerOptions& options,
                                                      StreamServer::Handler handler, Other other);
  /// As Stop.
  virtual ~SocketAcceptor() = default;

  virtual int port() const = 0;
  /// Begins to accept.
  virtual Status Start() = 0;
  /// Ends all plain connections and waits for their handlers.
  virtual void Stop() = 0;
};

}  // namespace cairn::rpc
