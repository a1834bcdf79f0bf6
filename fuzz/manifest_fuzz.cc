// A manifest that decodes validates, and is encoded to bytes that decode to the same. The input is
// tried as it is, and as the members of a record that is sealed here, because no fuzzer guesses a
// checksum.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "format/json.h"
#include "format/manifest.h"
#include "format/sealed_json.h"
#include "fuzz/require.h"

namespace cairn {
namespace {

void Check(std::string_view bytes) {
  const Result<Manifest> manifest = DecodeManifest(bytes);
  if (!manifest.ok()) return;
  Require(ValidateManifest(*manifest).ok(), "a decoded manifest validates");
  const std::string encoded = EncodeManifest(*manifest);
  const Result<Manifest> again = DecodeManifest(encoded);
  Require(again.ok(), "what is encoded decodes");
  // By bytes: NaN is not equal to itself.
  Require(EncodeManifest(*again) == encoded, "encode(decode(bytes)) == bytes");
  Require(again->files == manifest->files && again->tables == manifest->tables &&
              again->metadata == manifest->metadata && again->lineage == manifest->lineage &&
              again->id == manifest->id && again->time == manifest->time,
          "decode(encode(manifest)) == manifest");
}

}  // namespace
}  // namespace cairn

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cairn;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  Check(input);
  const Result<Value> value = DecodeJson(input);
  if (value.ok() && value->is_object()) {
    Value::Object members = *value->if_object();
    members.erase("checksum");
    const std::string sealed = EncodeSealedJson(members);
    const Result<Value::Object> back = DecodeSealedJson(sealed);
    Require(back.ok() && *back == members, "sealed members come back");
    Check(sealed);
  }
  return 0;
}
