#include "storage/local/uring_queue.h"

#include <fmt/format.h>
#include <liburing.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "base/thread_annotations.h"
#include "storage/local/posix_fs.h"
#include "storage/local/thread_queue.h"

namespace cairn {
namespace {

constexpr std::size_t kMaxTransfer = 1u << 30;

Status RingStatus(int error, std::string_view operation) {
  return InternalError(
      fmt::format("io_uring {}: {}", operation, std::generic_category().message(error)));
}

/// See NewUringQueue. A slot holds one submission until its completion was returned; requests that
/// the kernel did in part are submitted again for the rest, in the same slot.
class UringQueue final : public IoQueue {
 public:
  explicit UringQueue(int depth) : slots_(static_cast<std::size_t>(depth)) {
    for (int i = depth - 1; i >= 0; --i) free_.push_back(static_cast<std::size_t>(i));
  }
  ~UringQueue() override;
  UringQueue(const UringQueue&) = delete;
  UringQueue& operator=(const UringQueue&) = delete;

  /// Returns 0 or the errno.
  int Init();

  int depth() const override { return static_cast<int>(slots_.size()); }
  int in_flight() const override { return static_cast<int>(slots_.size() - free_.size()); }
  Status SubmitRead(FsFile* file, std::uint64_t offset, std::span<std::byte> into,
                    std::uint64_t tag) override {
    return Start(file, {.kind = Kind::kRead,
                        .offset = offset,
                        .data = into.data(),
                        .bytes = into.size(),
                        .tag = tag});
  }
  Status SubmitWrite(FsFile* file, std::uint64_t offset, std::span<const std::byte> bytes,
                     std::uint64_t tag) override {
    // io_uring's C interface takes one pointer type; a write only reads through it.
    return Start(file, {.kind = Kind::kWrite,
                        .offset = offset,
                        .data = const_cast<std::byte*>(bytes.data()),
                        .bytes = bytes.size(),
                        .tag = tag});
  }
  Status SubmitSync(FsFile* file, std::string_view, std::uint64_t tag) override {
    return Start(file, {.kind = Kind::kSync, .tag = tag});
  }
  Status SubmitSyncDirectory(const std::string& path, std::string_view,
                             std::uint64_t tag) override {
    ASSIGN_OR_RETURN(std::unique_ptr<PosixFile> directory, OpenDirectory(path));
    PosixFile* const file = directory.get();
    return Start(file, {.kind = Kind::kSyncDirectory, .owned = std::move(directory), .tag = tag});
  }
  Result<Done> Wait() override;

 private:
  enum class Kind { kRead, kWrite, kSync, kSyncDirectory };
  struct Slot {
    Kind kind = Kind::kRead;
    PosixFile* file = nullptr;
    std::unique_ptr<PosixFile> owned;  // a directory, open for its sync alone
    std::uint64_t offset = 0;
    std::byte* data = nullptr;
    std::size_t bytes = 0;
    std::size_t done = 0;
    std::uint64_t tag = 0;
  };

  Status Start(FsFile* file, Slot slot);
  Status Submit(std::size_t index);
  /// The slot's outcome after a completion with `result`, or nothing when it was submitted again.
  std::optional<Done> Advance(std::size_t index, int result);
  /// Waits for one completion of the ring: its slot and result.
  Result<std::pair<std::size_t, int>> Reap();

