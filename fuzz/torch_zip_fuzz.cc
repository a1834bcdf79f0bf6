// torch's zip files: whatever the bytes, a refusal or whole tensors, and nothing is run.

#include <cstddef>
#include <cstdint>
#include <span>

#include "fuzz/foreign_tensors.h"
#include "model/foreign/torch_zip.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace cairn;  // NOLINT
  const auto tensors = DecodeTorchZipUnverified(std::as_bytes(std::span(data, size)));
  if (tensors.ok()) RequireWholeTensors(*tensors);
  return 0;
}
