#include "tests/crash/machine.h"

#include <cstdlib>
#include <utility>

#include "base/status_macros.h"
#include "storage/local/local_store.h"

namespace cairn::crash {
namespace {

constexpr std::string_view kParent = "/data";
constexpr std::size_t kSmallBlock = 4096;

}  // namespace

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

}  // namespace cairn::crash
