#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <cairn/serving.h>
#include <cairn/status.h>

#include "base/clock.h"
#include "rpc/client_stream.h"

namespace cairn::serving {

struct LookupServerOptions {
  std::string listen = "127.0.0.1:0";  // host:port; port 0: a free one
  rpc::Security security;
  std::uint64_t max_request_bytes = 16u << 20;  // a larger one ends its stream
  /// Rows that one lookup may ask for, in bytes: more are refused before memory is taken for them.
  std::uint64_t max_answer_bytes = 64u << 20;
  /// Each has a thread. Further clients are told ResourceExhausted.
  int max_streams = 256;
  /// Told of each request: how long it took, and whether it was answered with rows. From any
  /// thread.
  std::function<void(double seconds, bool ok)> on_request;
  Clock* clock = Clock::System();
};

/// Lookups of a model by gRPC (docs/format/lookup_protocol.md). All tables of a request are read
/// from one version. A request that cannot be answered is answered with an error, and the stream
/// goes on. The model is borrowed; it may have no version yet.
class LookupServer {
 public:
  /// Unavailable: the address is taken. Errors of the certificate's files name them.
  static Result<std::unique_ptr<LookupServer>> Start(LookupServerOptions options,
                                                     const Model* model);
  /// Ends all streams.
  virtual ~LookupServer() = default;
  virtual int port() const = 0;
};

}  // namespace cairn::serving
