#include "serving/finite.h"

#include <cstring>

namespace cairn::serving {
namespace {

/// None has all bits of the exponent.
template <typename Word>
bool NoneHas(const std::byte* bytes, std::uint64_t size, Word exponent) {
  Word any = 0;
  for (std::uint64_t at = 0; at + sizeof(Word) <= size; at += sizeof(Word)) {
    Word word;
    std::memcpy(&word, bytes + at, sizeof(Word));
    any = static_cast<Word>(any | ((word & exponent) == exponent ? 1 : 0));
  }
  return any == 0;
}

}  // namespace

bool AllFinite(DType dtype, const std::byte* bytes, std::uint64_t size) {
  switch (dtype) {
    case DType::kF64:
      return NoneHas<std::uint64_t>(bytes, size, 0x7FF0000000000000);
    case DType::kF32:
      return NoneHas<std::uint32_t>(bytes, size, 0x7F800000);
    case DType::kF16:
      return NoneHas<std::uint16_t>(bytes, size, 0x7C00);
    case DType::kBF16:
      return NoneHas<std::uint16_t>(bytes, size, 0x7F80);
    default:
      return true;
  }
}

}  // namespace cairn::serving
