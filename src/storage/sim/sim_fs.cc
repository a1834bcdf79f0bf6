#include "storage/sim/sim_fs.h"

#include <cstdint>
#include <deque>
#include <utility>

#include "base/status_macros.h"
#include "storage/memory/seeded_random.h"
#include "storage/sim/sim_disk.h"
#include "storage/sim/sim_errors.h"
#include "storage/sim/sim_image.h"

namespace cairn {

using sim_errors::Message;
using sim_errors::Refused;

/// A counted handle of an inode.
class SimFs::File final : public FsFile {
 public:
  File(std::shared_ptr<SimDisk> disk, std::uint64_t inode, std::string path, OpenMode mode)
      : disk_(std::move(disk)), inode_(inode), path_(std::move(path)), mode_(mode) {
    if (mode.direct) alignment_ = disk_->options().direct_alignment;
  }
  ~File() override { disk_->CloseHandle(inode_); }

  Result<std::size_t> ReadAt(std::uint64_t offset, std::span<std::byte> into) override {
    RETURN_IF_ERROR(CheckAligned("read", offset, into.data(), into.size()));
    return disk_->Read(inode_, offset, into);
  }

  Status WriteAt(std::uint64_t offset, std::span<const std::byte> bytes) override {
    const Result<std::uint64_t> write = Write(offset, bytes, /*in_flight=*/false);
    return write.status();
  }

  /// For the queue: as WriteAt, but the write counts as in flight until SimDisk::Completed.
  Result<std::uint64_t> Write(std::uint64_t offset, std::span<const std::byte> bytes,
                              bool in_flight) {
    RETURN_IF_ERROR(CheckWritable("write"));
    RETURN_IF_ERROR(CheckAligned("write", offset, bytes.data(), bytes.size()));
    disk_->Announce(
        {.kind = SimOp::Kind::kWrite, .path = path_, .offset = offset, .bytes = bytes.size()});
    return disk_->Write(inode_, path_, offset, bytes, in_flight);
  }

  Status Sync(std::string_view why) override {
    disk_->Announce({.kind = SimOp::Kind::kSync, .path = path_, .why = std::string(why)});
    return disk_->Sync(inode_, path_, why);
  }

  /// For the queue.
  SimDisk::AskedSync AskSync(std::string_view why) { return disk_->AskSync(inode_, path_, why); }

  Status Truncate(std::uint64_t bytes) override {
    RETURN_IF_ERROR(CheckWritable("truncate"));
    disk_->Announce({.kind = SimOp::Kind::kTruncate, .path = path_, .bytes = bytes});
    return disk_->Truncate(inode_, path_, bytes);
  }

  Status Allocate(std::uint64_t bytes) override {
    RETURN_IF_ERROR(CheckWritable("fallocate"));
    disk_->Announce({.kind = SimOp::Kind::kAllocate, .path = path_, .bytes = bytes});
    return disk_->Allocate(inode_, path_, bytes);
  }

  Result<FsStat> Stat() override { return disk_->StatHandle(inode_); }
  void StartWriteback(std::uint64_t, std::uint64_t) override {}
  void DropCache(std::uint64_t, std::uint64_t) override {}

  const std::shared_ptr<SimDisk>& disk() const { return disk_; }
  std::uint64_t inode() const { return inode_; }

 private:
  Status CheckWritable(std::string_view op) const {
    if (mode_.write) return Status::Ok();
    return InternalError(Message(op, path_, "Bad file descriptor (opened for reading)"));
  }

  Status CheckAligned(std::string_view op, std::uint64_t offset, const void* address,
                      std::size_t bytes) const {
    if (alignment_ == 0) return Status::Ok();
    const bool aligned = offset % alignment_ == 0 && bytes % alignment_ == 0 &&
                         reinterpret_cast<std::uintptr_t>(address) % alignment_ == 0;
    return aligned ? Status::Ok() : Refused(op, path_);
  }

  const std::shared_ptr<SimDisk> disk_;  // shared: a handle may outlive its SimFs
  const std::uint64_t inode_;
  const std::string path_;
  const OpenMode mode_;
  std::size_t alignment_ = 0;  // 0: any
};

/// Hands completions out in order, or in a seeded one. A write is on its way from its submission: a
/// crash may have it or not, and no sync covers it until its completion was handed out. A sync is
/// done when its completion is handed out, and not before: who does not wait for it has been
/// promised nothing. It covers what it would have covered when it was submitted.
class SimFs::Queue final : public IoQueue {
 public:
  Queue(std::shared_ptr<SimDisk> disk, int depth, std::optional<std::uint64_t> seed)
      : disk_(std::move(disk)), depth_(depth) {
    if (seed.has_value()) random_.emplace(*seed);
  }
  ~Queue() override {
    for (const Completion& completion : completions_) disk_->Completed(completion.write);
  }

