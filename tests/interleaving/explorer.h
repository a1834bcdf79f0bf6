#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
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
  ProtocolRules rules;
};

struct Limits {
  /// Switches away from an actor that could go on; unset: all schedules.
  std::optional<int> preemptions;
  std::chrono::seconds time = std::chrono::seconds(60);
};

struct Exploration {
  std::uint64_t runs = 0;
  std::uint64_t states = 0;  // distinct ones
  bool complete = false;  // nothing was left out (but what the limits and the scenario leave out)
  std::string violation;  // empty: none
  std::string schedule;   // how it came to the violation, for people
  std::string Summary(const std::string& name) const;
};

/// Every schedule (within the limits), depth first. A run is replayed from the start up to where it
/// departs from the one before it; a state that was seen before is not explored again. Two runs are
/// in the same state when the store holds the same, the ledger says the same, and every actor saw
/// the same answers to all its operations: the actors are deterministic, so from there on they
/// behave the same. An actor that is killed is an actor that is never chosen again, and the
/// invariants are judged in every state; so kills need no choices of their own.
Exploration ExploreAll(const Scenario& scenario, const Limits& limits);

/// With 0, 1, 2 … preemptions until something is found or the limits are reached: finds the
/// simplest schedules first.
Exploration ExploreDeepening(const Scenario& scenario, const Limits& limits);

/// Random schedules from `seed` on until the time is over or `runs` are done.
Exploration ExploreRandomly(const Scenario& scenario, std::uint64_t seed, const Limits& limits,
                            std::uint64_t runs = ~std::uint64_t{0});

/// One schedule told by hand: each actor in turn goes on until its next operation is described by a
/// text that contains `before` (DescribeStoreOp; "": to its end, or until it sleeps for good).
struct Turn {
  int actor = 0;
  std::string before;
  int skip = 0;         // so many such operations are let through first
  bool expire = false;  // wakes it with its deadlines over
};
Exploration Replay(const Scenario& scenario, const std::vector<Turn>& turns);

}  // namespace cairn::interleaving
