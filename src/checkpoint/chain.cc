#include "checkpoint/chain.h"

#include <algorithm>
#include <set>

#include "base/status_macros.h"

namespace cairn {
namespace {

constexpr std::size_t kNamedDependents = 5;

bool IsIncrement(const Checkpoint& checkpoint) {
  return checkpoint.manifest->kind == CheckpointKind::kIncrement;
}

}  // namespace

ChainIndex::ChainIndex(std::span<const Checkpoint> checkpoints) {
  for (const Checkpoint& checkpoint : checkpoints) Add(checkpoint);
}

void ChainIndex::Add(const Checkpoint& checkpoint) {
  by_id_.emplace(checkpoint.manifest->id, &checkpoint);
  if (!checkpoint.manifest->replaces.empty()) {
    by_id_.emplace(checkpoint.manifest->replaces, &checkpoint);
  }
}

const Checkpoint* ChainIndex::Find(std::string_view id, const Checkpoint& tip) const {
  const Checkpoint* found = nullptr;
  const auto [begin, end] = by_id_.equal_range(id);
  for (auto it = begin; it != end; ++it) {
    const Checkpoint& candidate = *it->second;
    if (candidate.removed || (tip.counts && !candidate.counts)) continue;
    // A directory that was put back by hand has the id too, and does not count. A replacement needs
    // less below it than what it replaces.
    const bool better = found == nullptr || (candidate.counts && !found->counts) ||
                        (candidate.counts == found->counts && candidate.manifest->id != id);
    if (better) found = &candidate;
  }
  return found;
}

Result<Chain> ChainIndex::Resolve(const Checkpoint& tip) const {
  Chain chain = {&tip};
  std::set<std::string_view> seen = {tip.manifest->id};
  while (IsIncrement(*chain.back())) {
    const Manifest& above = *chain.back()->manifest;
    const bool to_base = above.chain != "consecutive" || above.parent.empty();
    const std::string& id = to_base ? above.base : above.parent;
    const Checkpoint* below = Find(id, tip);
    const std::string which = chain.size() == 1 ? "" : ", by way of " + chain.back()->directory;
    if (below == nullptr) {
      return CorruptionError(std::string("builds on the ") + (to_base ? "full " : "") +
                             "checkpoint " + id + which + ", which is not there");
    }
    if (!seen.insert(below->manifest->id).second) {
      return CorruptionError("builds on itself" + which);
    }
    // Only what compact put in the place of a parent may be another full one than the base named.
    const bool replaced = below->manifest->id != id;
    const bool same_base = IsIncrement(*below) ? below->manifest->base == above.base
                                               : below->manifest->id == above.base || replaced;
    if (!same_base || (to_base && IsIncrement(*below))) {
      return CorruptionError("builds on " + below->directory + which +
                             ", which is not of the base " + above.base);
    }
    chain.push_back(below);
  }
  std::reverse(chain.begin(), chain.end());
  return chain;
}

bool HasBrokenChain(std::span<const Checkpoint> checkpoints) {
  const bool any = std::any_of(
      checkpoints.begin(), checkpoints.end(),
      [](const Checkpoint& checkpoint) { return checkpoint.counts && IsIncrement(checkpoint); });
  if (!any) return false;
  const ChainIndex index(checkpoints);
  return std::any_of(checkpoints.begin(), checkpoints.end(), [&](const Checkpoint& checkpoint) {
    return checkpoint.counts && IsIncrement(checkpoint) && !index.Resolve(checkpoint).ok();
  });
}

std::string DependentsOf(std::string_view id, std::span<const Checkpoint> checkpoints) {
  const ChainIndex index(checkpoints);
  std::vector<std::string> names;
  for (const Checkpoint& checkpoint : checkpoints) {
    if (!IsIncrement(checkpoint) || checkpoint.manifest->id == id || checkpoint.removed) continue;
    const auto chain = index.Resolve(checkpoint);
    if (!chain.ok()) continue;
    const bool needs = std::any_of(chain->begin(), chain->end(), [&](const Checkpoint* below) {
      return below->manifest->id == id;
    });
    if (needs) names.push_back(checkpoint.directory);
  }
  std::string text;
  for (std::size_t i = 0; i < names.size() && i < kNamedDependents; ++i) {
    text += (i == 0 ? "" : ", ") + names[i];
  }
  if (names.size() > kNamedDependents) {
    text += " and " + std::to_string(names.size() - kNamedDependents) + " more";
  }
  return text;
}

}  // namespace cairn