  std::vector<Slot> slots_;
  std::vector<std::size_t> free_;
  Status broken_;  // a submission that the ring refused may still lie in it: nothing may follow
  io_uring ring_ = {};
  bool open_ = false;
};

/// Held while a ring's memory is mapped or unmapped. The kernel needs nothing of the kind; the
/// thread sanitizer does not see these system calls, and takes a ring at the address of another
/// thread's former one for shared with it.
Mutex& Mapping() {
  static Mutex mapping;
  return mapping;
}

int UringQueue::Init() {
  const MutexLock lock(&Mapping());
  const int result = io_uring_queue_init(static_cast<unsigned>(slots_.size()), &ring_, 0);
  open_ = result == 0;
  return -result;
}

UringQueue::~UringQueue() {
  if (!open_) return;
  while (in_flight() > 0) {
    if (!Wait().ok()) break;  // the ring is broken; closing it ends what it still holds
  }
  const MutexLock lock(&Mapping());
  io_uring_queue_exit(&ring_);
}

Status UringQueue::Start(FsFile* file, Slot slot) {
  slot.file = dynamic_cast<PosixFile*>(file);
  if (slot.file == nullptr) {
    return InvalidArgumentError("io_uring queue: the file belongs to another file system");
  }
  constexpr std::uint64_t kMaxOffset = std::numeric_limits<std::int64_t>::max();
  if (slot.offset > kMaxOffset || slot.bytes > kMaxOffset - slot.offset) {
    return InvalidArgumentError(
        fmt::format("I/O on \"{}\": offset {} is out of range", slot.file->path(), slot.offset));
  }
  if (free_.empty()) {
    return InvalidArgumentError(fmt::format("{} operations are in flight already", depth()));
  }
  const std::size_t index = free_.back();
  slots_[index] = std::move(slot);
  RETURN_IF_ERROR(Submit(index));
  free_.pop_back();
  return Status::Ok();
}

Status UringQueue::Submit(std::size_t index) {
  RETURN_IF_ERROR(broken_);
  const Slot& slot = slots_[index];
  // As many entries as slots, each slot submitted at most once: there is always one.
  io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
  if (sqe == nullptr) return InternalError("io_uring: the submission queue is full");
  const auto bytes = static_cast<unsigned>(std::min(slot.bytes - slot.done, kMaxTransfer));
  const std::uint64_t offset = slot.offset + slot.done;
  switch (slot.kind) {
    case Kind::kRead:
      io_uring_prep_read(sqe, slot.file->fd(), slot.data + slot.done, bytes, offset);
      break;
    case Kind::kWrite:
      io_uring_prep_write(sqe, slot.file->fd(), slot.data + slot.done, bytes, offset);
      break;
    case Kind::kSync:
      io_uring_prep_fsync(sqe, slot.file->fd(), IORING_FSYNC_DATASYNC);
      break;
    case Kind::kSyncDirectory:
      io_uring_prep_fsync(sqe, slot.file->fd(), 0);
      break;
  }
  io_uring_sqe_set_data64(sqe, index);
  while (true) {
    const int result = io_uring_submit(&ring_);
    if (result >= 0) return Status::Ok();
    if (result != -EINTR && result != -EAGAIN && result != -EBUSY) {
      broken_ = RingStatus(-result, "submit");
      return broken_;
    }
  }
}

Result<std::pair<std::size_t, int>> UringQueue::Reap() {
  io_uring_cqe* cqe = nullptr;
  int result;
  do {
    result = io_uring_wait_cqe(&ring_, &cqe);
  } while (result == -EINTR || result == -EAGAIN);
  if (result < 0) return RingStatus(-result, "wait");
  const auto index = static_cast<std::size_t>(io_uring_cqe_get_data64(cqe));
  const int outcome = cqe->res;
  io_uring_cqe_seen(&ring_, cqe);
  return std::pair(index, outcome);
}

std::optional<IoQueue::Done> UringQueue::Advance(std::size_t index, int result) {
  Slot& slot = slots_[index];
  const auto finish = [&](Status status) {
    return Done{.tag = slot.tag, .status = std::move(status), .bytes = slot.done};
  };
  const std::string_view operation = slot.kind == Kind::kRead            ? "read"
                                     : slot.kind == Kind::kWrite         ? "write"
                                     : slot.kind == Kind::kSyncDirectory ? "fsync directory"
                                                                         : "fdatasync";
  if (result == -EINTR || result == -EAGAIN) {
    Status again = Submit(index);
    if (again.ok()) return std::nullopt;
    return finish(std::move(again));
  }
  if (slot.kind == Kind::kSyncDirectory && (result >= 0 || result == -EINVAL)) {
    return finish(Status::Ok());  // EINVAL: see SyncDirectory
  }
  if (result < 0) return finish(ErrnoStatus(-result, operation, slot.file->path()));
  if (slot.kind == Kind::kSync) return finish(slot.file->WritebackStatus());
  slot.done += static_cast<std::size_t>(result);
  if (slot.done == slot.bytes) return finish(Status::Ok());
  if (slot.kind == Kind::kRead && (result == 0 || slot.file->EndsAt(slot.offset + slot.done))) {
    return finish(Status::Ok());
  }
  if (result == 0) {
    return finish(
        InternalError(fmt::format("write \"{}\": the kernel took no bytes", slot.file->path())));
  }
  Status rest = Submit(index);
  if (rest.ok()) return std::nullopt;
  return finish(std::move(rest));
}

Result<IoQueue::Done> UringQueue::Wait() {
  if (in_flight() == 0) return InvalidArgumentError("nothing is in flight");
  while (true) {
    ASSIGN_OR_RETURN(const auto completion, Reap());
    std::optional<Done> done = Advance(completion.first, completion.second);
    if (!done) continue;
    slots_[completion.first].owned.reset();
    free_.push_back(completion.first);
    return *std::move(done);
  }
}

bool ProbeUring() {
  const char* off = std::getenv("CAIRN_NO_IO_URING");
  if (off != nullptr && std::string_view(off) == "1") return false;
  io_uring_probe* probe = io_uring_get_probe();
  if (probe == nullptr) return false;
  const bool works = io_uring_opcode_supported(probe, IORING_OP_READ) != 0 &&
                     io_uring_opcode_supported(probe, IORING_OP_WRITE) != 0 &&
                     io_uring_opcode_supported(probe, IORING_OP_FSYNC) != 0;
  io_uring_free_probe(probe);
  return works;
}

}  // namespace

bool UringWorks() {
  static const bool works = ProbeUring();
  return works;
}

Result<std::unique_ptr<IoQueue>> NewUringQueue(int depth) {
  RETURN_IF_ERROR(CheckQueueDepth(depth));
  auto queue = std::make_unique<UringQueue>(depth);
  const int error = queue->Init();
  if (error == ENOSYS || error == EPERM || error == EACCES || error == EINVAL) {
    return UnimplementedError(fmt::format("io_uring: {}", std::generic_category().message(error)));
  }
  if (error != 0) {
    return ResourceExhaustedError(
        fmt::format("io_uring: {}", std::generic_category().message(error)));
  }
  return std::unique_ptr<IoQueue>(std::move(queue));
}

}  // namespace cairn
