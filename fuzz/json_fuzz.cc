// What decodes is encoded to text that decodes to the same; what validates decodes.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "format/json.h"
#include "fuzz/require.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cairn;
  const std::string_view text(reinterpret_cast<const char*>(data), size);

  if (const Result<Value> value = DecodeJson(text); value.ok()) {
    Require(ValidateJsonValue(*value).ok(), "a decoded value validates");
    for (const int indent : {-1, 2}) {
      const Result<Value> again = DecodeJson(EncodeJson(*value, indent));
      Require(again.ok() && *again == *value, "decode(encode(v)) == v");
    }
    Require(IsValidUtf8(text), "only UTF-8 decodes");
  }

  // Any bytes make a string that can be written and read.
  const Result<Value> string = DecodeJson(EncodeJson(text));
  Require(string.ok() && string->is_string(), "every string is written as JSON");
  Require((*string == Value(text)) == IsValidUtf8(text), "UTF-8 comes back, other bytes do not");
  Require(IsValidUtf8(QuoteForMessage(text)), "messages are UTF-8");
  return 0;
}
