#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/status.h>

#include "checkpoint/repository.h"

namespace cairn {

/// What has to be read to restore a checkpoint: a full one first, then the increments on top of it
/// in order; the checkpoint itself is the last. Points into the checkpoints of a ChainIndex.
using Chain = std::vector<const Checkpoint*>;

/// Finds out what checkpoints build on: by the ids in their manifests, never by steps or names, so
/// that increments of a branch that was given up never come under a later one. Borrows the
/// checkpoints; immutable once built.
class ChainIndex {
 public:
  ChainIndex() = default;
  explicit ChainIndex(std::span<const Checkpoint> checkpoints);
  void Add(const Checkpoint& checkpoint);

  /// A cumulative increment stands on its base; a consecutive one on its parent, and so on down to
  /// a full one. Where compact has replaced a parent, the replacement is it. Corruption, beginning
  /// with a verb ("builds on …"), when something on the way is missing, removed, or of another
  /// base; for a checkpoint that counts, also when it does not count.
  Result<Chain> Resolve(const Checkpoint& tip) const;

 private:
  const Checkpoint* Find(std::string_view id, const Checkpoint& tip) const;

  std::multimap<std::string, const Checkpoint*, std::less<>> by_id_;  // and by what it replaces
};

/// True when an increment that counts lacks something that it builds on.
bool HasBrokenChain(std::span<const Checkpoint> checkpoints);

/// The directories of the increments that need the checkpoint `id`, as "a, b and 3 more"; "" when
/// none does.
std::string DependentsOf(std::string_view id, std::span<const Checkpoint> checkpoints);

}  // namespace cairn
