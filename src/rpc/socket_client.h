#pragma once

#include <memory>

#include <cairn/status.h>

#include "rpc/client_stream.h"

namespace cairn::rpc {

/// ClientStream::Open for Transport::kSocket.
Result<std::unique_ptr<ClientStream>> OpenSocketStream(const ConnectOptions& options);

}  // namespace cairn::rpc
