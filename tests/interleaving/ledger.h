#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/environment.h"
#include "checkpoint/repository.h"
#include "storage/store.h"

namespace cairn::interleaving {

/// What a store holds: a digest of each object's bytes by name.
using ObjectDigests = std::map<std::string, std::uint64_t>;

/// The tensor that every save holds: one number for each participant.
using State = std::vector<std::int64_t>;
State StateOf(const Restored& restored);

/// What happened, as somebody sees it who watches every store operation and every acknowledgement:
/// the independent record against which the repository is judged. For one thread at a time (the
/// scheduler runs one actor at a time). Copied with the world that a scenario starts from.
class Ledger {
 public:
  /// A manifest that was published.
  struct Commit {
    std::string id;
    std::string directory;
    std::uint64_t generation = 0;
    std::uint64_t sequence = 0;
    std::int64_t step = 0;
    int actor = 0;
    bool late = false;  // a higher fence was there before it
    bool acknowledged = false;
    bool pin_asked = false;
    bool pinned = false;  // somebody was told so
    State state;
    std::set<std::uint64_t> removers;  // generations whose owner announced or did its removal
  };
  using Place = std::pair<std::uint64_t, std::uint64_t>;  // (generation, sequence)

  // Events, in the order in which they happen.
  void Saving(int actor, std::int64_t step, std::int64_t value);
  void Wrote(int actor, const std::string& name, std::string_view bytes);
  void Deleted(int actor, const std::string& name);
  void Acknowledged(int actor, const std::string& id);
  void PinAcknowledged(const std::string& id);
  /// A restore gave this; `floor` is what NewestAcknowledged said when it began.
  void RestoredState(int actor, const std::string& id, const State& state,
                     std::optional<Place> floor);
  void RestoredNothing(int actor, std::optional<Place> floor);
  void Fail(std::string what);
  /// What an event itself showed to be wrong; empty: nothing.
  const std::string& failure() const { return failure_; }

  /// The newest acknowledged save that no owner removed.
  std::optional<Place> NewestAcknowledged() const;
  const Commit* Find(const std::string& id) const;
  std::string IdIn(const std::string& directory) const;
  std::uint64_t GenerationOf(int actor) const;

  /// Reads the repository as it is now and judges it; an empty text when all is well. `store` does
  /// not belong to an actor; `objects` describes what it holds; `verified` remembers from call to
  /// call which files were compared byte by byte.
  std::string Check(Store* store, const ObjectDigests& objects, const ProtocolRules& rules,
                    std::set<std::uint64_t>* verified);

  /// What distinguishes ledgers of equal stores.
  std::uint64_t Hash() const;

 private:
  bool RemovedByOwner(const Commit& commit) const;
  static std::string CheckState(Store* store, const Checkpoint& checkpoint, const Commit& commit);

  std::map<std::string, Commit> commits_;         // by id
  std::map<std::string, std::string> manifests_;  // directory → id, as long as it is there
  std::map<std::uint64_t, std::set<std::string>> seals_;
  std::map<std::uint64_t, int> fences_;                          // generation → actor
  std::map<int, std::uint64_t> generations_;                     // actor → its newest generation
  std::map<std::pair<int, std::int64_t>, std::int64_t> values_;  // (actor, step) → what it saves
  std::map<std::string, int> joined_;                            // uuid → actor
  std::map<std::uint64_t, std::map<std::string, std::string>> admitted_;  // name → uuid
  std::string failure_;
};

}  // namespace cairn::interleaving
