#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <cairn/checkpoint_manager.h>

#include "base/clock.h"
#include "base/ids.h"
#include "checkpoint/environment.h"
#include "storage/memory/memory_store.h"
#include "tests/interleaving/ledger.h"
#include "tests/interleaving/scheduler.h"

namespace cairn::interleaving {

class World;

/// A process of the explored world: a trainer, a rank, a reader, a tool. Its script runs the real
/// engine over a store and a clock that belong to it, so that the threads which the engine starts
/// are part of the actor. For the script's thread, except Env's pieces.
class Actor {
 public:
  Actor(World* world, int number);
  ~Actor();

  int number() const { return number_; }
  Environment Env();

  /// Opens a manager; null when the engine refused (which a script takes as its end).
  std::unique_ptr<CheckpointManager> Open(const ManagerOptions& options);
  /// Saves a state of this actor's own at `step`, and waits for it and for retention. False when it
  /// was not acknowledged.
  bool Save(CheckpointManager* manager, std::int64_t step);
  /// Why the last Open or Save failed.
  const Status& failure() const { return failure_; }
  /// What a restore that begins now may not fall short of.
  std::optional<Ledger::Place> Floor();
  /// Restores; what comes back is judged.
  void Restore(CheckpointManager* manager, std::optional<Ledger::Place> floor);
  void Pin(CheckpointManager* manager, const std::string& id);
  /// With the only score that there is: `keep_best` keeps it as a pin would.
  void Score(CheckpointManager* manager, const std::string& id);

  /// While quiet, the actor's operations are no points: it runs through.
  void set_quiet(bool quiet) { quiet_ = quiet; }
  /// A point without an operation.
  void Pause();

  ManagerOptions Options() const;
  /// The same for one rank of several.
  ManagerOptions RankOptions(int rank, int world_size) const;

  // For the store, the clock and the ids.
  bool Enter(const StoreOp& op, bool point);
  void Observe(StoreOp::Kind kind, std::string_view name, std::uint64_t result);
  void SawManifest(const std::string& name);
  void Sleep();
  Clock::Duration now() const { return now_; }
  World* world() const { return world_; }

  /// Equal for actors that saw the same: with deterministic code they do the same from here on.
  std::uint64_t history() const { return history_; }

 private:
  friend class World;

  World* const world_;
  const int number_;
  std::unique_ptr<Clock> clock_;
  std::unique_ptr<IdSource> ids_;
  std::shared_ptr<Store> store_;  // as Environment has it
  bool quiet_ = false;
  Clock::Duration now_ = std::chrono::hours(1);
  bool Stopped() const;

  ManagerOptions options_;  // as last opened
  Status failure_;
  std::int64_t saves_ = 0;
  std::string last_bulk_;
  std::string last_manifest_;  // id of the one last published or read
  std::uint64_t history_ = 0;
  // Polling: a round that saw what the round before saw leaves the actor as it was.
  std::uint64_t history_at_sleep_ = 0;
  std::uint64_t round_ = 1;
  std::uint64_t last_round_ = 0;
  std::uint64_t seen_changes_ = ~std::uint64_t{0};
};

/// What a scenario starts from: taken after its setup.
struct WorldStart {
  std::shared_ptr<const MemoryImage> image;
  ObjectDigests objects;
  Ledger ledger;
};

/// What earlier judgements need not look at again.
struct Judged {
  std::set<std::uint64_t> repositories;  // with their ledgers
  std::set<std::uint64_t> files;         // of checkpoints, compared byte by byte
};

/// One run's world: the shared objects, the ledger, the actors.
class World {
 public:
  /// A new one, for a setup (no scheduler) or from what a setup left.
  World(const MemoryStoreOptions& options, ProtocolRules rules);
  World(const WorldStart& start, ProtocolRules rules);

  WorldStart Take() const;
  Actor* AddActor(int number);
  void set_scheduler(Scheduler* scheduler) { scheduler_ = scheduler; }
  Scheduler* scheduler() { return scheduler_; }
  /// One name for all steps: then files of checkpoints have the same bytes and are shared.
  void set_share_files(bool share) { share_files_ = share; }
  void set_failing_writer(std::optional<int> actor) { failing_writer_ = actor; }
  bool WritesFail(int actor) const { return failing_writer_ == actor; }
  std::string TensorName(std::int64_t step) const {
    return share_files_ ? "w" : "w" + std::to_string(step);
  }
  std::unique_ptr<MemoryStore> NewView() const { return store_->OpenAgain(); }
  const ProtocolRules& rules() const { return rules_; }
  Ledger& ledger() { return ledger_; }
  const ObjectDigests& objects() const { return objects_; }
  const std::vector<std::unique_ptr<Actor>>& actors() const { return actors_; }

  bool Has(const std::string& name) const { return objects_.contains(name); }
  /// The store changed: an object got these bytes, or went (nullopt).
  void SetObject(int actor, const std::string& name, std::optional<std::uint64_t> digest);
  std::uint64_t changes_by_others(int actor) const;

  /// The invariants as things stand, and after everybody is stopped here and another process opens
  /// the repository, restores and saves: an empty text when they hold.
  std::string Judge(Judged* judged);
  /// Store, ledger and actors' histories. With what the scheduler knows this is the whole state.
  std::uint64_t Hash() const;

 private:
  std::string Check(Judged* judged);
  std::string CheckRestart(Judged* judged) const;
  /// After an opening with nobody else alive: nothing is left of saves and removals that ended
  /// half-way.
  std::string CheckSwept() const;

  const ProtocolRules rules_;
  std::unique_ptr<MemoryStore> store_;
  ObjectDigests objects_;
  std::uint64_t objects_hash_ = 0;
  Ledger ledger_;
  bool share_files_ = false;
  std::optional<int> failing_writer_;
  Scheduler* scheduler_ = nullptr;  // null during a setup
  std::vector<std::unique_ptr<Actor>> actors_;
  std::uint64_t changes_ = 0;
  std::map<int, std::uint64_t> changes_by_;
};

std::uint64_t MixHash(std::uint64_t a, std::uint64_t b);

}  // namespace cairn::interleaving
