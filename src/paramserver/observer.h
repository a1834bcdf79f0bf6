#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include <cairn/ps.h>
#include <cairn/status.h>
#include <cairn/value.h>

#include "paramserver/payload.h"
#include "rpc/client_stream.h"

/// Single questions to one server, over a connection of their own: from its peers, from the
/// supervisor and from tools. For one thread.
namespace cairn::ps {

rpc::Security ToRpc(const Security& security);

class Observer {
 public:
  /// Unavailable when it does not answer in time.
  static Result<Observer> Connect(const std::string& address, const Security& security,
                                  std::chrono::milliseconds timeout);

  struct State {
    bool serving = false;
    bool stopped = false;  // for good: it could not go on
    std::uint64_t generation = 0;
    std::int64_t servers = 0;  // of its job
    std::string process;       // as it registered
    Value value;
    /// What it says about a trainer: "present", "left".
    bool TrainerIs(std::size_t trainer, std::string_view what) const;
  };
  Result<State> Status();
  Result<std::string> Metrics();
  /// Lets the server leave the generation; 0: whichever it is in.
  cairn::Status RollBack(std::uint64_t generation);
  cairn::Status RequestSave(std::uint64_t generation, bool full);
  cairn::Status Cut(std::uint64_t generation, const Marker& marker);
  /// The trainer's process ended well without having said that it leaves.
  cairn::Status TrainerEnded(std::uint64_t generation, std::uint32_t trainer);

 private:
  explicit Observer(std::unique_ptr<rpc::ClientStream> stream) : stream_(std::move(stream)) {}
  Result<rpc::Received> Ask(const RequestHead& head, std::string_view body);

  std::unique_ptr<rpc::ClientStream> stream_;
};

}  // namespace cairn::ps
