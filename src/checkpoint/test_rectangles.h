#pragma once

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace cairn {

/// Rectangles of arrays in the plainest way, as the reference for tests of resharding.

using Dims = std::vector<std::uint64_t>;

struct Rectangle {
  Dims shape;
  Dims offset;
};

inline std::uint64_t Volume(const Dims& shape) {
  std::uint64_t volume = 1;
  for (const std::uint64_t extent : shape) volume *= extent;
  return volume;
}

/// Cuts an array at random places until there are about `count` parts.
inline std::vector<Rectangle> RandomPartition(const Dims& shape, std::size_t count,
                                              std::mt19937_64* random) {
  std::vector<Rectangle> parts = {{shape, Dims(shape.size(), 0)}};
  if (shape.empty()) return parts;
  for (std::size_t tries = 0; parts.size() < count && tries < 10 * count; ++tries) {
    Rectangle& part = parts[(*random)() % parts.size()];
    const std::size_t d = (*random)() % shape.size();
    if (part.shape[d] < 2) continue;
    const std::uint64_t cut = 1 + (*random)() % (part.shape[d] - 1);
    Rectangle rest = part;
    rest.offset[d] += cut;
    rest.shape[d] -= cut;
    part.shape[d] = cut;
    parts.push_back(rest);
  }
  return parts;
}

/// The rectangle's elements, copied one by one.
inline std::string CutOut(const std::string& array, const Dims& whole, const Rectangle& rectangle,
                          std::size_t width) {
  const std::uint64_t count = Volume(rectangle.shape);
  std::string out(count * width, '\0');
  for (std::uint64_t i = 0; i < count; ++i) {
    std::uint64_t rest = i;
    std::uint64_t index = 0;
    std::uint64_t stride = 1;
    for (std::size_t d = whole.size(); d-- > 0;) {
      index += (rectangle.offset[d] + rest % rectangle.shape[d]) * stride;
      rest /= rectangle.shape[d];
      stride *= whole[d];
    }
    std::memcpy(out.data() + i * width, array.data() + index * width, width);
  }
  return out;
}

}  // namespace cairn
