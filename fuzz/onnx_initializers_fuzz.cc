// ONNX's initializers: whatever the bytes, a refusal or whole tensors.

#include <cstddef>
#include <cstdint>
#include <span>

#include "fuzz/foreign_tensors.h"
#include "model/foreign/onnx_initializers.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace cairn;  // NOLINT
  OneSideFile files;
  const auto tensors = DecodeOnnxInitializers(std::as_bytes(std::span(data, size)), &files);
  if (tensors.ok()) RequireWholeTensors(*tensors);
  return 0;
}
