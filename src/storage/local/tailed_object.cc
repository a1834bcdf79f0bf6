// How nothing is lost between the tail and its object:
//
// 1. `end` grows after the bytes before it were copied, `begin` after the bytes before it are in
// the
//    object; memory behind `begin` is used again only then. So whatever ends the process, the bytes
//    [begin, end) stand in the tail.
// 2. A tail is of one object. It is taken over by naming none first, then the place, then the
//    object, so that what it says is true at any moment. Recovered, it names none: the same name
//    may come again, and be another object's.
// 3. It counts for the same start of the machine alone: after another one the disk may have any
//    mixture of what once stood there. A head of the same start that makes no sense was damaged by
//    somebody else, and hides what was acknowledged: that is an error.
// 4. Direct writes come in whole blocks. The last one is filled up with zeros, and written again
//    when it has grown: `begin` stays at its beginning. What a reader finds behind the end is as
//    the torn tail of a crash.
#include "storage/local/tailed_object.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <new>
#include <utility>

#include "base/status_macros.h"
#include "base/thread_annotations.h"
#include "storage/local/aligned_buffer.h"

namespace cairn {
namespace {

constexpr std::uint64_t kBlock = AlignedBuffer::kAlignment;
constexpr std::uint64_t kRing = 32 << 20;
constexpr std::uint64_t kAtOnce = 4 << 20;    // to the disk
constexpr std::uint64_t kReserve = 16 << 20;  // blocks that the object gets at a time

std::uint64_t WholeBlocks(std::uint64_t bytes) { return bytes & ~(kBlock - 1); }

/// Whether it leads nowhere but to a file of the tail's own directory.
bool StandsBeside(std::string_view name) {
  return name != "." && name != ".." && name.find_first_of(std::string_view("/\0", 2)) == name.npos;
}

/// The first block of a tail.
struct Head {
  static constexpr char kMagic[8] = {'c', 'a', 'i', 'r', 'n', 't', 'a', 'l'};
  static constexpr std::uint32_t kVersion = 1;

  char magic[8];
  std::uint32_t version;
  std::atomic<std::uint32_t> name_bytes;  // 0: of no object
  std::atomic<std::uint64_t> begin;       // of the object: all before is in it
  std::atomic<std::uint64_t> end;         // of what was appended to it
  char boot[64];                          // filled up with zeros
  char name[256];                         // the object's, in this directory

