// An export's record that decodes is encoded to bytes that decode to the same. The input stands
// without its checksum, which no fuzzer would find.

#include <cstddef>
#include <cstdint>
#include <string>

#include "format/json.h"
#include "format/sealed_json.h"
#include "fuzz/require.h"
#include "serving/export_record.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace cairn;  // NOLINT
  const std::string text(reinterpret_cast<const char*>(data), size);
  (void)serving::DecodeExportRecord(text).ok();
  const auto members = DecodeJson(text);
  if (!members.ok() || members->if_object() == nullptr) return 0;
  const auto record = serving::DecodeExportRecord(EncodeSealedJson(*members->if_object()));
  if (!record.ok()) return 0;
  Require(serving::DecodeExportRecord(serving::Encode(*record)).value() == *record,
          "decode(encode(record)) == record");
  return 0;
}
