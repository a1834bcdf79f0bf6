#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/thread_annotations.h"

namespace cairn {

/// Makes unique ids (random UUIDs, version 4). May be called from any thread.
class IdSource {
 public:
  virtual ~IdSource() = default;
  virtual std::string NewUuid() = 0;

  /// Draws from the kernel's random numbers; safe after fork. Lives for ever.
  static IdSource* System();
};

/// Uuids that are a pure function of the seed and the count, for tests.
class SeededIds final : public IdSource {
 public:
  explicit SeededIds(std::uint64_t seed) : state_(seed) {}
  std::string NewUuid() override;

 private:
  Mutex mu_;
  std::uint64_t state_ GUARDED_BY(mu_);
};

/// 8-4-4-4-12 lower-case hex digits.
bool IsUuid(std::string_view text);

}  // namespace cairn
