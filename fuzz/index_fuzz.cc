// An index that decodes is encoded to one that decodes to the same; and whatever the index's own
// quick reader accepts is JSON for the strict one too, but for a member twice among skipped ones.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "format/json.h"
#include "format/safetensors.h"
#include "fuzz/require.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cairn;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const Result<SafetensorsIndex> index = DecodeSafetensorsIndex(text);
  if (!index.ok()) return 0;
  const Result<SafetensorsIndex> again = DecodeSafetensorsIndex(EncodeSafetensorsIndex(*index));
  Require(again.ok() && again->files == index->files && again->total_bytes == index->total_bytes,
          "decode(encode(index)) == index");
  const Result<Value> json = DecodeJson(text);
  Require(json.ok() || json.status().message().find("twice") != std::string_view::npos ||
              json.status().message().find("deeper") != std::string_view::npos,
          "an index is JSON");
  return 0;
}
