// The input is read as a segment, as it is and behind a header that is made here. Whatever is shown
// is encoded to the same bytes again, and a stricter reading never shows more.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "format/journal_frames.h"
#include "fuzz/require.h"

namespace cairn {
namespace {

void Check(std::string_view bytes) {
  const auto contents = ReadSegment(bytes, bytes.size(), true);
  const auto strict = ReadSegment(bytes, bytes.size(), false);
  Require(!strict.ok() || contents.ok(), "what is whole is also readable when it may be torn");
  if (!contents.ok()) return;
  std::string again = EncodeSegmentHeader(contents->header);
  for (const Frame& frame : contents->frames) AppendFrame(contents->header, frame, &again);
  Require(again == bytes.substr(0, contents->valid_bytes), "encode(decode(bytes)) == bytes");
  Require(strict.ok() == (contents->valid_bytes == bytes.size()), "strict takes every byte");
}

}  // namespace
}  // namespace cairn

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cairn;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  Check(input);
  if (const auto summary = DecodeSummary(input); summary.ok()) {
    Require(EncodeSummary(*summary) == input, "a summary is encoded to the same bytes");
  }
  std::string summary = EncodeSummary({.index = size, .payload = input});
  Require(DecodeSummary(summary).value().payload == input, "a summary holds its payload");
  if (size > 1) {
    summary[(data[0] * 256u + data[1]) % summary.size()] ^= static_cast<char>(data[0] | 1);
    const auto damaged = DecodeSummary(summary);
    Require(!damaged.ok(), "damage of a summary is noticed");
  }
  const SegmentHeader header{.number = 1, .first_index = 1};
  std::string framed = EncodeSegmentHeader(header);
  Check(framed + std::string(input));
  std::uint64_t index = 1;
  for (std::size_t at = 0; at < input.size(); at += 7) {
    AppendFrame(header, {index, index / 2, input.substr(at, 7)}, &framed);
    ++index;
  }
  Check(framed);
  if (size > 2) {
    framed[(data[0] * 256u + data[1]) % framed.size()] ^= static_cast<char>(data[2] | 1);
    Check(framed);
  }
  return 0;
}