  /// Whether there is something of this start of the machine.
  bool Counts(std::string_view now) const {
    return std::memcmp(magic, kMagic, sizeof magic) == 0 && name_bytes > 0 &&
           std::string_view(boot, strnlen(boot, sizeof boot)) == now;
  }
  /// Of one that counts and has this program's version.
  bool MakesSense() const {
    return name_bytes <= sizeof name && begin <= end && end - begin <= kRing &&
           StandsBeside({name, name_bytes});
  }
};
static_assert(sizeof(Head) <= kBlock && std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(sizeof(std::atomic<std::uint64_t>) == 8 && sizeof(std::atomic<std::uint32_t>) == 4);

/// A tail's file as memory: the head, then a ring in which byte n of the object stands at n modulo
/// its size.
class Tail final : public AppendTail {
 public:
  static Result<std::shared_ptr<Tail>> Open(Fs* fs, const std::string& path) {
    if (fs->Boot().empty() || fs->Boot().size() > sizeof(Head::boot)) {
      return UnimplementedError("the machine's start has no name, or too long a one");
    }
    ASSIGN_OR_RETURN(auto mapping, fs->Map(path, kBlock + kRing));
    ASSIGN_OR_RETURN(const FsStat stat, fs->Stat(path));
    return std::shared_ptr<Tail>(new Tail(std::move(mapping), stat.inode, fs->Boot()));
  }
  bool IsAt(Fs* fs, const std::string& path) const override {
    const auto stat = fs->Stat(path);
    return stat.ok() && stat->inode == inode_;
  }

  std::uint64_t begin() const { return head_->begin.load(std::memory_order_acquire); }
  std::uint64_t end() const { return head_->end.load(std::memory_order_acquire); }

  bool Belongs(const void* owner) const REQUIRES(in_use) { return owner_ == owner; }
  void Forget() REQUIRES(in_use) {
    owner_ = nullptr;
    head_->name_bytes.store(0, std::memory_order_release);
    // Nor may what follows come before it: what may come in between is the end of the process.
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
  /// For an object that ends there; `last`: its bytes from the beginning of the last block.
  void TakeOver(const void* owner, std::string_view name, std::uint64_t end,
                std::span<const std::byte> last) REQUIRES(in_use) {
    Forget();
    owner_ = owner;
    std::memcpy(head_->magic, Head::kMagic, sizeof head_->magic);
    head_->version = Head::kVersion;
    std::memset(head_->boot, 0, sizeof head_->boot);
    std::memcpy(head_->boot, boot_.data(), boot_.size());
    std::memcpy(head_->name, name.data(), name.size());
    if (!last.empty())
      std::memcpy(Run(end - last.size(), last.size()).data(), last.data(), last.size());
    head_->begin.store(end - last.size(), std::memory_order_relaxed);
    head_->end.store(end, std::memory_order_relaxed);
    head_->name_bytes.store(static_cast<std::uint32_t>(name.size()), std::memory_order_release);
  }

  std::uint64_t room() const { return kRing - (end() - begin()); }
  /// At most room().
  void Append(std::span<const std::byte> bytes) {
    std::uint64_t at = end();
    while (!bytes.empty()) {
      const std::span<std::byte> run = Run(at, bytes.size());
      std::memcpy(run.data(), bytes.data(), run.size());
      at += run.size();
      bytes = bytes.subspan(run.size());
    }
    head_->end.store(at, std::memory_order_release);
  }
  /// Bytes of the object from there on, as far as they stand side by side.
  std::span<std::byte> Run(std::uint64_t at, std::uint64_t bytes) const {
    const std::uint64_t place = at % kRing;
    return mapping_->bytes().subspan(kBlock + place, std::min(bytes, kRing - place));
  }
  void Written(std::uint64_t begin) { head_->begin.store(begin, std::memory_order_release); }

  /// For who writes what is here to its object, or takes it over. Appends of the owner need it not.
  Mutex in_use;

 private:
  Tail(std::unique_ptr<FsMapping> mapping, std::uint64_t inode, std::string_view boot)
      : mapping_(std::move(mapping)),
        inode_(inode),
        boot_(boot),
        head_(reinterpret_cast<Head*>(mapping_->bytes().data())) {}

  const std::unique_ptr<FsMapping> mapping_;
  const std::uint64_t inode_;
  const std::string boot_;
  Head* const head_;
  const void* owner_ GUARDED_BY(in_use) = nullptr;  // in this process
};

class TailedObject final : public AppendObject {
 public:
  TailedObject(std::unique_ptr<FsFile> file, std::shared_ptr<Tail> tail, std::string_view name,
               std::uint64_t end, std::span<const std::byte> last)
      : file_(std::move(file)), tail_(std::move(tail)), end_(end), written_(end), reserved_(end) {
    const MutexLock one(&tail_->in_use);
    tail_->TakeOver(this, name, end, last);
  }
  ~TailedObject() override {
    if (process_ != getpid()) return;  // a fork has the same tail, and is not its owner
    const MutexLock one(&tail_->in_use);
    // What the tail still has stays there, if the object cannot take it now.
    if (!Condemned().ok() || !WriteTo(end_).ok()) return;
    if (!file_->Truncate(end_).ok()) return;  // a filling, and blocks that were not needed
    if (tail_->Belongs(this)) tail_->Forget();
  }

  std::uint64_t bytes() const override { return end_; }

  Status Append(std::string_view bytes) override {
    RETURN_IF_ERROR(Condemned());
    auto rest = std::as_bytes(std::span(bytes.data(), bytes.size()));
    while (!rest.empty()) {
      // A sync comes long before, unless the disk is slower than what is appended.
      if (tail_->room() < std::min<std::uint64_t>(rest.size(), kRing / 2)) {
        const MutexLock one(&tail_->in_use);
        const Status written = WriteTo(WholeBlocks(end_));
        if (!written.ok()) return Condemn(written);
      }
      const auto now = rest.first(std::min<std::size_t>(rest.size(), tail_->room()));
      tail_->Append(now);
      end_ += now.size();
      rest = rest.subspan(now.size());
    }
    return Status::Ok();
  }

  Status Sync(std::string_view why) override {
    const MutexLock one(&tail_->in_use);
    RETURN_IF_ERROR(Condemned());
    Status synced = WriteTo(end_);
    if (synced.ok()) synced = file_->Sync(why);
    return synced.ok() ? synced : Condemn(synced);
  }

 private:
  /// The bytes before `end` are in the object, which may be longer by a filling.
  Status WriteTo(std::uint64_t end) REQUIRES(tail_->in_use) {
    if (end <= written_) return Status::Ok();
    if (!tail_->Belongs(this)) return FailedPreconditionError("another object has the tail");
    if (end > reserved_) {
      reserved_ = end + kReserve;
      file_->Allocate(reserved_).IgnoreError("it is only sooner, and many blocks at a time");
    }
    std::uint64_t at = tail_->begin();
    for (const std::uint64_t whole = WholeBlocks(end); at < whole;) {
      const auto run = tail_->Run(at, std::min(whole - at, kAtOnce));
      RETURN_IF_ERROR(file_->WriteAt(at, run));
      tail_->Written(at += run.size());
    }
    if (at < end) RETURN_IF_ERROR(WriteLast(at, end));
    written_ = end;
    return Status::Ok();
  }
  /// Of a block that is not whole yet.
  Status WriteLast(std::uint64_t at, std::uint64_t end) REQUIRES(tail_->in_use) {
    const std::span<std::byte> block = block_.span();
    if (block.empty()) return ResourceExhaustedError("no memory for a block");
    const auto last = tail_->Run(at, end - at);
    std::memcpy(block.data(), last.data(), last.size());
    std::memset(block.data() + last.size(), 0, block.size() - last.size());
    return file_->WriteAt(at, block);
  }
  Status Condemned() EXCLUDES(mu_) {
    const MutexLock lock(&mu_);
    return condemned_;
  }
  /// The first error stays.
  Status Condemn(const Status& why) EXCLUDES(mu_) {
    const MutexLock lock(&mu_);
    if (condemned_.ok()) condemned_ = why;
    return condemned_;
  }

  const pid_t process_ = getpid();
  const std::unique_ptr<FsFile> file_;
  const std::shared_ptr<Tail> tail_;  // shared: with the store, and with who takes it over
  std::atomic<std::uint64_t> end_;    // grows in Append alone
  std::uint64_t written_ GUARDED_BY(tail_->in_use);
  std::uint64_t reserved_ GUARDED_BY(tail_->in_use);  // up to here there are blocks
  AlignedBuffer block_ GUARDED_BY(tail_->in_use){kBlock};
  Mutex mu_;
  Status condemned_ GUARDED_BY(mu_);
};

/// Everything that the tail has stands in the object, which ends with it.
Status PutBack(FsFile* tail, const Head& head, FsFile* object, const std::string& path) {
  ASSIGN_OR_RETURN(const FsStat stat, object->Stat());
  if (stat.bytes < head.begin) {
    return CorruptionError(fmt::format("\"{}\" has {} bytes, and {} when its process ended", path,
                                       stat.bytes, head.begin.load()));
  }
  // Written blocks are whole, and end with the one that `end` is in.
  if (stat.bytes > WholeBlocks(head.end + kBlock - 1)) {
    return CorruptionError(fmt::format(
        "\"{}\" has {} bytes, and its tail knows of {}: the tail is older, of a disk that was put "
        "back perhaps; remove it to go on without",
        path, stat.bytes, head.end.load()));
  }
  const AlignedBuffer buffer(kAtOnce);
  for (std::uint64_t at = head.begin; at < head.end;) {
    const std::uint64_t place = at % kRing;
    const std::uint64_t bytes = std::min({head.end - at, kRing - place, kAtOnce});
    if (buffer.span().size() < bytes) return ResourceExhaustedError("no memory for a tail");
    const auto run = buffer.span().first(bytes);
    ASSIGN_OR_RETURN(const std::size_t read, tail->ReadAt(kBlock + place, run));
    if (read != bytes) return CorruptionError(path + ": its tail became shorter");
    RETURN_IF_ERROR(object->WriteAt(at, run));
    at += bytes;
  }
  return object->Truncate(head.end);
}

}  // namespace

Result<std::shared_ptr<AppendTail>> AppendTail::Open(Fs* fs, const std::string& path) {
  ASSIGN_OR_RETURN(auto tail, Tail::Open(fs, path));
  return std::shared_ptr<AppendTail>(std::move(tail));
}

Result<std::unique_ptr<AppendObject>> OpenTailedObject(Fs* fs, const std::string& path,
                                                       std::shared_ptr<AppendTail> tail) {
  ASSIGN_OR_RETURN(auto direct, fs->Open(path, {.write = true, .direct = true}));
  ASSIGN_OR_RETURN(const auto cached, fs->Open(path, {}));
  ASSIGN_OR_RETURN(const FsStat stat, cached->Stat());
  const std::string name = path.substr(path.rfind('/') + 1);
  if (name.size() > sizeof(Head::name)) return UnimplementedError("a name too long for a tail");
  std::array<std::byte, kBlock> last;
  const std::uint64_t whole = WholeBlocks(stat.bytes);
  const auto rest = std::span(last).first(stat.bytes - whole);
  ASSIGN_OR_RETURN(const std::size_t read, cached->ReadAt(whole, rest));
  if (read != rest.size()) return InternalError(fmt::format("{}: it became shorter", path));
  return std::unique_ptr<AppendObject>(std::make_unique<TailedObject>(
      std::move(direct), std::static_pointer_cast<Tail>(std::move(tail)), name, stat.bytes, rest));
}

Status RecoverTailedObject(Fs* fs, const std::string& tail_path) {
  // Read as any other file: it may have been moved to where it cannot be mapped.
  const auto tail = fs->Open(tail_path, {.write = true});
  if (tail.status().Is(Code::kNotFound)) return Status::Ok();
  RETURN_IF_ERROR(tail.status());
  alignas(Head) std::array<std::byte, sizeof(Head)> first{};
  RETURN_IF_ERROR((*tail)->ReadAt(0, first).status());
  const Head& head = *reinterpret_cast<const Head*>(first.data());
  if (!head.Counts(fs->Boot())) return Status::Ok();
  if (head.version != Head::kVersion) {
    return FailedPreconditionError(
        fmt::format("\"{}\": of version {}, and this program knows version {}", tail_path,
                    head.version, Head::kVersion));
  }
  ASSIGN_OR_RETURN(const FsStat tail_stat, (*tail)->Stat());
  if (!head.MakesSense() || tail_stat.bytes != kBlock + kRing) {
    return CorruptionError(fmt::format(
        "\"{}\" is damaged, and may alone have had the newest records: remove it to go on without",
        tail_path));
  }
  const std::string path =
      tail_path.substr(0, tail_path.rfind('/') + 1) + std::string(head.name, head.name_bytes);
  const auto file = fs->Open(path, {.write = true});
  if (file.ok()) {
    RETURN_IF_ERROR(PutBack(tail->get(), head, file->get(), path));
  } else if (!file.status().Is(Code::kNotFound)) {  // it was removed
    return file.status();
  }
  constexpr std::array<std::byte, sizeof head.name_bytes> kNone{};
  return (*tail)->WriteAt(offsetof(Head, name_bytes), kNone);
}

}  // namespace cairn
