#pragma once

#include <cstdint>
#include <vector>

#include "tests/kill/job_state.h"

namespace cairn::s3 {

/// A state whose first tensor is uploaded in several parts; the second never changes, so that its
/// file is shared.
struct LargeState {
  std::vector<std::uint64_t> large = std::vector<std::uint64_t>(3'000'000);  // 24 MB
  std::vector<std::uint64_t> frozen = std::vector<std::uint64_t>(100'000);

  void Compute(std::int64_t step) {
    kill::JobState::Fill(&large, static_cast<std::uint64_t>(step));
    kill::JobState::Fill(&frozen, ~std::uint64_t{0});
  }
  std::vector<Tensor> Views() const { return {View("large", large), View("frozen", frozen)}; }
  std::vector<MutableTensor> Targets() {
    return {Target("large", &large), Target("frozen", &frozen)};
  }
  friend bool operator==(const LargeState&, const LargeState&) = default;

 private:
  static Tensor View(const char* name, const std::vector<std::uint64_t>& v) {
    return {.name = name, .dtype = DType::kU64, .shape = {v.size()}, .data = v.data()};
  }
  static MutableTensor Target(const char* name, std::vector<std::uint64_t>* v) {
    return {.name = name, .dtype = DType::kU64, .shape = {v->size()}, .data = v->data()};
  }
};

}  // namespace cairn::s3
