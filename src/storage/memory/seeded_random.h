#pragma once

#include <cstdint>

namespace cairn {

/// Random numbers that are a pure function of the seed, the same on every machine (SplitMix64).
/// For one thread at a time.
class SeededRandom {
 public:
  explicit SeededRandom(std::uint64_t seed) : state_(seed) {}

  std::uint64_t Next() {
    state_ += 0x9E3779B97F4A7C15u;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  /// Uniform enough for tests; `bound` > 0.
  std::uint64_t Below(std::uint64_t bound) { return Next() % bound; }
  bool Coin() { return (Next() >> 63) != 0; }

 private:
  std::uint64_t state_;
};

}  // namespace cairn
