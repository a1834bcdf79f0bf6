#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <cairn/checkpoint_manager.h>
#include <cairn/status.h>

#include "checkpoint/layout.h"

namespace cairn {

/// Plans saves, remembering the last plan: a job's tensors are mostly the same from save to save,
/// and so is where they go. With ten thousand of them planning anew takes longer than writing them.
/// For one thread at a time.
class PlanCache {
 public:
  struct Options {
    std::string participant;
    int rank = 0;
    int world_size = 1;
    LayoutLimits limits;
    bool index_file = true;
  };
  explicit PlanCache(Options options) : options_(std::move(options)) {}

  /// As PlanSave. `history_version` is another one whenever another tensor is marked as changed.
  Result<SavePlan> Plan(const SaveRequest& request, const SaveHistory& history,
                        std::uint64_t history_version, bool stream_all);
  /// Gives the plan back after its save, with the tensors that it was made for.
  void Return(SavePlan plan, std::vector<Tensor> tensors);

 private:
  const Options options_;
  // Of the last call of Plan.
  std::uint64_t history_version_ = 0;
  bool stream_all_ = false;
  // What Return brought, until the next call of Plan.
  std::optional<SavePlan> plan_;
  std::vector<Tensor> tensors_;
};

}  // namespace cairn
