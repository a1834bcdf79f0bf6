#include "storage/sim/faulty_fs.h"

#include <deque>
#include <utility>

#include "base/status_macros.h"
#include "base/thread_annotations.h"

namespace cairn {
namespace {

std::string_view Name(FsOpKind kind) {
  switch (kind) {
    case FsOpKind::kOpen:
      return "open";
    case FsOpKind::kCreate:
      return "create";
    case FsOpKind::kRead:
      return "read";
    case FsOpKind::kWrite:
      return "write";
    case FsOpKind::kSync:
      return "fdatasync";
    case FsOpKind::kTruncate:
      return "truncate";
    case FsOpKind::kAllocate:
      return "fallocate";
    case FsOpKind::kStat:
      return "stat";
    case FsOpKind::kMakeDirectory:
      return "mkdir";
    case FsOpKind::kRemoveDirectory:
      return "rmdir";
    case FsOpKind::kUnlink:
      return "unlink";
    case FsOpKind::kLink:
      return "link";
    case FsOpKind::kRename:
      return "rename";
    case FsOpKind::kList:
      return "list";
    case FsOpKind::kSyncDirectory:
      return "fsync";
    case FsOpKind::kFreeBytes:
      return "statvfs";
    case FsOpKind::kLock:
      return "lock";
  }
  return "unknown";
}

bool NeedsBlocks(FsOpKind kind) {
  switch (kind) {
    case FsOpKind::kCreate:
    case FsOpKind::kWrite:
    case FsOpKind::kSync:
    case FsOpKind::kTruncate:
    case FsOpKind::kAllocate:
    case FsOpKind::kMakeDirectory:
    case FsOpKind::kLink:
    case FsOpKind::kRename:
    case FsOpKind::kLock:
      return true;
    default:
      return false;
  }
}

bool CanHappen(FsFailure failure, FsOpKind kind) {
  switch (failure) {
    case FsFailure::kIoError:
    case FsFailure::kStatus:
      return true;
    case FsFailure::kNoSpace:
      return NeedsBlocks(kind);
    case FsFailure::kShortWrite:
      return kind == FsOpKind::kWrite;
    case FsFailure::kFailedSync:
      return kind == FsOpKind::kSync || kind == FsOpKind::kSyncDirectory;
  }
  return false;
}

}  // namespace

/// The plan, and what its hits mean. Shared by the file system, its files and its queues.
class FaultyFs::Faults {
 public:
  void Arm(FsFault fault) {
    {
      MutexLock lock(&mu_);
      fault_ = fault;
    }
    plan_.Arm(fault.trigger);
  }

  void OnFailedSync(std::function<void(FsFile*)> hook) {
    MutexLock lock(&mu_);
    on_failed_sync_ = std::move(hook);
  }

  FaultPlan<FsOpKind>& plan() { return plan_; }

  struct Verdict {
    Status status;            // OK: go on
    bool half_first = false;  // write half of the bytes before failing
  };

  Verdict Next(FsOpKind kind, std::string_view path) EXCLUDES(mu_) {
    if (!plan_.Next(kind)) return {};
    MutexLock lock(&mu_);
    if (!CanHappen(fault_.failure, kind)) return {};
    plan_.CountHit();
    std::string text(Name(kind));
    text.append(" ").append(path).append(": ");
    switch (fault_.failure) {
      case FsFailure::kIoError:
      case FsFailure::kFailedSync:
        return {.status = InternalError(text + "Input/output error (injected)")};
      case FsFailure::kNoSpace:
      case FsFailure::kShortWrite:
        return {.status = ResourceExhaustedError(text + "No space left on device (injected)"),
                .half_first = fault_.failure == FsFailure::kShortWrite};
      case FsFailure::kStatus:
        return {.status = fault_.status};
    }
    return {};
  }

  void SyncFailed(FsFile* inner) EXCLUDES(mu_) {
    std::function<void(FsFile*)> hook;
    {
      MutexLock lock(&mu_);
      hook = on_failed_sync_;
    }
    if (hook) hook(inner);
  }

 private:
  FaultPlan<FsOpKind> plan_;
  Mutex mu_;
  FsFault fault_ GUARDED_BY(mu_);
  std::function<void(FsFile*)> on_failed_sync_ GUARDED_BY(mu_);
};

class FaultyFs::File final : public FsFile {
 public:
  File(Faults* faults, std::string path, std::unique_ptr<FsFile> inner)
      : faults_(faults), path_(std::move(path)), inner_(std::move(inner)) {}

  Result<std::size_t> ReadAt(std::uint64_t offset, std::span<std::byte> into) override {
    RETURN_IF_ERROR(Next(FsOpKind::kRead));
    return inner_->ReadAt(offset, into);
  }

