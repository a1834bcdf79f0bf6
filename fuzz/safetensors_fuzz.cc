// A header that decodes is encoded to one that decodes to the same; looking for one name gives what
// decoding gives, for the names that are there and for texts that only look like one; and nothing
// that is found in a header that does not decode lies outside the file.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "format/json.h"
#include "format/safetensors.h"
#include "fuzz/require.h"

namespace cairn {
namespace {

/// The texts between any two neighbouring quotes: names, values, and what stands between them.
std::vector<std::string_view> Candidates(std::string_view text) {
  constexpr std::size_t kMost = 200;
  std::vector<std::string_view> out = {"", "__metadata__", "dtype"};
  std::size_t open = text.find('"');
  while (open != text.npos && out.size() < kMost) {
    const std::size_t close = text.find('"', open + 1);
    if (close == text.npos) break;
    out.push_back(text.substr(open + 1, close - open - 1));
    open = close;
  }
  return out;
}

void Check(std::string_view bytes, std::uint64_t file_bytes) {
  const Result<SafetensorsHeader> header = DecodeSafetensorsHeader(bytes, file_bytes);
  const std::vector<std::string_view> candidates = Candidates(bytes);
  if (!header.ok()) {
    for (const std::string_view name : candidates) {
      const Result<TensorEntry> found = FindTensorInHeader(bytes, file_bytes, name);
      if (!found.ok()) continue;
      Require(found->name == name && found->begin <= found->end &&
                  found->end <= file_bytes - bytes.size(),
              "a found tensor lies inside the file");
      Require(*TensorBytes(found->dtype, found->shape) == found->end - found->begin,
              "a found tensor's size fits its shape");
    }
    return;
  }

  Require(header->data_offset + header->DataBytes() == file_bytes, "the file is used up");
  std::set<std::string_view> names;
  for (const TensorEntry& tensor : header->tensors) {
    Require(names.insert(tensor.name).second, "no name twice");
    const Result<TensorEntry> found = FindTensorInHeader(bytes, file_bytes, tensor.name);
    Require(found.ok() && *found == tensor, "find gives what decode gives");
    // Never fails on a name or offset that is not a piece; only on a piece outside its array.
    DescribePiece(tensor, header->metadata).status().IgnoreError("both outcomes are fine");
  }
  for (const std::string_view name : candidates) {
    if (names.contains(name)) continue;
    Require(FindTensorInHeader(bytes, file_bytes, name).status().Is(Code::kNotFound),
            "find does not take other text for a name");
  }

  const Result<std::string> encoded = EncodeSafetensorsHeader(header->tensors, header->metadata);
  Require(encoded.ok(), "what decodes can be encoded");
  const Result<SafetensorsHeader> again =
      DecodeSafetensorsHeader(*encoded, encoded->size() + header->DataBytes());
  Require(again.ok() && again->tensors == header->tensors && again->metadata == header->metadata,
          "decode(encode(header)) == header");
  std::uint64_t cost = 8 + kSafetensorsAlign;
  for (const TensorEntry& tensor : header->tensors) cost += SafetensorsHeaderCost(tensor);
  if (header->metadata.empty()) Require(encoded->size() <= cost, "cost is an upper bound");
  const Result<Value> json = DecodeJson(bytes.substr(8));
  Require(json.ok() || json.status().message().find("twice") != std::string_view::npos,
          "a header is JSON");
}

}  // namespace
}  // namespace cairn

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cairn;
  const std::string_view input(reinterpret_cast<const char*>(data), size);

  // As a file's first bytes, however long the file is said to be.
  Check(input, size);
  Check(input, size + 4);

  // As two bytes that say how many bytes of data follow, and the JSON, framed rightly.
  if (size < 2) return 0;
  const std::uint64_t data_bytes = data[0] | data[1] << 8;
  const std::string_view json = input.substr(2);
  std::string framed;
  for (int i = 0; i < 8; ++i) framed += static_cast<char>((json.size() >> (8 * i)) & 0xFF);
  framed += json;
  Check(framed, framed.size() + data_bytes);
  return 0;
}
