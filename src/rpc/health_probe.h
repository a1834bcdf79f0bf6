#pragma once

#include <cstdint>

namespace cairn::rpc {

enum class Health : std::uint8_t { kUnreachable = 0, kServing = 1, kNotServing = 2 };

/// For tests: asks gRPC's standard health service at this port of this machine, as an orchestrator
/// does.
Health HealthAt(int port);

}  // namespace cairn::rpc
