#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tests/crash/world.h"

namespace cairn::crash {

/// Something a job does to its repository. `run` drives a world and returns the first failure of a
/// call that should have worked, or OK.
struct Scenario {
  std::string name;
  World::Options world;
  bool foreign = false;       // plant foreign objects first
  bool late_commits = false;  // of an overtaken writer: they stay, and do not count
  std::function<Status(World*)> run;
  std::vector<std::string> must_do;  // protocol steps that a run must have gone through
};

/// All of them, on a machine of that kind.
std::vector<Scenario> Scenarios(Machine::Kind kind);

/// A run of a scenario: every instant at which the machine could have ended.
struct Recording {
  Status status;
  std::vector<Cut> cuts;
  std::set<SyncPoint> syncs;                // that were asked for, on a disk
  std::optional<std::size_t> first_effect;  // the cut from which the mutation made a difference
  std::vector<std::string> not_done;        // of Scenario::must_do
};
Recording Record(const Scenario& scenario, const Mutation* mutation = nullptr);

/// A way for the machine to end.
struct End {
  Ending ending = Ending::kForget;
  std::uint64_t seed = 0;
};
/// Forget, keep, kill, and `seeds` each of subset and torn; a bucket has one way.
std::vector<End> Ends(Machine::Kind kind, int seeds, std::uint64_t first_seed = 1);

struct Violation {
  std::size_t cut = 0;
  std::string text;  // the instant, how the machine ended, and what is broken
};
struct Tally {
  std::uint64_t cuts = 0;
  std::uint64_t images = 0;
  std::vector<Violation> violations;
};

struct EnumerateOptions {
  std::size_t max_violations = 5;  // stop then
  std::size_t first_cut = 0;
  std::size_t max_cuts = ~std::size_t{0};
  std::uint64_t max_images = ~std::uint64_t{0};
  bool save_again = true;              // see RecoveryOptions
  const Mutation* mutation = nullptr;  // borrowed: of the recovery too
};

/// Rebuilds the machine for every cut and way of ending, one way after the other, recovers and
/// checks. Uses as many threads as there are cores.
Tally Enumerate(const Scenario& scenario, const std::vector<Cut>& cuts,
                const std::vector<End>& ends, const EnumerateOptions& options = {});

/// The opening, a save and retention that follow the end of `scenario` at `cut`: the second world,
/// whose own cuts make the double crash.
Recording RecordAfter(const Scenario& scenario, const Cut& cut, const End& end);

struct TwiceOptions {
  std::uint64_t seed = 1;
  int samples = 1;            // second ends, drawn for each first one
  std::size_t stride = 1;     // every so many first cuts …
  std::size_t first_cut = 0;  // … from this one on
  std::size_t max_violations = 5;
};
/// Ends the machine at every cut in one way, drawn; recovers; ends it again in the middle of that,
/// `samples` times; recovers and checks. Uses as many threads as there are cores.
Tally EnumerateTwice(const Scenario& scenario, const std::vector<Cut>& cuts,
                     const TwiceOptions& how);

}  // namespace cairn::crash
