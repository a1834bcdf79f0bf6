#include "tests/crash/recovery.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/status_macros.h"
#include "checkpoint/catalog.h"
#include "checkpoint/manager.h"
#include "checkpoint/names.h"
#include "checkpoint/repository.h"
#include "checkpoint/restore.h"

namespace cairn::crash {
const std::map<std::string, std::string>& ForeignObjects() {
  static const std::map<std::string, std::string> objects = {
      {"README.txt", "notes of a user"},
      {"my_runs/notes.txt", "a directory of a user"},
      {"my_runs/manifest.json", "{\"version\": 7}"},
      {"checkpoint_old/data.bin", "looks like a checkpoint"},
      {"checkpoint_web/manifest.json", "{\"name\": \"an app\", \"icons\": []}"},
      {"pool/photos/cat.jpg", "a directory that happens to be called pool"},
  };
  return objects;
}

namespace {

std::string DirectoryOf(const Store& store, const CheckpointInfo& info) {
  return info.path.substr(store.Describe().size() + 1);
}

std::string Name(int serial) { return "save " + std::to_string(serial); }

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
  std::string CheckOlderRun();
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
  env.on_step = SetCurrentStep;
  options.retention.keep_last = std::nullopt;
  options.copy_threads = 1;
  return OpenManager(std::move(options), std::move(env), SmallLayout());
}

std::string Recovery::CheckLatest(CheckpointManager* manager, int rank) {
  TestTableSink sink;
  auto restored = manager->Restore(
      {.into = {}, .allocate = true, .tables = job_.has_table() ? &sink : nullptr});
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
  std::string wrong = job_.Compare(latest, serial, rank);
  if (wrong.empty()) wrong = job_.CompareTable(sink, serial);
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

// A run that was replaced stays out.
std::string Recovery::CheckOlderRun() {
  if (promise_.run == 0) return "";
  ManagerOptions options;
  options.run = promise_.run - 1;
  std::shared_ptr<Store> store;
  const auto opened = Open(options, &store);
  if (opened.status().Is(Code::kFailedPrecondition)) return "";
  return "run " + std::to_string(options.run) + " was replaced by run " +
         std::to_string(promise_.run) + " and may write again: " + opened.status().ToString();
}

std::string Recovery::CheckOne(CheckpointManager* manager, Store* store,
                               const CheckpointInfo& info) {
  const int serial = Job::SerialOf(info.counters);
  const auto begun = promise_.begun.find(serial);
  if (begun == promise_.begun.end()) return "was never begun";
  if (begun->second != info.step) return "has step " + std::to_string(info.step);
  if (promise_.deleted.contains(serial)) return "was deleted and is back";
  if (promise_.fenced.contains(serial)) return "was left out by a seal and counts";
  const bool again = !listed_.insert(serial).second;
  TestTableSink sink;
  auto restored = manager->Restore(
      {.into = {}, .allocate = true, .id = info.id, .tables = job_.has_table() ? &sink : nullptr});
  if (!restored.ok()) return restored.status().ToString();
  if (std::string wrong = job_.Compare(**restored, serial, 0); !wrong.empty()) return wrong;
  if (std::string wrong = job_.CompareTable(sink, serial); !wrong.empty()) return wrong;

  const std::string directory = DirectoryOf(*store, info);
  directories_.insert(directory);
  if (std::string wrong = job_.CompareUserFiles(store, directory, serial); !wrong.empty()) {
    return wrong;
  }
  RepositoryReader reader(store);
  auto manifest = reader.ReadManifest(directory);
  if (!manifest.ok()) return manifest.status().ToString();
  // Only what compact wrote may stand beside what it replaces.
  if (again && manifest->replaces.empty()) return "is there twice";
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
    const bool ours = directory.starts_with("checkpoint_") || directory.starts_with("increment_");
    if (IsBucket(machine_->kind()) && ours &&
        store->Stat(names::Path(directory, names::kMarker)).ok()) {
      continue;
    }
    // A claim or a removal that ended between the directory and its marker. It could be somebody's.
    const auto inside = store->List(directory);
    if (!inside.ok()) return inside.status().ToString();
    if (inside->objects.empty() && inside->prefixes.empty()) continue;
    return "garbage was left: " + directory;
  }
  return "";
}

std::string Recovery::CheckNewSave(CheckpointManager* manager) {
  // An opening that returned has replaced older runs for good.
  Machine opened(machine_->Snapshot(), Ending::kForget, 0);
  Promise replaced;
  replaced.run = promise_.run + 1;
  if (std::string wrong = Recovery(&opened, job_, replaced, {}).CheckOlderRun(); !wrong.empty()) {
    return "after an opening and a power loss: " + wrong;
  }
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
  promise.run = promise_.run + 1;
  promise.begun[kNewSerial] = kNewStep;
  promise.acknowledged.assign(listed_.begin(), listed_.end());
  promise.acknowledged.push_back(kNewSerial);
  promise.required = listed_;
  promise.required.insert(kNewSerial);
  RecoveryOptions options = options_;
  options.mutation = nullptr;
  options.save_again = false;
  options.no_garbage = false;
  options.world_size = 1;
  const std::string wrong = Recovery(&again, job_, promise, options).Run();
  return wrong.empty() ? "" : "after the next save and a power loss: " + wrong;
}

std::string Recovery::Run() {
  const Mutation* mutation = options_.mutation;
  if (mutation != nullptr && mutation->ignore && !mutation->late() &&
      machine_->kind() == Machine::Kind::kDisk) {
    machine_->fs()->IgnoreSyncs(
        [mutation](const SimSync& sync) { return mutation->ignore(PointOf(sync)); });
  }
  for (int rank = 0; rank < options_.world_size; ++rank) {
    if (std::string wrong = CheckReader(rank); !wrong.empty()) return wrong;
  }
  if (std::string wrong = CheckOlderRun(); !wrong.empty()) return wrong;
  std::shared_ptr<Store> store;
  ManagerOptions options;
  options.run = promise_.run + 1;
  auto manager = Open(options, &store);
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
