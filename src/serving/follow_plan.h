#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/chain.h"
#include "checkpoint/repository.h"

namespace cairn::serving {

/// What a follower knows besides what lies in the repository now.
struct FollowState {
  /// The checkpoint whose state the newest version has.
  struct Tip {
    std::string id;
    std::string base;  // of an increment; of a full one its own id
    std::uint64_t generation = 0;
    std::uint64_t commit_generation = 0;
    std::uint64_t sequence = 0;
  };
  std::optional<Tip> tip;
  bool increments = true;                      // false: full ones only
  std::set<std::string> refused;               // ids that are not tried again
  std::set<std::string> aside;                 // ids that are not tried for now
  std::map<std::string, std::string> parents;  // of all checkpoints that were ever seen
};

/// What to do now.
struct FollowPlan {
  enum class Kind {
    kNothing,
    kPatch,    // the tip's rows, and over them those of `steps`
    kReplace,  // all rows: a full one and increments
  };
  Kind kind = Kind::kNothing;
  std::vector<const Checkpoint*> steps;  // the last is the target
  bool tip_abandoned = false;            // the tip counts no longer
  struct PassedOver {
    std::string id;
    std::int64_t step = 0;
    std::string why;
  };
  /// Checkpoints newer than what is chosen that cannot be used. The same ones each time.
  std::vector<PassedOver> passed_over;

  const Checkpoint* target() const { return steps.back(); }
};

/// Decides by ids and parents alone, never by steps, names or times: the newest checkpoint that
/// counts and is whole as far as manifests tell; a patch only where what it stands on is proved to
/// be the tip. The plan points into the view. Adds to state->parents.
FollowPlan Judge(const RepositoryView& view, FollowState* state);

FollowState::Tip TipOf(const Checkpoint& checkpoint);

}  // namespace cairn::serving
