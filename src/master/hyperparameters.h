#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <cairn/status.h>
#include <cairn/value.h>

#include "master/config_node.h"

namespace cairn::master {

/// What values one hyperparameter may take.
struct HyperparameterRange {
  enum class Kind : std::uint8_t {
    kConst,        // `val`
    kInt,          // whole numbers from minval to maxval, both included
    kDouble,       // from minval to maxval
    kLog,          // base^x, x from minval to maxval
    kCategorical,  // one of `vals`
  };
  Kind kind = Kind::kConst;
  Value val;
  Value::List vals;
  double minval = 0;
  double maxval = 0;
  double base = 10;
  std::uint64_t count = 0;  // points on a grid; 0: not said
};

/// The hyperparameters of an experiment: what each trial gets is a pure function of the seed and
/// the trial's number, so that nothing about it has to be remembered. A value.
class Hyperparameters {
 public:
  Hyperparameters() = default;
  /// A map of names to plain values (constants), ranges ({type: int, minval: 1, maxval: 8}) or maps
  /// of the same. InvalidArgument with the line.
  static Result<Hyperparameters> Parse(const ConfigNode& node);

  /// The values of the `index`-th of random trials.
  Value Sample(std::uint64_t seed, std::uint64_t index) const;
  /// How many points the grid has. InvalidArgument: a range without `count`, or more than 100,000.
  Result<std::uint64_t> GridSize() const;
  /// The `index`-th point; the last name changes fastest. `index` < GridSize().
  Value GridPoint(std::uint64_t index) const;
  /// Whether there is anything to choose.
  bool HasRanges() const;

 private:
  struct Entry {
    std::vector<std::string> path;
    HyperparameterRange range;
  };
  std::vector<Entry> entries_;  // in the order of their paths
  friend class HyperparameterReader;
};

}  // namespace cairn::master
