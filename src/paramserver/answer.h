#pragma once

#include <cstdint>
#include <string>

#include <cairn/status.h>

#include "paramserver/holdings.h"
#include "paramserver/payload.h"

namespace cairn::ps {

/// Answers one request out of a server's holdings: decodes, calls, encodes. Errors become answers.
/// `*lost` as in Holdings::Hello.
rpc::Message Answer(Holdings* holdings, const Request& request, Peer* peer, bool* lost);

/// An answer that only says what is wrong.
rpc::Message Refuse(const RequestHead& request, std::uint64_t generation, const Status& status);

}  // namespace cairn::ps
