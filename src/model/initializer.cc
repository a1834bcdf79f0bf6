#include "model/initializer.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>
#include <string>

#include "base/checksum.h"
#include "base/status_macros.h"

namespace cairn {
namespace {

// The finalizer of SplitMix64: every bit of the result depends on every bit of the counter.
std::uint64_t Mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/// Random numbers by their place: no state, so any element may be asked for at any time.
class Draws {
 public:
  Draws(std::uint64_t seed, std::string_view name) : key_(Mix(Mix(seed) ^ Xxh3(name))) {}

  std::uint64_t Bits(std::uint64_t element, std::uint64_t draw) const {
    return Mix(key_ + Mix(element * 0x9e3779b97f4a7c15u + draw));
  }
  double Unit(std::uint64_t element, std::uint64_t draw) const {  // [0, 1)
    return static_cast<double>(Bits(element, draw) >> 11) * 0x1p-53;
  }
  double Gauss(std::uint64_t element, std::uint64_t draw) const {
    const double radius = std::sqrt(-2 * std::log(1 - Unit(element, 2 * draw)));
    return radius * std::cos(2 * std::numbers::pi * Unit(element, 2 * draw + 1));
  }

 private:
  std::uint64_t key_;
};

double Element(const VariableInitializer& initializer, const Draws& draws, std::uint64_t element) {
  switch (initializer.kind) {
    case VariableInitializer::Kind::kConstant:
      return initializer.a;
    case VariableInitializer::Kind::kUniform:
      return initializer.a + (initializer.b - initializer.a) * draws.Unit(element, 0);
    case VariableInitializer::Kind::kNormal:
      return initializer.a + initializer.b * draws.Gauss(element, 0);
    case VariableInitializer::Kind::kTruncatedNormal:
      for (std::uint64_t draw = 0;; ++draw) {
        const double gauss = draws.Gauss(element, draw);
        if (std::abs(gauss) <= 2) return initializer.a + initializer.b * gauss;
      }
  }
  return 0;
}

std::uint16_t ToBFloat16(double value) {
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
  if (std::isnan(value)) return static_cast<std::uint16_t>((bits >> 16) | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);  // ties to even
}

std::uint16_t ToFloat16(double value) {
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double size = std::abs(value);
  if (std::isnan(value)) return sign | 0x7e00;
  if (size >= 65520) return sign | 0x7c00;  // rounds to infinity
  // In units of the last place, where rounding to the nearest integer rounds the number.
  const int exponent = size < 0x1p-14 ? -14 : std::ilogb(size);
  const auto units = static_cast<std::uint32_t>(std::nearbyint(std::ldexp(size, 10 - exponent)));
  // A carry out of the fraction arrives in the exponent, as it must.
  const std::uint32_t biased = size < 0x1p-14 ? 0 : static_cast<std::uint32_t>(exponent + 14) << 10;
  return static_cast<std::uint16_t>(sign | (biased + units));
}

template <typename T, typename Convert>
void FillWith(const VariableInitializer& initializer, const Draws& draws,
              std::span<std::byte> memory, Convert convert) {
  const std::size_t count = memory.size() / sizeof(T);
  for (std::size_t i = 0; i < count; ++i) {
    const T value = convert(Element(initializer, draws, i));
    std::memcpy(memory.data() + i * sizeof(T), &value, sizeof(T));
  }
}

template <typename T>
void FillNumbers(const VariableInitializer& initializer, const Draws& draws,
                 std::span<std::byte> memory) {
  FillWith<T>(initializer, draws, memory, [](double value) { return static_cast<T>(value); });
}

template <typename T>
bool Holds(double value) {
  // The greatest int64 is no double; the comparison is with the power of two above it.
  return value == std::trunc(value) &&
         value >= static_cast<double>(std::numeric_limits<T>::min()) &&
         value < std::ldexp(1.0, std::numeric_limits<T>::digits);
}

bool IntegerHolds(DType dtype, double value) {
  switch (dtype) {
    case DType::kBool:
      return value == 0 || value == 1;
    case DType::kU8:
      return Holds<std::uint8_t>(value);
    case DType::kI8:
      return Holds<std::int8_t>(value);
    case DType::kU16:
      return Holds<std::uint16_t>(value);
    case DType::kI16:
      return Holds<std::int16_t>(value);
    case DType::kU32:
      return Holds<std::uint32_t>(value);
    case DType::kI32:
      return Holds<std::int32_t>(value);
    case DType::kU64:
      return Holds<std::uint64_t>(value);
    case DType::kI64:
      return Holds<std::int64_t>(value);
    default:
      return false;
  }
}

bool IsFloat(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF64 || dtype == DType::kF16 ||
         dtype == DType::kBF16;
}

}  // namespace

Status ValidateInitializer(const VariableInitializer& initializer, DType dtype) {
  const auto& [kind, a, b] = initializer;
  const bool finite = std::isfinite(a) && std::isfinite(b);
  if (kind == VariableInitializer::Kind::kConstant) {
    if (IsFloat(dtype) || IntegerHolds(dtype, a)) return Status::Ok();
    return InvalidArgumentError("the initializer's constant " + std::to_string(a) +
                                " is no value of dtype " + std::string(DTypeName(dtype)));
  }
  if (!IsFloat(dtype)) {
    return InvalidArgumentError("a random initializer fills F32, F64, F16 and BF16, not " +
                                std::string(DTypeName(dtype)));
  }
  if (kind == VariableInitializer::Kind::kUniform && (!finite || b < a)) {
    return InvalidArgumentError("a uniform initializer wants finite ends, the lower one first");
  }
  if (kind != VariableInitializer::Kind::kUniform && (!finite || b < 0)) {
    return InvalidArgumentError("a normal initializer wants a deviation that is not negative");
  }
  return Status::Ok();
}

Status FillInitial(const VariableInitializer& initializer, std::uint64_t seed,
                   std::string_view name, DType dtype, std::span<std::byte> memory) {
  RETURN_IF_ERROR(ValidateInitializer(initializer, dtype));
  const Draws draws(seed, name);
  switch (dtype) {
    case DType::kF32:
      FillNumbers<float>(initializer, draws, memory);
      break;
    case DType::kF64:
      FillNumbers<double>(initializer, draws, memory);
      break;
    case DType::kF16:
      FillWith<std::uint16_t>(initializer, draws, memory, ToFloat16);
      break;
    case DType::kBF16:
      FillWith<std::uint16_t>(initializer, draws, memory, ToBFloat16);
      break;
    case DType::kBool:
    case DType::kU8:
      FillNumbers<std::uint8_t>(initializer, draws, memory);
      break;
    case DType::kI8:
      FillNumbers<std::int8_t>(initializer, draws, memory);
      break;
    case DType::kU16:
      FillNumbers<std::uint16_t>(initializer, draws, memory);
      break;
    case DType::kI16:
      FillNumbers<std::int16_t>(initializer, draws, memory);
      break;
    case DType::kU32:
      FillNumbers<std::uint32_t>(initializer, draws, memory);
      break;
    case DType::kI32:
      FillNumbers<std::int32_t>(initializer, draws, memory);
      break;
    case DType::kU64:
      FillNumbers<std::uint64_t>(initializer, draws, memory);
      break;
    case DType::kI64:
      FillNumbers<std::int64_t>(initializer, draws, memory);
      break;
    default:
      return InvalidArgumentError("no initializer fills " + std::string(DTypeName(dtype)));
  }
  return Status::Ok();
}

}  // namespace cairn