  Status WriteAt(std::uint64_t offset, std::span<const std::byte> bytes) override {
    RETURN_IF_ERROR(NextWrite(offset, bytes));
    return inner_->WriteAt(offset, bytes);
  }

  Status Sync(std::string_view why) override {
    RETURN_IF_ERROR(NextSync());
    return inner_->Sync(why);
  }

  Status Truncate(std::uint64_t bytes) override {
    RETURN_IF_ERROR(Next(FsOpKind::kTruncate));
    return inner_->Truncate(bytes);
  }

  Status Allocate(std::uint64_t bytes) override {
    RETURN_IF_ERROR(Next(FsOpKind::kAllocate));
    return inner_->Allocate(bytes);
  }

  Result<FsStat> Stat() override {
    RETURN_IF_ERROR(Next(FsOpKind::kStat));
    return inner_->Stat();
  }

  void StartWriteback(std::uint64_t offset, std::uint64_t bytes) override {
    inner_->StartWriteback(offset, bytes);
  }
  void DropCache(std::uint64_t offset, std::uint64_t bytes) override {
    inner_->DropCache(offset, bytes);
  }

  // For the queue, which counts at submission and fails in the completion.

  FsFile* inner() { return inner_.get(); }

  Status Next(FsOpKind kind) { return faults_->Next(kind, path_).status; }

  Status NextWrite(std::uint64_t offset, std::span<const std::byte> bytes) {
    const Faults::Verdict verdict = faults_->Next(FsOpKind::kWrite, path_);
    if (verdict.half_first) {
      // Whole blocks, so that a direct file takes them; all of a write of less.
      constexpr std::size_t kBlock = 4096;
      const std::size_t half = bytes.size() / 2;
      const std::size_t count = half >= kBlock ? half / kBlock * kBlock : half;
      inner_->WriteAt(offset, bytes.first(count)).IgnoreError("the write fails anyway");
    }
    return verdict.status;
  }

  Status NextSync() {
    Status status = Next(FsOpKind::kSync);
    if (!status.ok()) faults_->SyncFailed(inner_.get());
    return status;
  }

 private:
  Faults* const faults_;
  const std::string path_;
  const std::unique_ptr<FsFile> inner_;
};

/// Hands failures out before the completions of the inner queue.
class FaultyFs::Queue final : public IoQueue {
 public:
  Queue(Faults* faults, std::unique_ptr<IoQueue> inner)
      : faults_(faults), inner_(std::move(inner)) {}

  int depth() const override { return inner_->depth(); }
  int in_flight() const override { return inner_->in_flight() + static_cast<int>(failed_.size()); }

  Status SubmitRead(FsFile* file, std::uint64_t offset, std::span<std::byte> into,
                    std::uint64_t tag) override {
    ASSIGN_OR_RETURN(File * faulty, Admit(file));
    const Status fault = faulty->Next(FsOpKind::kRead);
    if (!fault.ok()) return Fail(fault, tag);
    return inner_->SubmitRead(faulty->inner(), offset, into, tag);
  }

  Status SubmitWrite(FsFile* file, std::uint64_t offset, std::span<const std::byte> bytes,
                     std::uint64_t tag) override {
    ASSIGN_OR_RETURN(File * faulty, Admit(file));
    const Status fault = faulty->NextWrite(offset, bytes);
    if (!fault.ok()) return Fail(fault, tag);
    return inner_->SubmitWrite(faulty->inner(), offset, bytes, tag);
  }

  Status SubmitSync(FsFile* file, std::string_view why, std::uint64_t tag) override {
    ASSIGN_OR_RETURN(File * faulty, Admit(file));
    const Status fault = faulty->NextSync();
    if (!fault.ok()) return Fail(fault, tag);
    return inner_->SubmitSync(faulty->inner(), why, tag);
  }

  Status SubmitSyncDirectory(const std::string& path, std::string_view why,
                             std::uint64_t tag) override {
    RETURN_IF_ERROR(CheckRoom());
    const Status fault = faults_->Next(FsOpKind::kSyncDirectory, path).status;
    if (!fault.ok()) return Fail(fault, tag);
    return inner_->SubmitSyncDirectory(path, why, tag);
  }

  Result<Done> Wait() override {
    if (failed_.empty()) return inner_->Wait();
    Done done = std::move(failed_.front());
    failed_.pop_front();
    return done;
  }

 private:
  Status CheckRoom() const {
    if (in_flight() < depth()) return Status::Ok();
    return InvalidArgumentError("the queue is full: " + std::to_string(depth()) + " in flight");
  }

  Result<File*> Admit(FsFile* file) const {
    RETURN_IF_ERROR(CheckRoom());
    auto* faulty = dynamic_cast<File*>(file);
    if (faulty == nullptr) return InvalidArgumentError("the file belongs to another file system");
    return faulty;
  }

