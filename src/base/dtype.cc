#include <cairn/dtype.h>

#include <array>

namespace cairn {
namespace {

struct Entry {
  DType dtype;
  int bits;
  std::string_view name;
};

constexpr std::array kEntries = {
    Entry{DType::kBool, 8, "BOOL"},
    Entry{DType::kU8, 8, "U8"},
    Entry{DType::kI8, 8, "I8"},
    Entry{DType::kU16, 16, "U16"},
    Entry{DType::kI16, 16, "I16"},
    Entry{DType::kU32, 32, "U32"},
    Entry{DType::kI32, 32, "I32"},
    Entry{DType::kU64, 64, "U64"},
    Entry{DType::kI64, 64, "I64"},
    Entry{DType::kF16, 16, "F16"},
    Entry{DType::kBF16, 16, "BF16"},
    Entry{DType::kF32, 32, "F32"},
    Entry{DType::kF64, 64, "F64"},
    Entry{DType::kF8E4M3, 8, "F8_E4M3"},
    Entry{DType::kF8E5M2, 8, "F8_E5M2"},
    Entry{DType::kF8E8M0, 8, "F8_E8M0"},
    Entry{DType::kF8E4M3Fnuz, 8, "F8_E4M3FNUZ"},
    Entry{DType::kF8E5M2Fnuz, 8, "F8_E5M2FNUZ"},
    Entry{DType::kF6E2M3, 6, "F6_E2M3"},
    Entry{DType::kF6E3M2, 6, "F6_E3M2"},
    Entry{DType::kF4, 4, "F4"},
    Entry{DType::kC64, 64, "C64"},
};

constexpr bool InOrder() {
  for (std::size_t i = 0; i < kEntries.size(); ++i) {
    if (static_cast<std::size_t>(kEntries[i].dtype) != i) return false;
  }
  return true;
}
static_assert(InOrder(), "the table is indexed by the enum");

}  // namespace

int DTypeBits(DType dtype) { return kEntries[static_cast<std::size_t>(dtype)].bits; }

std::string_view DTypeName(DType dtype) { return kEntries[static_cast<std::size_t>(dtype)].name; }

std::optional<DType> DTypeFromName(std::string_view name) {
  for (const Entry& entry : kEntries) {
    if (entry.name == name) return entry.dtype;
  }
  return std::nullopt;
}

}  // namespace cairn
