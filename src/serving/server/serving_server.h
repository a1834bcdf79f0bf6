#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <cairn/serving.h>
#include <cairn/status.h>

#include "base/clock.h"
#include "net/http_server.h"

namespace cairn::serving {

struct ServingServerOptions {
  HttpServerOptions http;
  std::string name = "model";                   // /v2/models/<name>
  std::string token;                            // "": nobody is asked for one
  std::uint64_t max_request_bytes = 16u << 20;  // larger ones get 413
  /// Rows that one lookup may ask for, in bytes: more get 413 before any memory is taken for them.
  std::uint64_t max_answer_bytes = 64u << 20;
  Clock* clock = Clock::System();
};

/// A model behind HTTP (docs/guides/serving.md has the paths). The model is borrowed; it may have
/// no version yet, and then is not ready.
class ServingServer {
 public:
  static Result<std::unique_ptr<ServingServer>> Start(ServingServerOptions options, Model* model);
  ~ServingServer();

  const std::string& url() const;
  /// A lookup that somebody else answered, for the metrics. From any thread.
  void CountLookup(double seconds, bool ok);

 private:
  class Impl;
  explicit ServingServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn::serving
