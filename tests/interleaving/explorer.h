#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/environment.h"
#include "storage/memory/memory_store.h"
#include "tests/interleaving/scheduler.h"
#include "tests/interleaving/world.h"

namespace cairn::interleaving {

/// A small world and what its actors do in it.
struct Scenario {
  std::string name;
  MemoryStoreOptions store;
  /// Fills the repository before the actors start; its actors have numbers from 100.
  std::function<void(World*)> setup;
  /// The actors' scripts; each is run again in every run, so it must be deterministic.
  std::vector<std::function<void(Actor*)>> scripts;
  /// How often per run a waiting actor may find its deadlines over although others could go on.
  int expiries = 0;
  bool share_files = false;  // files of one checkpoint are shared by the next
  /// The actor whose data files never reach the store: its drains fail as if the network were down.
  std::optional<int> failing_writer;
  ProtocolRules rules;
};

struct Limits {
  /// Switches away from an actor that could go on; unset: all schedules.
  std::optional<int> preemptions;
  /// Runs; unset: as many as it takes. The bound of tests, which must do the same everywhere.
  std::optional<std::uint64_t> runs;
  /// Unset: as long as it takes.
  std::optional<std::chrono::seconds> time;
};

struct Exploration {
  std::uint64_t runs = 0;
  std::uint64_t states = 0;           // distinct ones
  std::optional<int> preemptions;     // the bound; unset: none
  std::optional<std::uint64_t> seed;  // of the first random run; unset: not random
  bool complete = false;              // every schedule within the bound was tried
  bool exhaustive = false;  // and the bound left none out: these are all schedules there are
  std::string violation;    // empty: none
  std::string schedule;     // how it came to the violation, for people
  std::string Summary(const std::string& name) const;
};

/// Every schedule (within the limits), depth first. A run is replayed from the start up to where it
/// departs from the one before it; a state that was seen before is not explored again. Two runs are
/// in the same state when the store holds the same, the ledger says the same, and every actor saw
/// the same answers to all its operations: the actors are deterministic, so from there on they
/// behave the same. An actor that is killed is an actor that is never chosen again, and the
/// invariants are judged in every state, now and after a restart from there; so kills need no
/// choices of their own.
Exploration ExploreAll(const Scenario& scenario, const Limits& limits);

/// With 0, 1, 2 … preemptions until something is found, nothing is left out, or the limits are
/// reached (runs and time are for all of it together): finds the simplest schedules first.
Exploration ExploreDeepening(const Scenario& scenario, const Limits& limits);

/// Random schedules from `seed` on (each run has the next seed) until the limits are reached.
Exploration ExploreRandomly(const Scenario& scenario, std::uint64_t seed, const Limits& limits);

/// One schedule told by hand: each actor in turn goes on to the named place.
struct Turn {
  int actor = 0;
  std::string operation;  // as DescribeStoreOp says it, in part; "": to its end
  int skip = 0;           // so many such operations are let through first
  bool past = false;      // goes on past the operation, to what comes next
  bool expire = false;    // wakes it with its deadlines over
};
/// Up to just before the operation, to just after it, to the actor's end.
inline Turn Before(int actor, std::string operation, int skip = 0) {
  return {.actor = actor, .operation = std::move(operation), .skip = skip};
}
inline Turn Past(int actor, std::string operation, int skip = 0) {
  return {.actor = actor, .operation = std::move(operation), .skip = skip, .past = true};
}
inline Turn ToTheEnd(int actor) { return {.actor = actor, .operation = ""}; }
/// A schedule that does not fit the scenario (an actor ends or waits for others before it comes to
/// its place) is a violation that says so; at the end of the turns whoever is left is stopped.
Exploration Replay(const Scenario& scenario, const std::vector<Turn>& turns);

}  // namespace cairn::interleaving
