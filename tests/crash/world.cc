#include "tests/crash/world.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <utility>

#include "base/clock.h"
#include "base/status_macros.h"
#include "checkpoint/manager.h"
#include "checkpoint/transfer.h"
#include "tests/crash/recovery.h"

namespace cairn::crash {
/// Counts the polls of a rank, and keeps them short.
class World::RankClock final : public Clock {
 public:
  RankClock(World* world, int rank) : world_(world), rank_(rank) {}
  Duration Now() override { return System()->Now(); }
  std::int64_t WallNanos() override { return System()->WallNanos(); }
  void Sleep(Duration duration) override {
    {
      MutexLock lock(&world_->mu_);
      ++world_->polls_[static_cast<std::size_t>(rank_)];
    }
    world_->polled_.NotifyAll();
    System()->Sleep(std::min<Duration>(duration, std::chrono::milliseconds(1)));
  }

 private:
  World* const world_;
  const int rank_;
};

World::World(Options options)
    : options_(std::move(options)),
      machine_(std::make_unique<Machine>(options_.kind)),
      oracle_(options_.manager.retention.keep_last),
      ids_(options_.seed),
      saving_(static_cast<std::size_t>(options_.world_size)),
      polls_(static_cast<std::size_t>(options_.world_size)) {
  SetCurrentStep("start");
  for (int rank = 0; rank < options_.world_size; ++rank) {
    clocks_.push_back(std::make_unique<RankClock>(this, rank));
  }
}

World::World(Options options, const Image& image, Ending ending, std::uint64_t seed,
             const Promise& promise)
    : World(std::move(options)) {
  machine_ = std::make_unique<Machine>(image, ending, seed);
  oracle_.Resume(promise);
}

World::~World() = default;

void World::PlantForeign() {
  auto store = machine_->NewStore(&ids_);
  for (const auto& [name, bytes] : ForeignObjects()) {
    if (!store.ok() || !(*store)->Put(name, bytes).ok()) std::abort();
  }
}

Environment World::NewEnvironment(int rank) {
  Environment env;
  auto store = machine_->NewStore(&ids_);
  if (store.ok()) env.store = *std::move(store);
  env.ids = &ids_;
  env.clock = clocks_[static_cast<std::size_t>(rank)].get();
  env.host = "machine";
  env.pid = 100 + rank;
  env.rules = options_.rules;
  env.on_step = [this, rank](std::string_view name) { OnStep(rank, name); };
  if (options_.mutation != nullptr && options_.mutation->order && env.store != nullptr) {
    auto store = std::make_shared<ReorderingStore>(env.store, *options_.mutation->order,
                                                   [this] { NoteEffect(); });
    env.on_step = [this, rank, store = store.get()](std::string_view name) {
      OnStep(rank, name);
      store->BeginStep(name);
    };
    env.store = std::move(store);
  }
  return env;
}

void World::WatchSyncs() {
  machine_->fs()->IgnoreSyncs([this](const SimSync& sync) { return IgnoreSync(sync); });
}

bool World::IgnoreSync(const SimSync& sync) {
  const SyncPoint point = PointOf(sync);
  {
    MutexLock lock(&mu_);
    syncs_.insert(point);
  }
  const Mutation* mutation = options_.mutation;
  if (mutation == nullptr || !mutation->ignore || !mutation->ignore(point)) return false;
  NoteEffect();
  if (!mutation->late()) return true;
  MutexLock lock(&mu_);
  late_.push_back({.sync = sync});
  return true;
}

void World::SyncLate(const std::string& operation) {
  std::vector<SimSync> due;
  {
    MutexLock lock(&mu_);
    std::erase_if(late_, [&](const LateSync& late) {
      if (late.due) due.push_back(late.sync);
      return late.due;
    });
    const Mutation* mutation = options_.mutation;
    if (mutation != nullptr && !mutation->late_operation.empty() &&
        operation.starts_with(mutation->late_operation)) {
      for (LateSync& late : late_) late.due = true;
    }
  }
  for (const SimSync& sync : due) {
    SimFs* fs = machine_->fs();
    if (sync.kind == SimSync::Kind::kDirectory) {
      fs->SyncDirectory(sync.path, "late").IgnoreError("it may be gone by now");
    } else if (auto file = fs->Open(sync.path, {.write = true}); file.ok()) {
      (*file)->Sync("late").IgnoreError("as good as it gets");
    }
  }
}

void World::NoteEffect() {
  MutexLock lock(&mu_);
  if (!first_effect_) first_effect_ = cuts_.size();
}

std::optional<std::size_t> World::first_effect() const {
  MutexLock lock(&mu_);
  return first_effect_;
}

std::set<SyncPoint> World::syncs() const {
  MutexLock lock(&mu_);
  return syncs_;
}

void World::OnStep(int rank, std::string_view name) {
  SetCurrentStep(name);
  MutexLock lock(&mu_);
  step_ = std::string(name);
  ++steps_[step_];
  if (!fail_step_.empty() && fail_step_ == name) {
    fail_step_.clear();
    machine_->faults()->Arm({.failure = FsFailure::kIoError,
                             .trigger = {.at = 0, .kind = fail_operation_},
                             .status = Status()});
  }
  if (options_.mutation != nullptr && options_.mutation->late_step == name) {
    for (LateSync& late : late_) late.due = true;
  }
  if (name != "acknowledge") return;
  int& saving = saving_[static_cast<std::size_t>(rank)];
  oracle_.Acknowledge(std::exchange(saving, 0));
  polled_.NotifyAll();
}

void World::BeforeOperation(const std::string& operation) {
  LetOthersLook(operation);
  TakeCut(operation);
  SyncLate(operation);
}

void World::TakeCut(const std::string& operation) {
  MutexLock lock(&mu_);
  if (!recording_) return;
  // The promise first: what was promised before the snapshot must be in it.
  Cut cut;
  cut.before = operation;
  cut.step = step_;
  cut.promise = oracle_.Now();
  cut.image = machine_->Snapshot();
  cuts_.push_back(std::move(cut));
}

// A manifest that is linked and not yet synced is seen by the other ranks. They get the time to act
// on it, because a power loss may still take it away.
void World::LetOthersLook(const std::string& operation) {
  constexpr std::string_view kManifestName = "/manifest.json";
  MutexLock lock(&mu_);
  if (options_.world_size == 1) return;
  if (operation.starts_with("link ") && operation.ends_with(kManifestName)) {
    const std::size_t to = operation.rfind(" to ") + 4;
    linked_manifest_ = operation.substr(to, operation.size() - kManifestName.size() - to);
    return;
  }
  if (linked_manifest_.empty() ||
      !operation.starts_with("sync directory " + linked_manifest_ + " (record name")) {
    return;
  }
  linked_manifest_.clear();
  const std::vector<std::uint64_t> before = polls_;
  for (std::size_t rank = 1; rank < saving_.size(); ++rank) {
    for (int rounds = 0; rounds < 100; ++rounds) {  // a rank that never comes is a hang elsewhere
      if (saving_[rank] == 0 || polls_[rank] >= before[rank] + 2) break;
      polled_.WaitFor(&mu_, std::chrono::milliseconds(50));
    }
  }
}

void World::StartRecording() {
  {
    MutexLock lock(&mu_);
    recording_ = true;
  }
  machine_->SetHook([this](const std::string& operation) { BeforeOperation(operation); });
}

std::vector<Cut> World::StopRecording() {
  BeforeOperation("(the end)");
  machine_->SetHook(nullptr);
  MutexLock lock(&mu_);
  recording_ = false;
  return std::exchange(cuts_, {});
}

Result<std::unique_ptr<CheckpointManager>> World::Open(
    int rank, const std::function<void(ManagerOptions*)>& change) {
  SetCurrentStep("open: store");
  ManagerOptions options = options_.manager;
  options.rank = rank;
  options.world_size = options_.world_size;
  options.copy_threads = 1;
  if (change) change(&options);
  Environment env = NewEnvironment(rank);
  if (env.store == nullptr) return InternalError("the store cannot be opened");
  return OpenManager(std::move(options), std::move(env), SmallLayout());
}

Status World::Compact() {
  SetCurrentStep("open: store");
  const Environment env = NewEnvironment(0);
  if (env.store == nullptr) return InternalError("the store cannot be opened");
  return CompactIn(env, {}, {}).status();
}

void World::BeginSave(int serial, int rank) {
  MutexLock lock(&mu_);
  saving_[static_cast<std::size_t>(rank)] = serial;
}

Result<CheckpointInfo> World::Save(CheckpointManager* manager, int serial, int rank, SaveKind kind,
                                   int since) {
  BeginSave(serial, rank);
  const std::int64_t step = oracle_.Now().begun.at(serial);
  PreparedSave save = options_.job.Prepare(serial, step, rank, options_.world_size, kind, since);
  ASSIGN_OR_RETURN(const SaveHandle handle, manager->Save(std::move(save.request)));
  return handle.Wait();
}

void World::FailOnce(std::string step, FsOpKind operation) {
  MutexLock lock(&mu_);
  fail_step_ = std::move(step);
  fail_operation_ = operation;
}

std::map<std::string, int> World::steps() const {
  MutexLock lock(&mu_);
  return steps_;
}

}  // namespace cairn::crash
