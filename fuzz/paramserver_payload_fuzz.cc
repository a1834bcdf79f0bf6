// Whatever the bytes, decoding ends with a value or with Corruption, and takes no more memory than
// the message has. What decodes is encoded to the same bytes.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "fuzz/require.h"
#include "paramserver/log_record.h"
#include "paramserver/payload.h"

namespace {

using namespace cairn;
using namespace cairn::ps;

template <typename Decode>
void RoundTrip(std::span<const std::byte> body, const Decode& decode) {
  const auto value = decode(body);
  if (!value.ok()) return;
  Require(Encode(*value) == AsText(body), "encode(decode(bytes)) == bytes");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
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
  if (const auto number = DecodeNumber(body); number.ok()) {
    Require(EncodeNumber(*number) == AsText(body), "a number survives");
  }
  (void)DecodeKeys(body);
  (void)DecodeFloats(body);
  if (const auto dense = DecodeDenseBody(body); dense.ok()) (void)DecodeFloats(dense->values);
  for (const std::size_t width : {std::size_t{0}, std::size_t{1}, std::size_t{7}}) {
    const auto rows = DecodeRows(body, width);
    Require(!rows.ok() || RowsBytes(rows->keys.size(), width) == body.size(), "rows fill the body");
  }
  return 0;
}