  int depth() const override { return depth_; }
  int in_flight() const override { return static_cast<int>(completions_.size()); }

  Status SubmitRead(FsFile* file, std::uint64_t offset, std::span<std::byte> into,
                    std::uint64_t tag) override {
    ASSIGN_OR_RETURN(File * sim, Admit(file));
    Result<std::size_t> bytes = sim->ReadAt(offset, into);
    Add(tag, bytes.status(), bytes.ok() ? *bytes : 0);
    return Status::Ok();
  }

  Status SubmitWrite(FsFile* file, std::uint64_t offset, std::span<const std::byte> bytes,
                     std::uint64_t tag) override {
    ASSIGN_OR_RETURN(File * sim, Admit(file));
    Result<std::uint64_t> write = sim->Write(offset, bytes, /*in_flight=*/true);
    Add(tag, write.status(), write.ok() ? bytes.size() : 0, write.ok() ? *write : 0);
    return Status::Ok();
  }

  Status SubmitSync(FsFile* file, std::string_view why, std::uint64_t tag) override {
    ASSIGN_OR_RETURN(File * sim, Admit(file));
    completions_.push_back({.done = {.tag = tag}, .sync = sim->AskSync(why)});
    return Status::Ok();
  }

  Status SubmitSyncDirectory(const std::string& path, std::string_view why,
                             std::uint64_t tag) override {
    RETURN_IF_ERROR(CheckRoom());
    Result<SimDisk::AskedSync> asked = disk_->AskSyncDirectory(path, why);
    Completion completion{.done = {.tag = tag, .status = asked.status()}};
    if (asked.ok()) completion.sync = *std::move(asked);
    completions_.push_back(std::move(completion));
    return Status::Ok();
  }

  Result<Done> Wait() override {
    if (completions_.empty()) return InvalidArgumentError("nothing is in flight");
    const std::size_t index =
        random_.has_value() ? static_cast<std::size_t>(random_->Below(completions_.size())) : 0;
    Completion completion = std::move(completions_[index]);
    completions_.erase(completions_.begin() + static_cast<std::ptrdiff_t>(index));
    disk_->Completed(completion.write);
    if (completion.sync) {
      const bool file = completion.sync->kind == SimSync::Kind::kFile;
      disk_->Announce({.kind = file ? SimOp::Kind::kSync : SimOp::Kind::kSyncDirectory,
                       .path = completion.sync->path,
                       .why = completion.sync->why});
      disk_->Do(*completion.sync);
    }
    return std::move(completion.done);
  }

 private:
  struct Completion {
    Done done;
    std::uint64_t write = 0;  // the pending write, 0 for others
    std::optional<SimDisk::AskedSync> sync;
  };

  Status CheckRoom() const {
    if (in_flight() < depth_) return Status::Ok();
    return InvalidArgumentError("the queue is full: " + std::to_string(depth_) + " in flight");
  }

  Result<File*> Admit(FsFile* file) const {
    RETURN_IF_ERROR(CheckRoom());
    auto* sim = dynamic_cast<File*>(file);
    if (sim == nullptr || sim->disk() != disk_) {
      return InvalidArgumentError("the file belongs to another file system");
    }
    return sim;
  }

  void Add(std::uint64_t tag, Status status, std::size_t bytes, std::uint64_t write = 0) {
    completions_.push_back(
        {.done = {.tag = tag, .status = std::move(status), .bytes = bytes}, .write = write});
  }

  const std::shared_ptr<SimDisk> disk_;  // shared: a queue may outlive its SimFs
  const int depth_;
  std::optional<SeededRandom> random_;
  std::deque<Completion> completions_;
};

class SimFs::Lock final : public FsLock {
 public:
  Lock(std::shared_ptr<SimDisk> disk, std::uint64_t inode)
      : disk_(std::move(disk)), inode_(inode) {}
  ~Lock() override {
    disk_->ReleaseLock(inode_);
    disk_->CloseHandle(inode_);
  }

