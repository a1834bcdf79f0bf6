// What decodes, and can be sent on, is encoded to a message that decodes to the same.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "fuzz/require.h"
#include "trial/rank_wire.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cairn;
  const std::string_view text(reinterpret_cast<const char*>(data), size);

  const Result<Value> value = core::DecodeRankValue(text);
  if (value.ok()) {
    // Not equal to itself where there is a NaN, so messages are compared.
    if (const Result<std::string> sent = core::EncodeRankValue(*value); sent.ok()) {
      const Result<Value> again = core::DecodeRankValue(*sent);
      Require(again.ok(), "what was encoded decodes");
      Require(core::EncodeRankValue(*again).value() == *sent, "encode(decode(m)) == m");
    }
  }

  // Any bytes can be sent as a value.
  const Result<std::string> bytes = core::EncodeRankValue(Value(text));
  Require(bytes.ok() && core::DecodeRankValue(*bytes).value() == Value(text), "bytes come back");
  return 0;
}
