// A request that decodes has inputs whose bytes are those of their shapes.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "format/safetensors.h"
#include "fuzz/require.h"
#include "serving/server/infer_json.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace cairn;  // NOLINT
  const auto request =
      serving::DecodeInferRequest(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!request.ok()) return 0;
  for (const auto& [name, input] : request->inputs) {
    Require(TensorBytes(input.dtype, input.shape).value() == input.bytes.size(),
            "the bytes are those of the shape");
  }
  return 0;
}
