#pragma once

#include <cstdint>
#include <string_view>

namespace cairn::tune {

/// Random numbers that are the same on every machine and compiler. A stream is named by a seed, a
/// number and a text, so that what is drawn for one hyperparameter of one trial depends on nothing
/// else: not on the other hyperparameters, not on how many trials were made before. Nothing of it
/// has to be stored.
class Rng {
 public:
  Rng(std::uint64_t seed, std::uint64_t number, std::string_view name);

  std::uint64_t Next();
  /// In [0, 1), all multiples of 2^-53 alike.
  double Unit();
  /// In [0, bound), without bias; `bound` is at least 1.
  std::uint64_t Below(std::uint64_t bound);
  /// Of the standard normal distribution.
  double Normal();

 private:
  std::uint64_t state_;
};

}  // namespace cairn::tune
