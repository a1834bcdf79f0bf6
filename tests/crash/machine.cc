#include "tests/crash/machine.h"

#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/status_macros.h"
#include "storage/local/local_store.h"
#include "storage/local/posix_fs.h"

namespace cairn::crash {
namespace {

constexpr std::string_view kParent = "/data";
constexpr std::size_t kSmallBlock = 4096;

}  // namespace

class RealDirectory {
 public:
  RealDirectory() {
    std::string pattern = std::filesystem::temp_directory_path() / "cairn-crash-XXXXXX";
    if (mkdtemp(pattern.data()) == nullptr) std::abort();
    path_ = pattern;
  }
  ~RealDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  RealDirectory(const RealDirectory&) = delete;
  RealDirectory& operator=(const RealDirectory&) = delete;

  std::shared_ptr<const RealDirectory> Copy() const {
    auto copy = std::make_shared<RealDirectory>();
    std::filesystem::copy(path_, copy->path_, std::filesystem::copy_options::recursive);
    return copy;
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string_view KindName(Machine::Kind kind) {
  switch (kind) {
    case Machine::Kind::kDisk:
      return "Disk";
    case Machine::Kind::kBucket:
      return "Bucket";
    case Machine::Kind::kShelves:
      return "Shelves";
    case Machine::Kind::kDirectory:
      return "Directory";
  }
  return "Unknown";
}

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
    faults_ = std::make_unique<FaultyFs>(fs_.get());
  } else if (kind == Kind::kDirectory) {
    directory_ = std::make_shared<RealDirectory>();
  } else {
    MemoryStoreOptions options{.object_store = true, .part_bytes = kSmallBlock};
    if (kind == Kind::kShelves) options.listing = {.many_directories = 1, .many_objects = 1};
    memory_ = MemoryStore::Open(options).value();
  }
}

Machine::Machine(const Image& image, Ending ending, std::uint64_t seed) {
  if (const auto* memory = std::get_if<std::shared_ptr<const MemoryImage>>(&image)) {
    memory_ = MemoryStore::FromSnapshot(**memory);
    return;
  }
  if (const auto* directory = std::get_if<std::shared_ptr<const RealDirectory>>(&image)) {
    directory_ = (*directory)->Copy();
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
  faults_ = std::make_unique<FaultyFs>(fs_.get());
}

Machine::~Machine() = default;

Machine::Kind Machine::kind() const {
  if (fs_ != nullptr) return Kind::kDisk;
  if (memory_ == nullptr) return Kind::kDirectory;
  return memory_->listing_costs().many_directories == 0 ? Kind::kBucket : Kind::kShelves;
}

std::string Machine::root() const {
  return directory_ != nullptr ? directory_->path() + "/run" : std::string(kRepositoryRoot);
}

Result<std::shared_ptr<Store>> Machine::NewStore(IdSource* ids) {
  if (fs_ != nullptr) {
    ASSIGN_OR_RETURN(std::unique_ptr<Store> store, OpenRepository(faults_.get(), ids));
    return std::shared_ptr<Store>(std::move(store));
  }
  if (directory_ != nullptr) {
    ASSIGN_OR_RETURN(std::unique_ptr<Store> store, OpenRepository(PosixFs(), ids, root()));
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
  if (directory_ != nullptr) return directory_->Copy();
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