  Status Fail(Status status, std::uint64_t tag) {
    failed_.push_back({.tag = tag, .status = std::move(status)});
    return Status::Ok();
  }

  Faults* const faults_;
  const std::unique_ptr<IoQueue> inner_;
  std::deque<Done> failed_;
};

FaultyFs::FaultyFs(Fs* inner) : inner_(inner), faults_(std::make_unique<Faults>()) {}
FaultyFs::~FaultyFs() = default;

void FaultyFs::Arm(FsFault fault) { faults_->Arm(std::move(fault)); }
void FaultyFs::Disarm() { faults_->plan().Disarm(); }
void FaultyFs::SetDelay(Clock* clock, FaultPlan<FsOpKind>::Delay delay) {
  faults_->plan().SetDelay(clock, std::move(delay));
}
void FaultyFs::OnFailedSync(std::function<void(FsFile*)> hook) {
  faults_->OnFailedSync(std::move(hook));
}
std::uint64_t FaultyFs::operations() const { return faults_->plan().operations(); }
std::uint64_t FaultyFs::operations(FsOpKind kind) const { return faults_->plan().operations(kind); }
std::uint64_t FaultyFs::failures() const { return faults_->plan().hits(); }

Result<std::unique_ptr<FsFile>> FaultyFs::Open(const std::string& path, OpenMode mode) {
  RETURN_IF_ERROR(faults_->Next(mode.create ? FsOpKind::kCreate : FsOpKind::kOpen, path).status);
  ASSIGN_OR_RETURN(auto file, inner_->Open(path, mode));
  return std::unique_ptr<FsFile>(std::make_unique<File>(faults_.get(), path, std::move(file)));
}

Result<std::unique_ptr<IoQueue>> FaultyFs::NewQueue(int depth) {
  ASSIGN_OR_RETURN(auto queue, inner_->NewQueue(depth));
  return std::unique_ptr<IoQueue>(std::make_unique<Queue>(faults_.get(), std::move(queue)));
}

Status FaultyFs::MakeDirectory(const std::string& path) {
  RETURN_IF_ERROR(faults_->Next(FsOpKind::kMakeDirectory, path).status);
  return inner_->MakeDirectory(path);
}

Status FaultyFs::RemoveDirectory(const std::string& path) {
  RETURN_IF_ERROR(faults_->Next(FsOpKind::kRemoveDirectory, path).status);
  return inner_->RemoveDirectory(path);
}

Status FaultyFs::Unlink(const std::string& path) {
  RETURN_IF_ERROR(faults_->Next(FsOpKind::kUnlink, path).status);
  return inner_->Unlink(path);
}

Status FaultyFs::Link(const std::string& from, const std::string& to) {
  RETURN_IF_ERROR(faults_->Next(FsOpKind::kLink, to).status);
  return inner_->Link(from, to);
}

Status FaultyFs::Rename(const std::string& from, const std::string& to) {
  RETURN_IF_ERROR(faults_->Next(FsOpKind::kRename, to).status);
  return inner_->Rename(from, to);
}

Result<FsStat> FaultyFs::Stat(const std::string& path) {
  RETURN_IF_ERROR(faults_->Next(FsOpKind::kStat, path).status);
  return inner_->Stat(path);
}

Result<std::vector<FsEntry>> FaultyFs::List(const std::string& path) {
  RETURN_IF_ERROR(faults_->Next(FsOpKind::kList, path).status);
  return inner_->List(path);
}

Status FaultyFs::SyncDirectory(const std::string& path, std::string_view why) {
  RETURN_IF_ERROR(faults_->Next(FsOpKind::kSyncDirectory, path).status);
  return inner_->SyncDirectory(path, why);
}

Result<std::uint64_t> FaultyFs::FreeBytes(const std::string& path) {
  RETURN_IF_ERROR(faults_->Next(FsOpKind::kFreeBytes, path).status);
  return inner_->FreeBytes(path);
}

Result<std::unique_ptr<FsLock>> FaultyFs::TryLock(const std::string& path) {
  RETURN_IF_ERROR(faults_->Next(FsOpKind::kLock, path).status);
  return inner_->TryLock(path);
}

bool FaultyFs::IsUnused(const std::string& path) { return inner_->IsUnused(path); }
bool FaultyFs::IsNetwork(const std::string& path) { return inner_->IsNetwork(path); }

Result<std::unique_ptr<FsMapping>> FaultyFs::Map(const std::string& path, std::uint64_t bytes) {
  return inner_->Map(path, bytes);
}
std::string_view FaultyFs::Boot() { return inner_->Boot(); }

}  // namespace cairn
