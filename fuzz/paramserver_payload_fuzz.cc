// Whatever the bytes, decoding ends with a value or with Corruption, and takes no more memory than
// the message has. What decodes is encoded to the same bytes.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "fuzz/require.h"
#include "paramserver/log_record.h"
#include "paramserver/payload.h"
#include "rpc/socket_frames.h"

namespace {

using namespace cairn;
using namespace cairn::ps;

template <typename Decode>
void RoundTrip(std::span<const std::byte> body, const Decode& decode) {
  const auto value = decode(body);
  if (!value.ok()) return;
  Require(Encode(*value) == AsText(body), "encode(decode(bytes)) == bytes");
}

/// What stands around messages on plain connections.
void Frames(std::span<const std::byte> bytes) {
  using namespace cairn::rpc;
  if (const auto greeting = DecodeClientGreeting(bytes); greeting.ok()) {
    Require(greeting->token_bytes <= kMaxTokenBytes, "a token has a limit");
    Require(Encode(*greeting) == AsText(bytes), "a greeting survives");
  }
  if (DecodeAnswer(bytes).ok()) {
    Require(EncodeAnswer(Verdict::kWelcome) == AsText(bytes), "a welcome survives");
  }
  Require(!DecodeEnd(bytes).ok(), "an end is an error");
  if (bytes.size() < kFrameHeadBytes) return;
  if (const auto head = DecodeFrameHead(bytes.first(kFrameHeadBytes)); head.ok()) {
    const auto again = Encode(*head);
    Require(AsText(again) == AsText(bytes.first(kFrameHeadBytes)), "a frame's head survives");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  Frames(bytes);
  if (const auto reply = DecodeReply(bytes); reply.ok()) (void)ReplyStatus(*reply);
  if (const auto record = DecodeLogRecord(bytes); record.ok()) {
    Require(Encode(*record) == AsText(bytes), "a log record survives");
  }
  const auto request = DecodeRequest(bytes);
  if (!request.ok()) return 0;
  const rpc::Message again = NewRequest(request->head, AsText(request->body));
  Require(AsText(again.bytes()) == AsText(bytes), "a request survives");
  const std::span<const std::byte> body = request->body;
  RoundTrip(body, DecodeHelloRequest);
  RoundTrip(body, DecodeHelloReply);
  RoundTrip(body, DecodeEndStepRequest);
  RoundTrip(body, DecodeEndStepReply);
  RoundTrip(body, DecodeMarker);
  RoundTrip(body, DecodeExportedRows);
  RoundTrip(body, DecodeEvicted);
  if (const auto number = DecodeNumber(body); number.ok()) {
    Require(EncodeNumber(*number) == AsText(body), "a number survives");
  }
  if (const auto rate = DecodeRate(body); rate.ok()) {
    Require(EncodeRate(*rate) == AsText(body), "a rate survives");
  }
  std::vector<std::int64_t> copy;
  (void)ViewKeys(body, &copy);
  (void)DecodeFloats(body);
  if (const auto dense = DecodeDenseBody(body); dense.ok()) (void)DecodeFloats(dense->values);
  for (const std::size_t width : {std::size_t{0}, std::size_t{1}, std::size_t{7}}) {
    const auto rows = DecodeRows(body, width);
    Require(!rows.ok() || RowsBytes(rows->keys.size(), width) == body.size(), "rows fill the body");
    const auto view = ViewRows(body, width);
    Require(view.ok() == rows.ok(), "a view is there when a copy is");
    Require(!view.ok() || std::ranges::equal(view->keys, rows->keys), "and has the same keys");
  }
  return 0;
}
