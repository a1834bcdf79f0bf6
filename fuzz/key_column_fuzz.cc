// A column that decodes is encoded to one that decodes to the same; whatever the bytes, no more
// memory is used than the number of keys that was asked for needs.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "format/key_column.h"
#include "fuzz/require.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cairn;
  const auto bytes = std::as_bytes(std::span(data, size));
  // The count that the column itself claims, as far as one would believe it, and another.
  std::uint64_t claimed = 0;
  if (size >= 16) std::memcpy(&claimed, data + 8, sizeof claimed);
  for (const std::uint64_t count : {claimed, std::uint64_t{3}}) {
    if (count > 100'000) continue;
    const auto keys = DecodeKeyColumn(bytes, count);
    if (!keys.ok()) continue;
    Require(keys->size() == count, "as many keys as asked for");
    const auto again = EncodeKeyColumn(*keys);
    Require(again.ok(), "what decodes can be encoded");
    const auto decoded = DecodeKeyColumn(*again, count);
    Require(decoded.ok() && *decoded == *keys, "decode(encode(keys)) == keys");
  }

  // As keys: every list survives.
  std::vector<std::int64_t> keys(size / 8);
  if (!keys.empty()) std::memcpy(keys.data(), data, keys.size() * 8);
  const auto encoded = EncodeKeyColumn(keys);
  Require(encoded.ok(), "every list of keys can be encoded");
  const auto decoded = DecodeKeyColumn(*encoded, keys.size());
  Require(decoded.ok() && *decoded == keys, "every list of keys survives");
  return 0;
}
