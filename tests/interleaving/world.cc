#include "tests/interleaving/world.h"

#include <utility>

#include "base/checksum.h"
#include "checkpoint/manager.h"
#include "checkpoint/repository.h"
#include "tests/interleaving/scheduled_store.h"

namespace cairn::interleaving {
namespace {

/// Time of one actor: it stands still while others are what it waits for, and leaps over every
/// deadline when the scheduler says so. Actors' clocks have nothing to do with each other.
class ActorClock final : public Clock {
 public:
  explicit ActorClock(Actor* actor) : actor_(actor) {}
  Duration Now() override { return actor_->now(); }
  std::int64_t WallNanos() override { return 1'700'000'000'000'000'000; }
  void Sleep(Duration) override { actor_->Sleep(); }

 private:
  Actor* const actor_;
};

/// Who starts when all others were stopped, and what it saves.
constexpr int kRecoveryActor = 200;
constexpr std::int64_t kRecoveryStep = 90;

/// Names the series that an operation on a data file belongs to; empty for protocol records.
std::string BulkOf(const StoreOp& op) {
  if (op.name.find("/__model__/") == op.name.npos) return "";
  return std::string(StoreOpName(op.kind)) + op.name.substr(0, op.name.find('/'));
}

}  // namespace

std::uint64_t MixHash(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = a * 0x9e3779b97f4a7c15ULL + b;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

Actor::Actor(World* world, int number)
    : world_(world),
      number_(number),
      clock_(std::make_unique<ActorClock>(this)),
      ids_(std::make_unique<SeededIds>(static_cast<std::uint64_t>(number) + 1)),
      store_(NewScheduledStore(this)) {}
Actor::~Actor() = default;

Environment Actor::Env() {
  Environment env;
  env.store = store_;
  env.clock = clock_.get();
  env.ids = ids_.get();
  env.host = "host" + std::to_string(number_);
  env.pid = 1000 + number_;
  env.rules = world_->rules();
  env.on_step = [this](std::string_view step) {
    if (step != "acknowledge") return;
    if (Stopped()) return;
    world_->ledger().Acknowledged(number_, last_manifest_);
  };
  return env;
}

ManagerOptions Actor::Options() const {
  ManagerOptions options;
  options.takeover = true;
  options.copy_threads = 1;
  return options;
}

ManagerOptions Actor::RankOptions(int rank, int world_size) const {
  ManagerOptions options = Options();
  options.rank = rank;
  options.world_size = world_size;
  return options;
}

std::unique_ptr<CheckpointManager> Actor::Open(const ManagerOptions& options) {
  options_ = options;
  // Small enough for every file to have a chance to be recycled.
  LayoutLimits limits;
  limits.recycle_from_bytes = 1;
  auto manager = OpenManager(options, Env(), limits);
  failure_ = manager.status();
  return manager.ok() ? *std::move(manager) : nullptr;
}

bool Actor::Save(CheckpointManager* manager, std::int64_t step) {
  const std::int64_t value = number_ * 1000 + ++saves_;
  world_->ledger().Saving(number_, step, value);
  Tensor tensor{
      .name = world_->TensorName(step), .dtype = DType::kI64, .shape = {1}, .data = &value};
  if (options_.world_size > 1) {
    tensor.shard = ShardSpec{{static_cast<std::uint64_t>(options_.world_size)},
                             {static_cast<std::uint64_t>(options_.rank)}};
  }
  auto handle = manager->Save({.step = step, .tensors = {tensor}, .blocking = true});
  manager->WaitAll().IgnoreError("of retention: what it left is what is judged");
  failure_ = handle.status();
  return handle.ok();
}

std::optional<Ledger::Place> Actor::Floor() {
  const auto floor = world_->ledger().NewestAcknowledged();
  Observe(StoreOp::Kind::kRefresh, "(floor)",
          floor ? MixHash(floor->first, floor->second) : std::uint64_t{0});
  return floor;
}

void Actor::Restore(CheckpointManager* manager, std::optional<Ledger::Place> floor) {
  auto restored = manager->Restore({.allocate = true});
  if (Stopped()) return;
  Ledger& ledger = world_->ledger();
  if (!restored.ok()) {
    ledger.Fail("actor " + std::to_string(number_) +
                " could not restore: " + restored.status().ToString());
  } else if (!restored->has_value()) {
    ledger.RestoredNothing(number_, floor);
  } else {
    ledger.RestoredState(number_, (*restored)->info.id, StateOf(**restored), floor);
  }
}

void Actor::Pin(CheckpointManager* manager, const std::string& id) {
  const Status pinned = manager->Pin(id);
  if (pinned.ok() && !Stopped()) world_->ledger().PinAcknowledged(id);
}

void Actor::Score(CheckpointManager* manager, const std::string& id) {
  const Status scored = manager->AddMetrics(id, Value::Object{{"accuracy", 1.0}});
  if (scored.ok() && !Stopped()) world_->ledger().PinAcknowledged(id);
}

bool Actor::Stopped() const {
  return world_->scheduler() != nullptr && world_->scheduler()->stopped();
}

void Actor::Pause() {
  if (Enter({.kind = StoreOp::Kind::kRefresh, .name = "(pause)"}, true)) {
    Observe(StoreOp::Kind::kRefresh, "", 0);
  }
}

bool Actor::Enter(const StoreOp& op, bool point) {
  Scheduler* scheduler = world_->scheduler();
  if (scheduler == nullptr) return true;
  if (!point || quiet_) return !scheduler->stopped();
  // Files of one directory are opened, read, deleted in one go.
  const std::string bulk = BulkOf(op);
  if (!bulk.empty() && bulk == last_bulk_) return !scheduler->stopped();
  last_bulk_ = bulk;
  return scheduler->Point(number_, op);
}

void Actor::Observe(StoreOp::Kind kind, std::string_view name, std::uint64_t result) {
  const std::uint64_t seen = MixHash(MixHash(static_cast<std::uint64_t>(kind), result), Xxh3(name));
  history_ = MixHash(history_, seen);
  round_ = MixHash(round_, seen);
}

void Actor::SawManifest(const std::string& name) {
  last_manifest_ = world_->ledger().IdIn(name.substr(0, name.find('/')));
}

void Actor::Sleep() {
  Scheduler* scheduler = world_->scheduler();
  if (scheduler == nullptr) {
    now_ += std::chrono::hours(24);
    return;
  }
  if (round_ == last_round_) history_ = history_at_sleep_;
  history_at_sleep_ = history_;
  last_round_ = std::exchange(round_, 1);
  bool expired = false;
  if (!scheduler->Sleep(number_, world_->changes_by_others(number_) != seen_changes_, &expired)) {
    return;
  }
  seen_changes_ = world_->changes_by_others(number_);
  if (!expired) return;
  now_ += std::chrono::hours(24);
  Observe(StoreOp::Kind::kRefresh, "(expired)", 0);
}

World::World(const MemoryStoreOptions& options, ProtocolRules rules)
    : rules_(rules), store_(MemoryStore::Open(options).value()) {}

World::World(const WorldStart& start, ProtocolRules rules)
    : rules_(rules),
      store_(MemoryStore::FromSnapshot(*start.image)),
      objects_(start.objects),
      ledger_(start.ledger) {}

WorldStart World::Take() const { return {store_->Snapshot(), objects_, ledger_}; }

Actor* World::AddActor(int number) {
  actors_.push_back(std::make_unique<Actor>(this, number));
  return actors_.back().get();
}

void World::SetObject(int actor, const std::string& name, std::optional<std::uint64_t> digest) {
  ++changes_;
  ++changes_by_[actor];
  if (scheduler_ != nullptr) scheduler_->Changed(actor);
  const std::uint64_t key = Xxh3(name);
  if (const auto it = objects_.find(name); it != objects_.end()) {
    objects_hash_ -= MixHash(key, it->second);
    objects_.erase(it);
  }
  if (!digest) return;
  objects_[name] = *digest;
  objects_hash_ += MixHash(key, *digest);
}

std::uint64_t World::changes_by_others(int actor) const {
  const auto it = changes_by_.find(actor);
  return changes_ - (it == changes_by_.end() ? 0 : it->second);
}

std::string World::Judge(Judged* judged) {
  if (!ledger_.failure().empty()) return ledger_.failure();
  // The same repository with the same past was judged before: by whoever it is read.
  if (!judged->repositories.insert(MixHash(objects_hash_, ledger_.Hash())).second) return "";
  std::string wrong = Check(judged);
  return wrong.empty() ? CheckRestart(judged) : wrong;
}

std::string World::Check(Judged* judged) {
  return ledger_.Check(store_.get(), objects_, rules_, &judged->files);
}

std::string World::CheckSwept() const {
  std::set<std::string> committed;
  for (const auto& [name, digest] : objects_) {
    if (name.ends_with("/manifest.json")) committed.insert(name.substr(0, name.find('/')));
  }
  std::set<std::string> referred;
  for (const std::string& directory : committed) {
    auto manifest = RepositoryReader(store_.get()).ReadManifest(directory);
    if (!manifest.ok()) return manifest.status().ToString();
    for (const ManifestFile& file : manifest->files) {
      if (!file.ref.empty()) referred.insert(file.ref.substr(0, file.ref.find('/')));
    }
  }
  for (const auto& [name, digest] : objects_) {
    const std::string directory = name.substr(0, name.find('/'));
    if (committed.contains(directory) || referred.contains(directory)) continue;
    if (directory == "pool" || directory.starts_with("checkpoint_")) {
      return name + " belongs to no checkpoint and was not swept";
    }
  }
  return "";
}

std::string World::CheckRestart(Judged* judged) const {
  World after(Take(), rules_);
  after.set_share_files(share_files_);
  Actor* actor = after.AddActor(kRecoveryActor);
  const auto floor = after.ledger_.NewestAcknowledged();
  ManagerOptions options = actor->Options();
  options.retention.keep_last.reset();
  auto manager = actor->Open(options);
  if (manager == nullptr) return "it cannot be opened again: " + actor->failure().ToString();
  actor->Restore(manager.get(), floor);
  if (!actor->Save(manager.get(), kRecoveryStep)) {
    return "nothing can be saved after a restart: " + actor->failure().ToString();
  }
  manager.reset();
  std::string wrong = after.Check(judged);
  if (wrong.empty()) wrong = after.CheckSwept();
  return wrong.empty() ? "" : "after a restart: " + wrong;
}

std::uint64_t World::Hash() const {
  std::uint64_t hash = MixHash(objects_hash_, ledger_.Hash());
  for (const auto& actor : actors_) hash = MixHash(hash, actor->history());
  return hash;
}

}  // namespace cairn::interleaving
