#include "tests/crash/world.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/checksum.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "checkpoint/catalog.h"
#include "checkpoint/manager.h"
#include "checkpoint/names.h"
#include "checkpoint/repository.h"
#include "checkpoint/restore.h"
#include "storage/local/local_store.h"
#include "storage/sim/seeded_random.h"

namespace cairn::crash {
namespace {

constexpr std::string_view kParent = "/data";
constexpr std::string_view kSerialKey = "save";
constexpr std::size_t kSmallBlock = 4096;

/// Bytes that are a function of `key` alone.
std::string BytesFor(const std::string& key, std::uint64_t seed, std::size_t count) {
  SeededRandom random(Xxh3(std::as_bytes(std::span(key))) ^ seed);
  std::string bytes(count, '\0');
  for (std::size_t i = 0; i < count; i += sizeof(std::uint64_t)) {
    const std::uint64_t word = random.Next();
    std::memcpy(bytes.data() + i, &word, std::min(sizeof word, count - i));
  }
  return bytes;
}

std::map<std::string, std::string> StateFiles(int serial, int rank) {
  return {{"state.json",
           "{\"save\":" + std::to_string(serial) + ",\"rank\":" + std::to_string(rank) + "}"},
          {"step_id", std::to_string(serial)}};
}

const std::map<std::string, std::string>& ForeignObjects() {
  static const std::map<std::string, std::string> objects = {
      {"README.txt", "notes of a user"},
      {"my_runs/notes.txt", "a directory of a user"},
      {"my_runs/manifest.json", "{\"version\": 7}"},
      {"checkpoint_old/data.bin", "looks like a checkpoint"},
      {"pool/photos/cat.jpg", "a directory that happens to be called pool"},
  };
  return objects;
}

std::string DirectoryOf(const Store& store, const CheckpointInfo& info) {
  return info.path.substr(store.Describe().size() + 1);
}

/// Of the calling thread: the engine's threads begin a step and then do its operations.
thread_local std::string current_step;

std::string Name(int serial) { return "save " + std::to_string(serial); }

}  // namespace

// --- Job ---

std::string Job::Bytes(const Variable& variable, int serial, int rank) const {
  const int version = variable.period == 0 ? 0 : serial / variable.period;
  std::string key = variable.name + "#" + std::to_string(version);
  if (variable.kind == Variable::Kind::kOwn) key += "@" + std::to_string(rank);
  return BytesFor(key, seed_, variable.rows * variable.columns * sizeof(float));
}

std::map<std::string, std::string> Job::UserFiles(int serial) const {
  if (!user_files_) return {};
  return {{"logs/run.txt", "save " + std::to_string(serial) + "\n"},
          {"tokenizer.bin", BytesFor("tokenizer", seed_, 5000)}};
}

PreparedSave Job::Prepare(int serial, std::int64_t step, int rank, int world_size) const {
  PreparedSave save;
  save.request.step = step;
  save.request.counters = Value::Object{{std::string(kSerialKey), serial}};
  save.request.metrics = Value::Object{{"loss", 1.0 / serial}};
  save.request.state_files = StateFiles(serial, rank);
  // All ways of saving take their turns: waiting, copied at once, copied behind the caller.
  save.request.blocking = serial % 3 == 1;
  save.request.lazy = serial % 3 == 0;
  for (const Variable& variable : variables_) {
    Tensor tensor;
    tensor.name = variable.name;
    tensor.shape = {variable.rows, variable.columns};
    std::string bytes = Bytes(variable, serial, rank);
    if (variable.kind == Variable::Kind::kOwn) tensor.group = TensorGroup::kState;
    if (world_size > 1 && variable.kind == Variable::Kind::kReplicated) tensor.replicated = true;
    if (world_size > 1 && variable.kind == Variable::Kind::kSharded) {
      const std::uint64_t rows = variable.rows / static_cast<std::uint64_t>(world_size);
      const std::uint64_t first = rows * static_cast<std::uint64_t>(rank);
      const std::uint64_t row_bytes = variable.columns * sizeof(float);
      tensor.shard = ShardSpec{tensor.shape, {first, 0}};
      tensor.shape[0] = rows;
      bytes = bytes.substr(first * row_bytes, rows * row_bytes);
    }
    save.memory.push_back(std::move(bytes));
    tensor.data = save.memory.back().data();
    save.request.tensors.push_back(std::move(tensor));
  }
  if (rank == 0) {
    for (auto& [name, bytes] : UserFiles(serial)) {
      save.request.files.push_back({.name = name, .path = "", .bytes = bytes});
    }
  }
  return save;
}

int Job::SerialOf(const Value& counters) {
  const Value* serial = counters.Find(kSerialKey);
  return serial == nullptr ? 0 : static_cast<int>(serial->AsInt());
}

std::string Job::Compare(const Restored& restored, int serial, int rank) const {
  if (SerialOf(restored.counters) != serial) {
    return "the counters are those of save " + std::to_string(SerialOf(restored.counters));
  }
  if (restored.tensors.size() != variables_.size()) {
    return std::to_string(restored.tensors.size()) + " tensors instead of " +
           std::to_string(variables_.size());
  }
  for (const Variable& variable : variables_) {
    const auto it =
        std::find_if(restored.tensors.begin(), restored.tensors.end(),
                     [&](const OwnedTensor& tensor) { return tensor.name == variable.name; });
    if (it == restored.tensors.end()) return variable.name + " is missing";
    const std::string expected = Bytes(variable, serial, rank);
    if (it->bytes != expected.size() ||
        std::memcmp(it->data.get(), expected.data(), expected.size()) != 0) {
      return variable.name + " has other bytes";
    }
  }
  if (restored.state_files != StateFiles(serial, rank)) return "the state files differ";
  return "";
}

std::string Job::CompareUserFiles(Store* store, const std::string& directory, int serial) const {
  for (const auto& [name, bytes] : UserFiles(serial)) {
    // By the manifest: in a bucket an unchanged file stands in an older checkpoint.
    RepositoryReader reader(store);
    const auto manifest = reader.ReadManifest(directory);
    if (!manifest.ok()) return manifest.status().ToString();
    const std::string path = names::Path(names::kFiles, name);
    const auto it = std::find_if(manifest->files.begin(), manifest->files.end(),
                                 [&](const ManifestFile& file) { return file.path == path; });
    if (it == manifest->files.end()) return path + " is not in the manifest";
    const auto stored =
        store->Get(it->ref.empty() ? names::Path(directory, path) : it->ref, 1u << 20);
    if (!stored.ok()) return path + ": " + stored.status().ToString();
    if (*stored != bytes) return path + " has other bytes";
  }
  return "";
}

// --- Oracle ---

int Oracle::Begin(std::int64_t step) {
  MutexLock lock(&mu_);
  const int serial = promise_.begun.empty() ? 1 : promise_.begun.rbegin()->first + 1;
  promise_.begun[serial] = step;
  return serial;
}

void Oracle::Acknowledge(int serial) {
  MutexLock lock(&mu_);
  std::vector<int>& acknowledged = promise_.acknowledged;
  if (std::find(acknowledged.begin(), acknowledged.end(), serial) != acknowledged.end()) return;
  acknowledged.push_back(serial);
  Release();
}

void Oracle::Release() {
  const std::vector<int>& acknowledged = promise_.acknowledged;
  for (std::size_t i = 0; keep_last_ && i + *keep_last_ < acknowledged.size(); ++i) {
    const auto pin = promise_.pinned.find(acknowledged[i]);
    if (pin != promise_.pinned.end() && pin->second) continue;
    released_.insert(acknowledged[i]);
  }
}

void Oracle::Adopt(const std::set<int>& serials) {
  MutexLock lock(&mu_);
  std::set<int> all(promise_.acknowledged.begin(), promise_.acknowledged.end());
  all.insert(serials.begin(), serials.end());
  for (const int serial : serials) promise_.begun.emplace(serial, serial);
  promise_.acknowledged.assign(all.begin(), all.end());
  Release();
}

void Oracle::Deleting(int serial) {
  MutexLock lock(&mu_);
  released_.insert(serial);
}

void Oracle::Deleted(int serial) {
  MutexLock lock(&mu_);
  promise_.deleted.insert(serial);
  std::erase(promise_.acknowledged, serial);
}

void Oracle::Pinning(int serial) {
  MutexLock lock(&mu_);
  promise_.pinned.erase(serial);
}

void Oracle::Pinned(int serial, bool pinned) {
  MutexLock lock(&mu_);
  promise_.pinned[serial] = pinned;
}

void Oracle::Scoring() {
  MutexLock lock(&mu_);
  Release();
}

void Oracle::Scored(int serial, double score) {
  MutexLock lock(&mu_);
  promise_.scores[serial] = score;
}

Promise Oracle::Now() const {
  MutexLock lock(&mu_);
  Promise promise = promise_;
  for (const int serial : promise.acknowledged) {
    if (!released_.contains(serial)) promise.required.insert(serial);
  }
  return promise;
}

// --- Machine ---

std::string_view EndingName(Ending ending) {
  switch (ending) {
    case Ending::kForget:
      return "forget";
    case Ending::kKeep:
      return "keep";
    case Ending::kSubset:
      return "subset";
    case Ending::kTorn:
      return "torn";
    case Ending::kKill:
      return "kill";
  }
  return "unknown";
}

Machine::Machine(Kind kind, SimFs::Options disk) {
  if (kind == Kind::kDisk) {
    fs_ = std::make_unique<SimFs>(std::move(disk));
    // The file system's own directory is there, as a mount point is.
    if (!fs_->MakeDirectory(std::string(kParent)).ok() ||
        !fs_->SyncDirectory("/", "mount point").ok()) {
      std::abort();
    }
  } else {
    memory_ = MemoryStore::Open({.object_store = true, .part_bytes = kSmallBlock}).value();
  }
}

Machine::Machine(const Image& image, Ending ending, std::uint64_t seed) {
  if (const auto* memory = std::get_if<std::shared_ptr<const MemoryImage>>(&image)) {
    memory_ = MemoryStore::FromSnapshot(**memory);
    return;
  }
  const SimImage& disk = *std::get<std::shared_ptr<const SimImage>>(image);
  switch (ending) {
    case Ending::kForget:
      fs_ = SimFs::FromCrash(disk, CrashMode::kForget, seed);
      break;
    case Ending::kKeep:
      fs_ = SimFs::FromCrash(disk, CrashMode::kKeep, seed);
      break;
    case Ending::kSubset:
      fs_ = SimFs::FromCrash(disk, CrashMode::kSubset, seed);
      break;
    case Ending::kTorn:
      fs_ = SimFs::FromCrash(disk, CrashMode::kTorn, seed);
      break;
    case Ending::kKill:
      fs_ = SimFs::FromKill(disk);
      break;
  }
}

Result<std::shared_ptr<Store>> Machine::NewStore(IdSource* ids) {
  if (fs_ != nullptr) {
    ASSIGN_OR_RETURN(std::unique_ptr<Store> store, OpenRepository(fs_.get(), ids));
    return std::shared_ptr<Store>(std::move(store));
  }
  std::shared_ptr<MemoryStore> store = memory_->OpenAgain();
  MutexLock lock(&mu_);
  if (hook_) {
    store->SetHook([hook = hook_](const StoreOp& op) {
      if (IsMutation(op.kind)) hook(DescribeStoreOp(op));
    });
  }
  return std::shared_ptr<Store>(std::move(store));
}

void Machine::SetHook(std::function<void(const std::string&)> hook) {
  MutexLock lock(&mu_);
  hook_ = hook;
  if (fs_ == nullptr) return;
  if (!hook) {
    fs_->SetHook(nullptr);
  } else {
    fs_->SetHook([hook](const SimOp& op) { hook(DescribeSimOp(op)); });
  }
}

Image Machine::Snapshot() const {
  if (fs_ != nullptr) return fs_->Snapshot();
  return memory_->Snapshot();
}

Result<std::unique_ptr<Store>> OpenRepository(Fs* fs, IdSource* ids, std::string_view root) {
  LocalStoreOptions options;
  options.root = root;
  options.fs = fs;
  options.ids = ids;
  options.part_bytes = 2 * kSmallBlock;
  options.queue_depth = 3;
  options.direct_from_bytes = 2 * kSmallBlock;
  ASSIGN_OR_RETURN(auto store, LocalStore::Open(std::move(options)));
  return std::unique_ptr<Store>(std::move(store));
}

LayoutLimits SmallLayout() {
  LayoutLimits limits;
  limits.own_file_bytes = 2 * kSmallBlock;
  limits.packed_file_bytes = 16 * kSmallBlock;
  limits.recycle_from_bytes = 2 * kSmallBlock;
  return limits;
}

// --- World ---

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
  current_step = "start";
  for (int rank = 0; rank < options_.world_size; ++rank) {
    clocks_.push_back(std::make_unique<RankClock>(this, rank));
  }
}

