#include "serving/follow_plan.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace cairn::serving {
namespace {

// Only those since the tip matter. Without one that is forgotten, all rows are read again.
constexpr std::size_t kRememberedParents = 10'000;

bool IsIncrement(const Checkpoint& checkpoint) {
  return checkpoint.manifest->kind == CheckpointKind::kIncrement;
}

/// It is the tip, or compact wrote it in the tip's place: the same state.
bool IsTip(const Checkpoint& checkpoint, const FollowState::Tip& tip) {
  return checkpoint.manifest->id == tip.id || checkpoint.manifest->replaces == tip.id;
}

bool DescendsFrom(const Checkpoint& checkpoint, const std::string& ancestor,
                  const std::map<std::string, std::string>& parents) {
  std::set<std::string> seen;
  std::string id = checkpoint.manifest->parent;
  while (!id.empty() && seen.insert(id).second) {
    if (id == ancestor) return true;
    const auto it = parents.find(id);
    if (it == parents.end()) return false;
    id = it->second;
  }
  return false;
}

/// The first of the chain that has to be put over the tip; 0: everything, instead of it.
///
/// A cumulative increment has the rows changed since its base. Over an earlier state of the same
/// branch since that base it gives its own state: whatever changed since then, changed since the
/// base too. Over another branch it does not: rows that only that branch changed would stay.
std::size_t FirstToApply(const Chain& chain, const FollowState& state) {
  const FollowState::Tip& tip = *state.tip;
  for (std::size_t i = chain.size(); i-- > 0;) {
    if (IsTip(*chain[i], tip)) return i + 1;
    const Manifest& manifest = *chain[i]->manifest;
    if (i > 0 && manifest.chain != "consecutive" && manifest.base == tip.base &&
        DescendsFrom(*chain[i], tip.id, state.parents)) {
      return i;
    }
  }
  return 0;
}

bool Abandoned(const RepositoryView& view, const FollowState::Tip& tip) {
  if (!view.newest_seal || view.newest_seal->generation <= tip.commit_generation) return false;
  const auto& commits = view.newest_seal->commits;
  if (std::find(commits.begin(), commits.end(), tip.id) != commits.end()) return false;
  // Compacted meanwhile: the state is there under another id.
  return std::none_of(
      view.checkpoints.begin(), view.checkpoints.end(),
      [&](const Checkpoint& checkpoint) { return checkpoint.counts && IsTip(checkpoint, tip); });
}

}  // namespace

FollowState::Tip TipOf(const Checkpoint& checkpoint) {
  const Manifest& manifest = *checkpoint.manifest;
  FollowState::Tip tip;
  tip.id = manifest.id;
  tip.base = IsIncrement(checkpoint) ? manifest.base : manifest.id;
  tip.generation = manifest.generation;
  tip.commit_generation = manifest.CommitGeneration();
  tip.sequence = manifest.sequence;
  return tip;
}

FollowPlan Judge(const RepositoryView& view, FollowState* state) {
  FollowPlan plan;
  if (state->parents.size() > kRememberedParents) state->parents.clear();
  for (const Checkpoint& checkpoint : view.checkpoints) {
    state->parents[checkpoint.manifest->id] = checkpoint.manifest->parent;
  }
  plan.tip_abandoned = state->tip && Abandoned(view, *state->tip);
  const ChainIndex index(view.checkpoints);
  for (auto it = view.checkpoints.rbegin(); it != view.checkpoints.rend(); ++it) {
    const Checkpoint& candidate = *it;
    const Manifest& manifest = *candidate.manifest;
    if (state->tip && !plan.tip_abandoned) {
      if (IsTip(candidate, *state->tip)) break;
      const auto place = std::tuple(manifest.generation, manifest.sequence);
      if (place <= std::tuple(state->tip->generation, state->tip->sequence)) break;
    }
    const auto pass_over = [&](std::string why) {
      plan.passed_over.push_back({manifest.id, manifest.step, std::move(why)});
    };
    if (candidate.foreign) {
      pass_over("it belongs to the job " + manifest.job);
      continue;
    }
    if (candidate.removed || state->refused.contains(manifest.id) ||
        state->aside.contains(manifest.id)) {
      continue;
    }
    if (!candidate.counts) {
      pass_over("it does not count: its writer had been overtaken");
      continue;
    }
    if (IsIncrement(candidate) && !state->increments) {
      pass_over(
          "it is an increment, and the model was exported for full checkpoints only "
          "(save_incr_model=False)");
      continue;
    }
    auto chain = index.Resolve(candidate);
    if (!chain.ok()) {
      pass_over(std::string(chain.status().message()));
      continue;
    }
    const std::size_t first = state->tip ? FirstToApply(*chain, *state) : 0;
    plan.kind = first == 0 ? FollowPlan::Kind::kReplace : FollowPlan::Kind::kPatch;
    plan.steps.assign(chain->begin() + static_cast<std::ptrdiff_t>(first), chain->end());
    break;
  }
  return plan;
}

}  // namespace cairn::serving
