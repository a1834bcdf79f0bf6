#include "checkpoint/plan_cache.h"

#include <algorithm>
#include <utility>

namespace cairn {
namespace {

bool SameShard(const std::optional<ShardSpec>& a, const std::optional<ShardSpec>& b) {
  if (!a || !b) return a.has_value() == b.has_value();
  return a->global_shape == b->global_shape && a->offset == b->offset;
}

/// All that a plan depends on; where the bytes are does not matter, as long as they are somewhere.
bool SamePlace(const Tensor& a, const Tensor& b) {
  return a.name == b.name && a.dtype == b.dtype && a.shape == b.shape && a.group == b.group &&
         a.replicated == b.replicated && (a.data == nullptr) == (b.data == nullptr) &&
         (a.source == nullptr) == (b.source == nullptr) && SameShard(a.shard, b.shard);
}

}  // namespace

Result<SavePlan> PlanCache::Plan(const SaveRequest& request, const SaveHistory& history,
                                 std::uint64_t history_version, bool stream_all) {
  std::optional<SavePlan> last = std::exchange(plan_, std::nullopt);
  const bool same = last && history_version == history_version_ && stream_all == stream_all_ &&
                    std::equal(request.tensors.begin(), request.tensors.end(), tensors_.begin(),
                               tensors_.end(), SamePlace);
  history_version_ = history_version;
  stream_all_ = stream_all;
  tensors_.clear();
  if (same) return PlanAgain(*std::move(last), request, options_.participant, stream_all);
  return PlanSave(request, options_.participant, options_.rank, options_.world_size, history,
                  options_.limits, options_.index_file, stream_all);
}

void PlanCache::Return(SavePlan plan, std::vector<Tensor> tensors) {
  plan_ = std::move(plan);
  tensors_ = std::move(tensors);
}

}  // namespace cairn
