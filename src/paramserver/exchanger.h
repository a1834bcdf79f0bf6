#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <span>

#include <cairn/status.h>

#include "paramserver/payload.h"

namespace cairn::ps {

/// What a client's tables and variables see of it: requests to all servers at once.
class Exchanger {
 public:
  virtual ~Exchanger() = default;
  virtual int servers() const = 0;
  virtual int trainer() const = 0;

  /// Makes the request for a server, with the head as given but for its id; nothing: it is not
  /// asked. May be called again with the same head.
  using Build = std::function<std::optional<rpc::Message>(int server, RequestHead head)>;
  /// Gets the body of a server's answer.
  using Take = std::function<Status(int server, std::span<const std::byte> body)>;

  /// One request to each server for which `build` makes one, all under way at once. Lost
  /// connections are made again. `change`: with a sequence, so that it is applied once. Aborted:
  /// the job went back. `timeout` 0: that of requests.
  virtual Status Exchange(const RequestHead& head, bool change, const Build& build,
                          const Take& take, std::chrono::milliseconds timeout) = 0;
  Status Exchange(const RequestHead& head, bool change, const Build& build, const Take& take) {
    return Exchange(head, change, build, take, std::chrono::milliseconds(0));
  }
};

}  // namespace cairn::ps
