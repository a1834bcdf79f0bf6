#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
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
  /// The same where servers are asked in several parts.
  using BuildPart = std::function<std::optional<rpc::Message>(int server, std::uint32_t part,
                                                              const RequestHead& head)>;
  using TakePart =
      std::function<Status(int server, std::uint32_t part, std::span<const std::byte> body)>;

  /// One request to each server for which `build` makes one, all under way at once. Lost
  /// connections are made again. `change`: with a sequence, so that it is applied once. Aborted:
  /// the job went back. `timeout` 0: that of requests.
  Status Exchange(const RequestHead& head, bool change, const Build& build, const Take& take,
                  std::chrono::milliseconds timeout = std::chrono::milliseconds(0)) {
    return ExchangeParts(
        head, change, 1,
        [&](int server, std::uint32_t, const RequestHead& own) { return build(server, own); },
        [&](int server, std::uint32_t, std::span<const std::byte> body) {
          return take(server, body);
        },
        timeout);
  }
  /// `parts` requests to each server, a few of them under way at once: while an answer travels the
  /// server works on the next part. No part is longer than the first. A change has one part.
  virtual Status ExchangeParts(const RequestHead& head, bool change, std::uint32_t parts,
                               const BuildPart& build, const TakePart& take,
                               std::chrono::milliseconds timeout) = 0;
};

}  // namespace cairn::ps