World::World(Options options, const Image& image, Ending ending, std::uint64_t seed,
             const Promise& promise)
    : World(std::move(options)) {
  machine_ = std::make_unique<Machine>(image, ending, seed);
  for (const auto& [serial, step] : promise.begun) {
    if (oracle_.Begin(step) != serial) std::abort();
  }
  for (const int serial : promise.acknowledged) oracle_.Acknowledge(serial);
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
  env.on_step = [this, rank](std::string_view name) { OnStep(rank, name); };
  return env;
}

std::string DescribeSync(const SyncPoint& point) {
  return std::string(point.sync.kind == SimSync::Kind::kFile ? "file" : "directory") + " \"" +
         point.sync.why + "\" " + point.sync.path +
         (point.step.empty() ? "" : " in \"" + point.step + "\"");
}

void World::WatchSyncs(std::function<bool(const SyncPoint&)> ignore) {
  machine_->fs()->IgnoreSyncs([this, ignore = std::move(ignore)](const SimSync& sync) {
    SyncPoint point{.sync = sync, .step = ""};
    point.sync.path = NormalizeSimPath(sync.path);
    // checkpoint_000010-2 is like checkpoint_000010.
    constexpr std::string_view kCopy = "checkpoint_#-#";
    if (const auto at = point.sync.path.find(kCopy); at != std::string::npos) {
      point.sync.path.erase(at + kCopy.size() - 2, 2);
    }
    // Records are told apart by the step: all of them pass through a temporary name.
    if (sync.why.starts_with("record")) point.step = current_step;
    {
      MutexLock lock(&mu_);
      syncs_.insert(point);
    }
    return ignore && ignore(point);
  });
}

