#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include <cairn/status.h>

/// The first value of a row.
namespace cairn {

/// Fills new rows. A pure function of (seed, table, key): a row that is made again after a
/// failover, on another server or in another order, begins with the same bits. Immutable; any
/// thread.
class Initializer {
 public:
  virtual ~Initializer() = default;
  /// `stream` identifies seed, table and key.
  virtual void Fill(std::uint64_t stream, std::span<float> row) const = 0;
};

Result<std::shared_ptr<const Initializer>> MakeConstant(float value);
/// In [low, high).
Result<std::shared_ptr<const Initializer>> MakeUniform(float low, float high);
Result<std::shared_ptr<const Initializer>> MakeNormal(float mean, float stddev);
/// Normal, drawn again where it is farther than two standard deviations from the mean.
Result<std::shared_ptr<const Initializer>> MakeTruncatedNormal(float mean, float stddev);

}  // namespace cairn
