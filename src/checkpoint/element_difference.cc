#include "checkpoint/element_difference.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

namespace cairn {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// The layout of a float of at most 16 bits, apart from its sign.
struct SmallFloat {
  enum class Special { kIeee, kNoInfinity, kUnsignedZero, kNone };
  int exponent_bits;
  int mantissa_bits;
  int bias;
  Special special;  // what the largest exponents, or the bits of -0, stand for
};

constexpr SmallFloat kF16{5, 10, 15, SmallFloat::Special::kIeee};
constexpr SmallFloat kF8E4M3{4, 3, 7, SmallFloat::Special::kNoInfinity};
constexpr SmallFloat kF8E5M2{5, 2, 15, SmallFloat::Special::kIeee};
constexpr SmallFloat kF8E4M3Fnuz{4, 3, 8, SmallFloat::Special::kUnsignedZero};
constexpr SmallFloat kF8E5M2Fnuz{5, 2, 16, SmallFloat::Special::kUnsignedZero};
constexpr SmallFloat kF6E2M3{2, 3, 1, SmallFloat::Special::kNone};
constexpr SmallFloat kF6E3M2{3, 2, 3, SmallFloat::Special::kNone};
constexpr SmallFloat kF4E2M1{2, 1, 1, SmallFloat::Special::kNone};

double Decode(const SmallFloat& type, unsigned bits) {
  const unsigned mantissa_mask = (1u << type.mantissa_bits) - 1;
  const unsigned exponent_mask = (1u << type.exponent_bits) - 1;
  const unsigned mantissa = bits & mantissa_mask;
  const unsigned exponent = (bits >> type.mantissa_bits) & exponent_mask;
  const bool negative = ((bits >> (type.mantissa_bits + type.exponent_bits)) & 1) != 0;
  switch (type.special) {
    case SmallFloat::Special::kIeee:
      if (exponent != exponent_mask) break;
      if (mantissa != 0) return kNan;
      return negative ? -std::numeric_limits<double>::infinity()
                      : std::numeric_limits<double>::infinity();
    case SmallFloat::Special::kNoInfinity:
      if (exponent == exponent_mask && mantissa == mantissa_mask) return kNan;
      break;
    case SmallFloat::Special::kUnsignedZero:
      if (negative && exponent == 0 && mantissa == 0) return kNan;
      break;
    case SmallFloat::Special::kNone:
      break;
  }
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, 1 - type.bias - type.mantissa_bits)
                    : std::ldexp((1u << type.mantissa_bits) + mantissa,
                                 static_cast<int>(exponent) - type.bias - type.mantissa_bits);
  return negative ? -magnitude : magnitude;
}

double DecodeE8M0(unsigned bits) { return bits == 0xff ? kNan : std::ldexp(1.0, int(bits) - 127); }

void Count(double difference, ElementDifference* out) {
  ++out->elements;
  // A NaN sticks: nothing is greater than it.
  if (std::isnan(difference) || difference > out->max_abs) out->max_abs = difference;
}

double Distance(double x, double y) {
  if (std::isnan(x) && std::isnan(y)) return 0;  // two ways to say the same
  return std::fabs(x - y);
}

template <typename Bits, typename DistanceOf>
ElementDifference CompareAs(std::span<const std::byte> a, std::span<const std::byte> b,
                            DistanceOf distance) {
  ElementDifference out;
  for (std::size_t at = 0; at + sizeof(Bits) <= a.size(); at += sizeof(Bits)) {
    Bits x;
    Bits y;
    std::memcpy(&x, a.data() + at, sizeof x);
    std::memcpy(&y, b.data() + at, sizeof y);
    if (x != y) Count(distance(x, y), &out);
  }
  return out;
}

template <typename Int>
ElementDifference CompareIntegers(std::span<const std::byte> a, std::span<const std::byte> b) {
  using Unsigned = std::make_unsigned_t<Int>;
  return CompareAs<Int>(a, b, [](Int x, Int y) {
    const auto low = static_cast<Unsigned>(x < y ? x : y);
    const auto high = static_cast<Unsigned>(x < y ? y : x);
    return static_cast<double>(static_cast<Unsigned>(high - low));
  });
}

template <typename Float, typename Bits>
ElementDifference CompareFloats(std::span<const std::byte> a, std::span<const std::byte> b) {
  return CompareAs<Bits>(a, b, [](Bits x, Bits y) {
    return Distance(std::bit_cast<Float>(x), std::bit_cast<Float>(y));
  });
}

