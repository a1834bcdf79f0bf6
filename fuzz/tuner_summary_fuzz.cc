// Summaries of experiments, with the checksum put right so that the decoder behind it is reached.
// Nothing in them ends the program; what was read comes back when it is written.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/checksum.h"
#include "fuzz/require.h"
#include "tune/tuner_summary.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cairn;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  (void)tune::DecodeSummary(input);
  constexpr std::size_t kHead = 22 + 16;
  std::string mended = "cairn tuner summary 1\n";
  const std::string_view body = size < kHead ? input : input.substr(kHead);
  mended += ToHex(Xxh3(body));
  mended += body;
  const auto summary = tune::DecodeSummary(mended);
  const bool head = tune::DecodeSummaryHead(mended).ok();
  if (!summary.ok()) return 0;
  Require(head, "a whole summary has a head");
  const std::string encoded = tune::EncodeSummary(*summary);
  const auto again = tune::DecodeSummary(encoded);
  Require(again.ok() && tune::EncodeSummary(*again) == encoded,
          "a summary comes back from its bytes");
  return 0;
}
