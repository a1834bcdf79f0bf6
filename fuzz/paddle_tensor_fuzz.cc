// Paddle's tensor files: whatever the bytes, a refusal or whole tensors.

#include <cstddef>
#include <cstdint>
#include <span>

#include "fuzz/foreign_tensors.h"
#include "model/foreign/paddle_tensor.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace cairn;  // NOLINT
  const auto tensors = DecodePaddleTensors(std::as_bytes(std::span(data, size)));
  if (tensors.ok()) RequireWholeTensors(*tensors);
  return 0;
}