double BFloat(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

float RealPart(std::uint64_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits));
}
float ImaginaryPart(std::uint64_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits >> 32));
}

ElementDifference CompareSmall(const SmallFloat& type, std::span<const std::byte> a,
                               std::span<const std::byte> b) {
  return CompareAs<std::uint8_t>(a, b, [&](std::uint8_t x, std::uint8_t y) {
    return Distance(Decode(type, x), Decode(type, y));
  });
}

ElementDifference CompareSubByte(const SmallFloat& type, unsigned bits,
                                 std::span<const std::byte> a, std::span<const std::byte> b) {
  ElementDifference out;
  const unsigned mask = (1u << bits) - 1;
  const auto element = [&](std::span<const std::byte> bytes, std::uint64_t position) {
    const std::size_t at = position / 8;
    unsigned word = std::to_integer<unsigned>(bytes[at]);
    if (at + 1 < bytes.size()) word |= std::to_integer<unsigned>(bytes[at + 1]) << 8;
    return (word >> (position % 8)) & mask;
  };
  for (std::uint64_t position = 0; position + bits <= a.size() * 8; position += bits) {
    const unsigned x = element(a, position);
    const unsigned y = element(b, position);
    if (x != y) Count(Distance(Decode(type, x), Decode(type, y)), &out);
  }
  return out;
}

}  // namespace

void ElementDifference::Merge(const ElementDifference& other) {
  elements += other.elements;
  if (std::isnan(other.max_abs) || other.max_abs > max_abs) max_abs = other.max_abs;
}

ElementDifference CompareElements(DType dtype, std::span<const std::byte> a,
                                  std::span<const std::byte> b) {
  if (a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0) return {};
  switch (dtype) {
    case DType::kBool:
    case DType::kU8:
      return CompareIntegers<std::uint8_t>(a, b);
    case DType::kI8:
      return CompareIntegers<std::int8_t>(a, b);
    case DType::kU16:
      return CompareIntegers<std::uint16_t>(a, b);
    case DType::kI16:
      return CompareIntegers<std::int16_t>(a, b);
    case DType::kU32:
      return CompareIntegers<std::uint32_t>(a, b);
    case DType::kI32:
      return CompareIntegers<std::int32_t>(a, b);
    case DType::kU64:
      return CompareIntegers<std::uint64_t>(a, b);
    case DType::kI64:
      return CompareIntegers<std::int64_t>(a, b);
    case DType::kF16:
      return CompareAs<std::uint16_t>(a, b, [](std::uint16_t x, std::uint16_t y) {
        return Distance(Decode(kF16, x), Decode(kF16, y));
      });
    case DType::kBF16:
      return CompareAs<std::uint16_t>(
          a, b, [](std::uint16_t x, std::uint16_t y) { return Distance(BFloat(x), BFloat(y)); });
    case DType::kF32:
      return CompareFloats<float, std::uint32_t>(a, b);
    case DType::kF64:
      return CompareFloats<double, std::uint64_t>(a, b);
    case DType::kF8E4M3:
      return CompareSmall(kF8E4M3, a, b);
    case DType::kF8E5M2:
      return CompareSmall(kF8E5M2, a, b);
    case DType::kF8E8M0:
      return CompareAs<std::uint8_t>(a, b, [](std::uint8_t x, std::uint8_t y) {
        return Distance(DecodeE8M0(x), DecodeE8M0(y));
      });
    case DType::kF8E4M3Fnuz:
      return CompareSmall(kF8E4M3Fnuz, a, b);
    case DType::kF8E5M2Fnuz:
      return CompareSmall(kF8E5M2Fnuz, a, b);
    case DType::kF6E2M3:
      return CompareSubByte(kF6E2M3, 6, a, b);
    case DType::kF6E3M2:
      return CompareSubByte(kF6E3M2, 6, a, b);
    case DType::kF4:
      return CompareSubByte(kF4E2M1, 4, a, b);
    case DType::kC64:
      return CompareAs<std::uint64_t>(a, b, [](std::uint64_t x, std::uint64_t y) {
        return std::hypot(Distance(RealPart(x), RealPart(y)),
                          Distance(ImaginaryPart(x), ImaginaryPart(y)));
      });
  }
  return {};
}

}  // namespace cairn
