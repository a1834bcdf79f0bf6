// A signature that decodes is encoded to bytes that decode to the same.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "fuzz/require.h"
#include "model/inference/signature.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace cairn;  // NOLINT
  const auto signature =
      DecodeSignature(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!signature.ok()) return 0;
  Require(DecodeSignature(EncodeSignature(*signature)).value() == *signature,
          "decode(encode(signature)) == signature");
  return 0;
}