std::set<SyncPoint> World::syncs() const {
  MutexLock lock(&mu_);
  return syncs_;
}

void World::OnStep(int rank, std::string_view name) {
  current_step = std::string(name);
  MutexLock lock(&mu_);
  step_ = std::string(name);
  ++steps_[step_];
  if (name != "acknowledge") return;
  int& saving = saving_[static_cast<std::size_t>(rank)];
  oracle_.Acknowledge(std::exchange(saving, 0));
  polled_.NotifyAll();
}

void World::BeforeOperation(const std::string& operation) {
  LetOthersLook(operation);
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

Result<std::unique_ptr<CheckpointManager>> World::Open(int rank) {
  current_step = "open: store";
  ManagerOptions options = options_.manager;
  options.rank = rank;
  options.world_size = options_.world_size;
  options.copy_threads = 1;
  Environment env = NewEnvironment(rank);
  if (env.store == nullptr) return InternalError("the store cannot be opened");
  return OpenManager(std::move(options), std::move(env), SmallLayout());
}

Result<CheckpointInfo> World::Save(CheckpointManager* manager, int serial, int rank) {
  {
    MutexLock lock(&mu_);
    saving_[static_cast<std::size_t>(rank)] = serial;
  }
  const std::int64_t step = oracle_.Now().begun.at(serial);
  PreparedSave save = options_.job.Prepare(serial, step, rank, options_.world_size);
  ASSIGN_OR_RETURN(const SaveHandle handle, manager->Save(std::move(save.request)));
  return handle.Wait();
}

std::map<std::string, int> World::steps() const {
  MutexLock lock(&mu_);
  return steps_;
}

// --- recovery ---

namespace {

/// One recovery on one machine.
class Recovery {
 public:
  Recovery(Machine* machine, const Job& job, const Promise& promise, const RecoveryOptions& options)
      : machine_(machine),
        job_(job),
        promise_(promise),
        options_(options),
        ids_(options.save_again ? 0x5EC07E4 : 0x7EC07E4) {}

  std::string Run();

 private:
  Result<std::unique_ptr<CheckpointManager>> Open(ManagerOptions options,
                                                  std::shared_ptr<Store>* store);
  std::string CheckReader(int rank);
  std::string CheckLatest(CheckpointManager* manager, int rank);
  std::string CheckList(CheckpointManager* manager, Store* store);
  std::string CheckOne(CheckpointManager* manager, Store* store, const CheckpointInfo& info);
  std::string CheckForeign(Store* store);
  std::string CheckNoGarbage(Store* store);
  std::string CheckNewSave(CheckpointManager* manager);

  Machine* const machine_;
  const Job& job_;
  const Promise& promise_;
  const RecoveryOptions& options_;
  SeededIds ids_;
  std::set<int> listed_;
  std::set<std::string> directories_;
};

Result<std::unique_ptr<CheckpointManager>> Recovery::Open(ManagerOptions options,
                                                          std::shared_ptr<Store>* store) {
  Environment env;
  ASSIGN_OR_RETURN(env.store, machine_->NewStore(&ids_));
  env.ids = &ids_;
  env.host = "machine";
  env.pid = 200;
  *store = env.store;
  options.retention.keep_last = std::nullopt;
  options.copy_threads = 1;
  return OpenManager(std::move(options), std::move(env), SmallLayout());
}

std::string Recovery::CheckLatest(CheckpointManager* manager, int rank) {
  auto restored = manager->Restore({.into = {}, .allocate = true});
  if (!restored.ok()) return "restore: " + restored.status().ToString();
  const int newest = promise_.required.empty() ? 0 : *promise_.required.rbegin();
  if (!restored->has_value()) {
    return newest == 0 ? "" : Name(newest) + " is lost: nothing is restored";
  }
  const Restored& latest = **restored;
  if (!latest.fallbacks.empty()) return "damaged: " + latest.fallbacks.front();
  const int serial = Job::SerialOf(latest.counters);
  if (!promise_.begun.contains(serial)) return Name(serial) + " was never begun";
  if (serial < newest) {
    return "the latest is " + Name(serial) + ", but " + Name(newest) + " was acknowledged";
  }
  const std::string wrong = job_.Compare(latest, serial, rank);
  return wrong.empty() ? "" : "latest, " + Name(serial) + ": " + wrong;
}

std::string Recovery::CheckReader(int rank) {
  ManagerOptions options;
  options.read_only = true;
  options.rank = rank;
  options.world_size = options_.world_size;
  std::shared_ptr<Store> store;
  auto reader = Open(options, &store);
  if (reader.status().Is(Code::kNotFound)) {
    return promise_.required.empty() ? "" : "the repository is gone";
  }
  if (!reader.ok()) return "open for reading: " + reader.status().ToString();
  const std::string wrong = CheckLatest(reader->get(), rank);
  return wrong.empty() ? "" : "a reader, rank " + std::to_string(rank) + ": " + wrong;
}

std::string Recovery::CheckOne(CheckpointManager* manager, Store* store,
                               const CheckpointInfo& info) {
  const int serial = Job::SerialOf(info.counters);
  const auto begun = promise_.begun.find(serial);
  if (begun == promise_.begun.end()) return "was never begun";
  if (begun->second != info.step) return "has step " + std::to_string(info.step);
  if (promise_.deleted.contains(serial)) return "was deleted and is back";
  if (!listed_.insert(serial).second) return "is there twice";
  auto restored = manager->Restore({.into = {}, .allocate = true, .id = info.id});
  if (!restored.ok()) return restored.status().ToString();
  if (std::string wrong = job_.Compare(**restored, serial, 0); !wrong.empty()) return wrong;

  const std::string directory = DirectoryOf(*store, info);
  directories_.insert(directory);
  if (std::string wrong = job_.CompareUserFiles(store, directory, serial); !wrong.empty()) {
    return wrong;
  }
  RepositoryReader reader(store);
  auto manifest = reader.ReadManifest(directory);
  if (!manifest.ok()) return manifest.status().ToString();
  auto open = OpenCheckpoint::Open(store, directory,
                                   std::make_shared<const Manifest>(*std::move(manifest)));
  if (!open.ok()) return open.status().ToString();
  std::vector<VerifyProblem> problems;
  const auto verified = VerifyFiles(store, **open, {}, &problems);
  if (!verified.ok()) return verified.status().ToString();
  if (!problems.empty()) return problems.front().what;

  if (const auto pin = promise_.pinned.find(serial);
      pin != promise_.pinned.end() && pin->second != info.pinned) {
    return pin->second ? "has lost its pin" : "is pinned although it was unpinned";
  }
  if (const auto score = promise_.scores.find(serial); score != promise_.scores.end()) {
    const Value* stored = info.metrics.Find("score");
    if (stored == nullptr || stored->AsDouble() != score->second) return "has lost its score";
  }
  return "";
}

std::string Recovery::CheckList(CheckpointManager* manager, Store* store) {
  auto infos = manager->List();
  if (!infos.ok()) return "list: " + infos.status().ToString();
  listed_.clear();
  directories_.clear();
  int last = 0;
  for (const CheckpointInfo& info : *infos) {
    const int serial = Job::SerialOf(info.counters);
    const std::string wrong = CheckOne(manager, store, info);
    if (!wrong.empty()) return Name(serial) + " (" + info.path + "): " + wrong;
    if (serial < last) return Name(serial) + " stands behind " + Name(last);
    last = serial;
  }
  for (const int serial : promise_.required) {
    if (!listed_.contains(serial)) return Name(serial) + " was acknowledged and is lost";
  }
  return "";
}

std::string Recovery::CheckForeign(Store* store) {
  if (!options_.foreign) return "";
  for (const auto& [name, bytes] : ForeignObjects()) {
    const auto stored = store->Get(name, 1u << 20);
    if (!stored.ok()) return "the foreign " + name + " is gone: " + stored.status().ToString();
    if (*stored != bytes) return "the foreign " + name + " was changed";
  }
  return "";
}

std::string Recovery::CheckNoGarbage(Store* store) {
  if (!options_.no_garbage) return "";
  const auto root = store->List("");
  if (!root.ok()) return root.status().ToString();
  for (const std::string& directory : root->prefixes) {
    if (directory == names::kGenerations || directories_.contains(directory)) continue;
    const auto foreign = ForeignObjects().lower_bound(directory + "/");
    if (options_.foreign && foreign != ForeignObjects().end() &&
        foreign->first.starts_with(directory + "/")) {
      continue;
    }
    // In a bucket a removed checkpoint keeps the files that others refer to.
    if (machine_->kind() == Machine::Kind::kBucket && directory.starts_with("checkpoint_") &&
        store->Stat(names::Path(directory, names::kMarker)).ok()) {
      continue;
    }
    return "garbage was left: " + directory;
  }
  return "";
}

std::string Recovery::CheckNewSave(CheckpointManager* manager) {
  constexpr int kNewSerial = 1000;
  constexpr std::int64_t kNewStep = 1000;
  PreparedSave save = job_.Prepare(kNewSerial, kNewStep);
  auto handle = manager->Save(std::move(save.request));
  if (!handle.ok()) return "the next save: " + handle.status().ToString();
  if (auto info = handle->Wait(); !info.ok()) return "the next save: " + info.status().ToString();
  const Status closed = manager->Close();
  if (!closed.ok()) return "close: " + closed.ToString();

  // It was acknowledged, so a power loss now must not harm it, nor what was listed before it.
  Machine again(machine_->Snapshot(), Ending::kForget, 0);
  Promise promise = promise_;
  promise.begun[kNewSerial] = kNewStep;
  promise.acknowledged.assign(listed_.begin(), listed_.end());
  promise.acknowledged.push_back(kNewSerial);
  promise.required = listed_;
  promise.required.insert(kNewSerial);
  RecoveryOptions options = options_;
  options.save_again = false;
  options.no_garbage = false;
  options.world_size = 1;
  const std::string wrong = Recovery(&again, job_, promise, options).Run();
  return wrong.empty() ? "" : "after the next save and a power loss: " + wrong;
}

std::string Recovery::Run() {
  for (int rank = 0; rank < options_.world_size; ++rank) {
    if (std::string wrong = CheckReader(rank); !wrong.empty()) return wrong;
  }
  std::shared_ptr<Store> store;
  auto manager = Open({}, &store);
  if (!manager.ok()) return "open: " + manager.status().ToString();
  if (std::string wrong = CheckLatest(manager->get(), 0); !wrong.empty()) return wrong;
  if (std::string wrong = CheckList(manager->get(), store.get()); !wrong.empty()) return wrong;
  if (std::string wrong = CheckForeign(store.get()); !wrong.empty()) return wrong;
  if (std::string wrong = CheckNoGarbage(store.get()); !wrong.empty()) return wrong;
  if (!options_.save_again) return "";
  return CheckNewSave(manager->get());
}

}  // namespace

std::string CheckRecovery(Machine* machine, const Job& job, const Promise& promise,
                          const RecoveryOptions& options) {
  return Recovery(machine, job, promise, options).Run();
}

Result<std::set<int>> ListSerials(CheckpointManager* manager) {
  ASSIGN_OR_RETURN(const std::vector<CheckpointInfo> infos, manager->List());
  std::set<int> serials;
  for (const CheckpointInfo& info : infos) serials.insert(Job::SerialOf(info.counters));
  return serials;
}

}  // namespace cairn::crash