 private:
  const std::shared_ptr<SimDisk> disk_;  // shared: a lock may outlive its SimFs
  const std::uint64_t inode_;
};

namespace {

SimImage EmptyImage(SimFs::Options options) {
  SimImage image;
  image.options = std::move(options);
  auto root = std::make_shared<SimInode>();
  root->number = kSimRootInode;
  root->is_directory = true;
  root->links = 1;
  image.inodes.emplace(kSimRootInode, std::move(root));
  return image;
}

}  // namespace

SimFs::SimFs() : SimFs(Options()) {}
SimFs::SimFs(Options options) : SimFs(EmptyImage(std::move(options))) {}
SimFs::SimFs(SimImage image) : disk_(std::make_shared<SimDisk>(std::move(image))) {}
SimFs::~SimFs() = default;

void SimFs::SetHook(Hook hook) { disk_->SetHook(std::move(hook)); }
std::shared_ptr<const SimImage> SimFs::Snapshot() const { return disk_->Snapshot(); }
void SimFs::IgnoreSyncs(SyncPredicate predicate) { disk_->IgnoreSyncs(std::move(predicate)); }
std::vector<SimSync> SimFs::SyncLog() const { return disk_->SyncLog(); }
void SimFs::SetCapacity(std::uint64_t bytes) { disk_->SetCapacity(bytes); }

std::unique_ptr<SimFs> SimFs::FromCrash(const SimImage& image, CrashMode mode, std::uint64_t seed) {
  return std::unique_ptr<SimFs>(new SimFs(ImageAfterCrash(image, mode, seed)));
}

std::unique_ptr<SimFs> SimFs::FromKill(const SimImage& image) {
  return std::unique_ptr<SimFs>(new SimFs(SimImage(image)));
}

Status SimFs::DropUnsynced(FsFile* file) {
  auto* sim = dynamic_cast<File*>(file);
  if (sim == nullptr || sim->disk() != disk_) {
    return InvalidArgumentError("the file belongs to another file system");
  }
  return disk_->DropUnsynced(sim->inode());
}

Result<std::unique_ptr<FsFile>> SimFs::Open(const std::string& path, OpenMode mode) {
  if (mode.create) {
    disk_->Announce({.kind = SimOp::Kind::kCreate, .path = path});
  } else if (mode.truncate) {
    disk_->Announce({.kind = SimOp::Kind::kTruncate, .path = path});
  }
  ASSIGN_OR_RETURN(const std::uint64_t inode, disk_->Open(path, mode));
  return std::unique_ptr<FsFile>(std::make_unique<File>(disk_, inode, path, mode));
}

Result<std::unique_ptr<IoQueue>> SimFs::NewQueue(int depth) {
  if (depth < 1) return InvalidArgumentError("the depth of a queue is at least 1");
  return std::unique_ptr<IoQueue>(
      std::make_unique<Queue>(disk_, depth, disk_->options().queue_seed));
}

Status SimFs::MakeDirectory(const std::string& path) {
  disk_->Announce({.kind = SimOp::Kind::kMakeDirectory, .path = path});
  return disk_->MakeDirectory(path);
}

Status SimFs::RemoveDirectory(const std::string& path) {
  disk_->Announce({.kind = SimOp::Kind::kRemoveDirectory, .path = path});
  return disk_->RemoveDirectory(path);
}

Status SimFs::Unlink(const std::string& path) {
  disk_->Announce({.kind = SimOp::Kind::kUnlink, .path = path});
  return disk_->Unlink(path);
}

Status SimFs::Link(const std::string& from, const std::string& to) {
  disk_->Announce({.kind = SimOp::Kind::kLink, .path = from, .to = to});
  return disk_->Link(from, to);
}

Status SimFs::Rename(const std::string& from, const std::string& to) {
  disk_->Announce({.kind = SimOp::Kind::kRename, .path = from, .to = to});
  return disk_->Rename(from, to);
}

Result<FsStat> SimFs::Stat(const std::string& path) { return disk_->Stat(path); }

Result<std::vector<FsEntry>> SimFs::List(const std::string& path) { return disk_->List(path); }

Status SimFs::SyncDirectory(const std::string& path, std::string_view why) {
  disk_->Announce({.kind = SimOp::Kind::kSyncDirectory, .path = path, .why = std::string(why)});
  return disk_->SyncDirectory(path, why);
}

Result<std::uint64_t> SimFs::FreeBytes(const std::string& path) { return disk_->FreeBytes(path); }

Result<std::unique_ptr<FsLock>> SimFs::TryLock(const std::string& path) {
  if (!disk_->options().locks) {
    return UnimplementedError(Message("lock", path, "No locks available"));
  }
  disk_->Announce({.kind = SimOp::Kind::kCreate, .path = path});
  ASSIGN_OR_RETURN(const std::uint64_t inode, disk_->Open(path, {.write = true, .create = true}));
  const Status locked = disk_->TakeLock(inode, path);
  if (!locked.ok()) {
    disk_->CloseHandle(inode);
    return locked;
  }
  return std::unique_ptr<FsLock>(std::make_unique<Lock>(disk_, inode));
}

bool SimFs::IsUnused(const std::string& path) { return disk_->IsUnused(path); }
bool SimFs::IsNetwork(const std::string&) { return disk_->options().network; }

}  // namespace cairn
