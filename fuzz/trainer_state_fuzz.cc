// A trainer's state.json that decodes and can be encoded again decodes to the same.

#include <cstddef>
#include <cstdint>
#include <string>

#include "fuzz/require.h"
#include "train/trainer_state.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace cairn;  // NOLINT
  const auto state =
      DecodeTrainerState({{"state.json", std::string(reinterpret_cast<const char*>(data), size)}});
  if (!state.ok()) return 0;
  Require(state->progress.next_step > 0, "a state is one after a step");
  const auto files = EncodeTrainerState(*state);
  if (!files.ok()) return 0;  // nested deeper than we write
  const auto again = DecodeTrainerState(*files);
  Require(again.ok(), "what is encoded decodes");
  // By bytes: a NaN is not equal to itself.
  Require(EncodeTrainerState(*again).value() == *files, "encode(decode(bytes)) == bytes");
  return 0;
}
