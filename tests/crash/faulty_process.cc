#include "tests/crash/faulty_process.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "base/status_macros.h"
#include "checkpoint/manager.h"
#include "storage/local/posix_fs.h"

namespace cairn::crash {
namespace {

std::vector<FaultKind> DiskFaults() {
  auto failing = [](std::string name, FsFailure failure, std::optional<FsOpKind> only = {}) {
    FaultKind kind;
    kind.name = std::move(name);
    kind.only = only;
    kind.on_disk = [failure](FaultTrigger<FsOpKind> trigger) {
      return FsFault{.failure = failure, .trigger = trigger, .status = Status()};
    };
    return kind;
  };
  return {
      failing("EIO", FsFailure::kIoError),
      failing("ENOSPC", FsFailure::kNoSpace),
      failing("short write", FsFailure::kShortWrite, FsOpKind::kWrite),
      failing("failed fsync", FsFailure::kFailedSync, FsOpKind::kSync),
      failing("failed fsync of a directory", FsFailure::kFailedSync, FsOpKind::kSyncDirectory),
  };
}

std::vector<FaultKind> BucketFaults() {
  auto failing = [](std::string name, Status status, StoreFault::When when) {
    FaultKind kind;
    kind.name = std::move(name);
    kind.in_bucket = [status, when](FaultTrigger<StoreOp::Kind> trigger) {
      return StoreFault{.status = status, .when = when, .trigger = trigger};
    };
    return kind;
  };
  return {
      failing("unreachable", UnavailableError("unreachable"), StoreFault::When::kBefore),
      failing("answer lost", UnavailableError("the answer was lost"), StoreFault::When::kAfter),
      failing("no space", ResourceExhaustedError("no space"), StoreFault::When::kBefore),
      failing("broken", InternalError("broken"), StoreFault::When::kAfter),
  };
}

}  // namespace

std::vector<FaultKind> Faults(Machine::Kind kind) {
  return IsBucket(kind) ? BucketFaults() : DiskFaults();
}

Process::Process(Machine* machine, IdSource* ids, Clock* clock)
    : machine_(machine), ids_(ids), clock_(clock) {
  switch (machine->kind()) {
    case Machine::Kind::kDisk:
      disk_ = std::make_unique<FaultyFs>(machine->fs());
      // After a failed fsync the kernel forgets the bytes.
      disk_->OnFailedSync([fs = machine->fs()](FsFile* file) {
        fs->DropUnsynced(file).IgnoreError("a file that is closed already");
      });
      break;
    case Machine::Kind::kDirectory:
      disk_ = std::make_unique<FaultyFs>(PosixFs());
      break;
    case Machine::Kind::kBucket:
    case Machine::Kind::kShelves:
      inner_ = machine->NewStore(ids).value();
      bucket_ = std::make_shared<FaultyStore>(inner_.get());
      break;
  }
}

Process::~Process() = default;

void Process::Arm(const FaultKind& kind, std::uint64_t at, bool from_then_on) {
  if (disk_ != nullptr) {
    disk_->Arm(kind.on_disk({.at = at, .kind = kind.only, .from_then_on = from_then_on}));
  } else {
    bucket_->Arm(kind.in_bucket({.at = at, .kind = {}, .from_then_on = from_then_on}));
  }
}

void Process::Disarm() {
  if (disk_ != nullptr) disk_->Disarm();
  if (bucket_ != nullptr) bucket_->Disarm();
}

std::uint64_t Process::failures() const {
  return disk_ != nullptr ? disk_->failures() : bucket_->failures();
}

bool Process::Reached(const FaultKind& kind, std::uint64_t at) const {
  if (bucket_ != nullptr) return bucket_->operations() > at;
  return (kind.only ? disk_->operations(*kind.only) : disk_->operations()) > at;
}

Status Process::Open(ManagerOptions options) {
  manager_.reset();
  Environment env;
  if (disk_ != nullptr) {
    ASSIGN_OR_RETURN(env.store, OpenRepository(disk_.get(), ids_, machine_->root()));
  } else {
    env.store = bucket_;
  }
  env.ids = ids_;
  env.clock = clock_;
  env.host = "machine";
  env.pid = 300 + options.rank;
  options.copy_threads = 1;
  ASSIGN_OR_RETURN(manager_, OpenManager(std::move(options), std::move(env), SmallLayout()));
  return Status::Ok();
}

void Watchdog::Watch(std::stop_token stop) {
  constexpr int kPatienceSeconds = 120;
  std::uint64_t last = 0;
  int idle = 0;
  while (!stop.stop_requested()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    MutexLock lock(&mu_);
    idle = count_ == last ? idle + 1 : 0;
    last = count_;
    if (idle < kPatienceSeconds * 10) continue;
    std::fprintf(stderr, "hangs: %s\n", what_.c_str());
    std::abort();
  }
}

}  // namespace cairn::crash
