#include "storage/local/posix_fs.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <limits>
#include <map>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "base/thread_annotations.h"
#include "storage/local/thread_queue.h"
#include "storage/local/uring_queue.h"

namespace cairn {
namespace {

constexpr std::size_t kDirectAlign = 4096;  // what the store aligns to; see Open
constexpr std::uint64_t kMaxOffset = std::numeric_limits<off_t>::max();
constexpr std::size_t kMaxTransfer = 1u << 30;  // the kernel moves at most 2 GiB - 4 KiB at once

// Calls again while a signal interrupts.
template <typename Call>
auto Uninterrupted(Call call) {
  decltype(call()) result;
  do {
    result = call();
  } while (result == -1 && errno == EINTR);
  return result;
}

Code CodeOf(int error) {
  switch (error) {
    case ENOENT:
      return Code::kNotFound;
    case EEXIST:
      return Code::kAlreadyExists;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:   // a limit on file sizes
    case EMFILE:  // of descriptors, or of memory: nothing is wrong with the file
    case ENFILE:
    case ENOMEM:
      return Code::kResourceExhausted;
    case EACCES:
    case EPERM:
    case EROFS:
      return Code::kPermissionDenied;
    case ENOTDIR:
    case EISDIR:
    case ELOOP:
    case ENAMETOOLONG:
    case EINVAL:
      return Code::kInvalidArgument;
    case ENOTEMPTY:
      return Code::kFailedPrecondition;
    case ETIMEDOUT:
    case ESTALE:
    case ECONNREFUSED:
    case ECONNRESET:
    case ECONNABORTED:
    case ENOTCONN:
    case ENETDOWN:
    case ENETUNREACH:
    case EHOSTDOWN:
    case EHOSTUNREACH:
    case ESHUTDOWN:
    case EREMOTEIO:
      return Code::kUnavailable;
    case ENOSYS:
    case EOPNOTSUPP:
      return Code::kUnimplemented;
    default:
      return Code::kInternal;
  }
}

/// Of limits, whose names do not tell how they are raised.
std::string_view RemedyOf(int error) {
  switch (error) {
    case EMFILE:
      return " in this process: raise its limit (ulimit -n)";
    case ENFILE:
      return ": raise the machine's limit (sysctl fs.file-max)";
    case EFBIG:
      return ": over this process's limit (ulimit -f), or the file system's";
    default:
      return "";
  }
}

FsStat ToFsStat(const struct stat& st) {
  return FsStat{.is_directory = S_ISDIR(st.st_mode),
                .bytes = static_cast<std::uint64_t>(st.st_size),
                .links = static_cast<std::uint64_t>(st.st_nlink),
                .inode = static_cast<std::uint64_t>(st.st_ino)};
}

Status CheckRange(std::uint64_t offset, std::uint64_t bytes, std::string_view operation,
                  std::string_view path) {
  if (offset > kMaxOffset || bytes > kMaxOffset - offset) {
    return ErrnoStatus(EINVAL, operation, path);
  }
  return Status::Ok();
}

/// Which files this process has locked. POSIX locks belong to the process: a second lock of the
/// same file would be granted, and closing *any* descriptor of the file drops the lock. So a locked
/// file is recognised by its inode before it is opened again, and a descriptor that was opened all
/// the same (the name was moved meanwhile) is kept open until the lock goes.
///
/// Entries carry the process id: a forked child inherits this table but not the locks.
class LockTable {
 public:
  static LockTable* Get() {
    static auto* table = new LockTable;  // never destroyed: locks may outlive static destructors
    return table;
  }

  Result<std::unique_ptr<FsLock>> TryLock(const std::string& path);

 private:
  using FileId = std::pair<dev_t, ino_t>;
  struct Entry {
    pid_t pid = 0;
    std::vector<int> fds;
  };
  class Held;

  bool HeldHere(FileId id) REQUIRES(mu_) {
    const auto it = held_.find(id);
    if (it == held_.end()) return false;
    if (it->second.pid == getpid()) return true;
    held_.erase(it);  // the parent's; its descriptors stay open here, which harms nobody
    return false;
  }
  Result<FileId> LockDescriptor(int fd, const std::string& path) REQUIRES(mu_);
  void Release(FileId id, pid_t pid);
  void Renew(FileId id, pid_t pid);

  Mutex mu_;
  std::map<FileId, Entry> held_ GUARDED_BY(mu_);
};

class LockTable::Held final : public FsLock {
 public:
  Held(FileId id, pid_t pid) : id_(id), pid_(pid) {}
  ~Held() override { LockTable::Get()->Release(id_, pid_); }
  void Renew() override { LockTable::Get()->Renew(id_, pid_); }

 private:
  const FileId id_;
  const pid_t pid_;
};

Status HeldByThisProcess(const std::string& path) {
  return UnavailableError(
      fmt::format("lock \"{}\": held by this process (pid {}) already", path, getpid()));
}

// Errors that say "locks do not work here" rather than "taken".
bool IsLockless(int error) {
  return error == ENOLCK || error == EOPNOTSUPP || error == ENOSYS || error == EINVAL;
}

struct flock WholeFile() {
  struct flock whole = {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  return whole;
}

Result<LockTable::FileId> LockTable::LockDescriptor(int fd, const std::string& path) {
  struct flock whole = WholeFile();
  if (Uninterrupted([&] { return fcntl(fd, F_SETLK, &whole); }) == -1) {
    const int error = errno;
    if (error == EACCES || error == EAGAIN) {
      struct flock holder = whole;
      const bool known = fcntl(fd, F_GETLK, &holder) == 0 && holder.l_type != F_UNLCK;
      // A holder on another machine of a network file system has no pid here.
      return UnavailableError(known && holder.l_pid > 0
                                  ? fmt::format("lock \"{}\": held by pid {}", path, holder.l_pid)
                                  : fmt::format("lock \"{}\": held by another process", path));
    }
    if (IsLockless(error)) {
      return UnimplementedError(fmt::format("lock \"{}\": the file system has no locks: {}", path,
                                            std::generic_category().message(error)));
    }
    return ErrnoStatus(error, "lock", path);
  }
  struct stat st;
  if (fstat(fd, &st) != 0) return ErrnoStatus(errno, "stat", path);
  return FileId(st.st_dev, st.st_ino);
}

Result<std::unique_ptr<FsLock>> LockTable::TryLock(const std::string& path) {
  MutexLock lock(&mu_);
  // Again when the name turned out to lead to another file than the one locked: whoever removed the
  // lock file would otherwise let two holders in.
  for (int attempt = 0; attempt < 16; ++attempt) {
    struct stat st;
    if (stat(path.c_str(), &st) == 0 && HeldHere({st.st_dev, st.st_ino})) {
      return HeldByThisProcess(path);
    }
    const int fd = Uninterrupted(
        [&] { return open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOCTTY, 0666); });
    if (fd == -1) return ErrnoStatus(errno, "open", path);
    if (fstat(fd, &st) != 0) {
      const int error = errno;
      close(fd);
      return ErrnoStatus(error, "stat", path);
    }
    const FileId opened(st.st_dev, st.st_ino);
    if (HeldHere(opened)) {
      held_[opened].fds.push_back(fd);
      return HeldByThisProcess(path);
    }
    Result<FileId> id = LockDescriptor(fd, path);
    if (!id.ok()) {
      close(fd);
      return id.status();
    }
    if (stat(path.c_str(), &st) == 0 && FileId(st.st_dev, st.st_ino) == *id) {
      held_[*id] = Entry{.pid = getpid(), .fds = {fd}};
      return std::unique_ptr<FsLock>(std::make_unique<Held>(*id, getpid()));
    }
    close(fd);
  }
  return UnavailableError(fmt::format("lock \"{}\": the file keeps being replaced", path));
}

void LockTable::Release(FileId id, pid_t pid) {
  // In a forked child the lock is the parent's and the child's descriptors are not worth closing.
  if (pid != getpid()) return;
  MutexLock lock(&mu_);
  const auto it = held_.find(id);
  if (it == held_.end() || it->second.pid != pid) return;
  for (const int fd : it->second.fds) close(fd);  // closing is what releases
  held_.erase(it);
}

void LockTable::Renew(FileId id, pid_t pid) {
  if (pid != getpid()) return;
  MutexLock lock(&mu_);
  const auto it = held_.find(id);
  if (it == held_.end() || it->second.pid != pid) return;
  struct flock whole = WholeFile();
  (void)fcntl(it->second.fds.front(), F_SETLK, &whole);  // what is held already is had again
}

/// The alignment that O_DIRECT asks of offsets, or 0 where the file cannot be used with buffers and
/// offsets of kDirectAlign.
std::size_t DirectOffsetAlign(int fd) {
#ifdef STATX_DIOALIGN
  struct statx stx = {};
  if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &stx) == 0 &&
      (stx.stx_mask & STATX_DIOALIGN) != 0) {
    if (stx.stx_dio_offset_align == 0 || stx.stx_dio_offset_align > kDirectAlign ||
        stx.stx_dio_mem_align > kDirectAlign) {
      return 0;
    }
    return stx.stx_dio_offset_align;
  }
#endif
  (void)fd;
  return 512;  // the kernel does not say: the smallest there is
}

const std::string& BootId() {
  static const std::string* id = [] {
    auto* read = new std::string;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> *read;
    return read;
  }();
  return *id;
}

class PosixMapping final : public FsMapping {
 public:
  PosixMapping(void* memory, std::size_t bytes) : memory_(memory), bytes_(bytes) {}
  ~PosixMapping() override { munmap(memory_, bytes_); }
  PosixMapping(const PosixMapping&) = delete;
  PosixMapping& operator=(const PosixMapping&) = delete;
  std::span<std::byte> bytes() const override { return {static_cast<std::byte*>(memory_), bytes_}; }

 private:
  void* const memory_;
  const std::size_t bytes_;
};

/// Where blocks that were reserved are those that memory is written to, so that a store to it never
/// meets a full disk: no copy on write, no compression.
bool WritesInPlace(const std::string& directory) {
  struct statfs st;
  if (Uninterrupted([&] { return statfs(directory.c_str(), &st); }) != 0) return false;
  constexpr std::uint32_t kExt4 = 0xef53;
  constexpr std::uint32_t kXfs = 0x58465342;
  const auto type = static_cast<std::uint32_t>(st.f_type);
  return type == kExt4 || type == kXfs;
}

/// Zeros of that size with blocks of their own.
Status Fresh(int fd, std::uint64_t bytes, const std::string& path) {
  const auto size = static_cast<off_t>(bytes);
  if (ftruncate(fd, 0) != 0) return ErrnoStatus(errno, "truncate", path);
  if (Uninterrupted([&] { return fallocate(fd, 0, 0, size); }) != 0) {
    const int error = errno;
    (void)!ftruncate(fd, 0);
    return ErrnoStatus(error, "allocate", path);
  }
  return Status::Ok();
}

/// The same for a file that was there. It may be a copy, with holes or with blocks that it shares.
Status OwnBlocks(int fd, std::uint64_t bytes, const std::string& path) {
  const auto size = static_cast<off_t>(bytes);
  int failed = Uninterrupted([&] { return fallocate(fd, FALLOC_FL_UNSHARE_RANGE, 0, size); });
  if (failed != 0 && (errno == EOPNOTSUPP || errno == EINVAL)) {  // a file system that shares none
    failed = Uninterrupted([&] { return fallocate(fd, 0, 0, size); });
  }
  return failed == 0 ? Status::Ok() : ErrnoStatus(errno, "allocate", path);
}

class PosixFsImpl final : public Fs {
 public:
  Result<std::unique_ptr<FsFile>> Open(const std::string& path, OpenMode mode) override {
    // A FIFO or device that stands where a file should would block open or swallow bytes.
    struct stat st;
    if (!mode.exclusive && stat(path.c_str(), &st) == 0) {
      if (S_ISDIR(st.st_mode)) return ErrnoStatus(EISDIR, "open", path);
      if (!S_ISREG(st.st_mode)) {
        return InvalidArgumentError(fmt::format("open \"{}\": Not a regular file", path));
      }
    }
    int flags = O_CLOEXEC | O_NOCTTY | (mode.write ? O_RDWR : O_RDONLY);
    if (mode.create) flags |= O_CREAT;
    if (mode.create && mode.exclusive) flags |= O_EXCL;
    if (mode.truncate) flags |= O_TRUNC;
    if (mode.direct) flags |= O_DIRECT;
    const int fd = Uninterrupted([&] { return open(path.c_str(), flags, 0666); });
    if (fd == -1) return ErrnoStatus(errno, "open", path);
    auto file = std::make_unique<PosixFile>(fd, path, mode.direct ? DirectOffsetAlign(fd) : 0);
    if (mode.direct && !file->EndsAt(1)) {
      return InvalidArgumentError(fmt::format(
          "open \"{}\": the file system refuses direct I/O of {} byte blocks", path, kDirectAlign));
    }
    return std::unique_ptr<FsFile>(std::move(file));
  }

  Result<std::unique_ptr<IoQueue>> NewQueue(int depth) override {
    if (UringWorks()) {
      auto queue = NewUringQueue(depth);
      if (queue.ok() || queue.status().Is(Code::kInvalidArgument)) return queue;
    }
    return NewThreadQueue(depth);
  }

  Status MakeDirectory(const std::string& path) override {
    if (mkdir(path.c_str(), 0777) == 0) return Status::Ok();
    return ErrnoStatus(errno, "mkdir", path);
  }

  Status RemoveDirectory(const std::string& path) override {
    if (rmdir(path.c_str()) == 0) return Status::Ok();
    const int error = errno;
    if (error == EEXIST || error == EBUSY) {  // EEXIST: some file systems' word for "not empty"
      return FailedPreconditionError(
          fmt::format("rmdir \"{}\": {}", path, std::generic_category().message(error)));
    }
    return ErrnoStatus(error, "rmdir", path);
  }

  Status Unlink(const std::string& path) override {
    if (unlink(path.c_str()) == 0) return Status::Ok();
    return ErrnoStatus(errno, "unlink", path);
  }

  Status Link(const std::string& from, const std::string& to) override {
    if (link(from.c_str(), to.c_str()) == 0) return Status::Ok();
    const int error = errno;
    Status status = ErrnoStatus(error, fmt::format("link \"{}\" to", from), to);
    if (error == EMLINK) return ResourceExhaustedError(std::string(status.message()));
    // EPERM: no hard links here, or the kernel protects a file that is somebody else's. Either way
    // this file cannot be linked, while writing into the directory may well be allowed.
    if (error == EPERM || error == EXDEV) return UnimplementedError(std::string(status.message()));
    return status;
  }

  Status Rename(const std::string& from, const std::string& to) override {
    if (rename(from.c_str(), to.c_str()) == 0) return Status::Ok();
    return ErrnoStatus(errno, fmt::format("rename \"{}\" to", from), to);
  }

  Result<FsStat> Stat(const std::string& path) override {
    struct stat st;
    if (stat(path.c_str(), &st) != 0) return ErrnoStatus(errno, "stat", path);
    return ToFsStat(st);
  }

  Result<std::vector<FsEntry>> List(const std::string& path) override {
    // Closed also when there is no memory for a name.
    const std::unique_ptr<DIR, void (*)(DIR*)> listed(opendir(path.c_str()),
                                                      [](DIR* open) { closedir(open); });
    if (listed == nullptr) return ErrnoStatus(errno, "list", path);
    DIR* const dir = listed.get();
    std::vector<FsEntry> entries;
    int error = 0;
    while (true) {
      errno = 0;
      const dirent* entry = readdir(dir);
      if (entry == nullptr) {
        error = errno;
        break;
      }
      const std::string_view name = entry->d_name;
      if (name == "." || name == "..") continue;
      FsEntry found{std::string(name), entry->d_type == DT_DIR, entry->d_type == DT_LNK};
      if (entry->d_type == DT_UNKNOWN || entry->d_type == DT_LNK) {
        struct stat st;
        const auto kind = [&](int flags) {
          return fstatat(dirfd(dir), entry->d_name, &st, flags) == 0 ? st.st_mode : 0;
        };
        found.is_directory = S_ISDIR(kind(0));
        if (entry->d_type == DT_UNKNOWN) found.is_link = S_ISLNK(kind(AT_SYMLINK_NOFOLLOW));
      }
      entries.push_back(std::move(found));
    }
    if (error != 0) return ErrnoStatus(error, "list", path);
    std::sort(entries.begin(), entries.end(),
              [](const FsEntry& a, const FsEntry& b) { return a.name < b.name; });
    return entries;
  }

  Status SyncDirectory(const std::string& path, std::string_view) override {
    ASSIGN_OR_RETURN(const std::unique_ptr<PosixFile> directory, OpenDirectory(path));
    const int failed = Uninterrupted([&] { return fsync(directory->fd()); });
    const int error = errno;
    // EINVAL: the file system (some network and FUSE ones) writes names through and has nothing to
    // sync.
    if (failed != 0 && error != EINVAL) return ErrnoStatus(error, "fsync directory", path);
    return Status::Ok();
  }

  Result<std::uint64_t> FreeBytes(const std::string& path) override {
    struct statvfs st;
    if (Uninterrupted([&] { return statvfs(path.c_str(), &st); }) != 0) {
      return ErrnoStatus(errno, "statvfs", path);
    }
    return static_cast<std::uint64_t>(st.f_bavail) * st.f_frsize;
  }

  Result<std::unique_ptr<FsLock>> TryLock(const std::string& path) override {
    return LockTable::Get()->TryLock(path);
  }

  bool IsUnused(const std::string& path) override {
    struct stat st;
    if (stat(path.c_str(), &st) != 0 || !S_ISREG(st.st_mode)) return false;
    const int fd = Uninterrupted([&] { return open(path.c_str(), O_RDONLY | O_CLOEXEC); });
    if (fd == -1) return false;
    // Whoever opens the file while the lease is held makes the kernel signal us. The default signal
    // would end the process; this one is ignored unless somebody handles it.
    const bool unused = fcntl(fd, F_SETSIG, SIGURG) == 0 && fcntl(fd, F_SETLEASE, F_WRLCK) == 0;
    if (unused) fcntl(fd, F_SETLEASE, F_UNLCK);
    close(fd);
    return unused;
  }

  Result<std::unique_ptr<FsMapping>> Map(const std::string& path, std::uint64_t bytes) override {
    RETURN_IF_ERROR(CheckRange(bytes, 0, "map", path));
    if (!WritesInPlace(path.substr(0, path.rfind('/') + 1) + ".")) {
      return UnimplementedError(fmt::format("map \"{}\": not on this file system", path));
    }
    ASSIGN_OR_RETURN(const auto opened, Open(path, {.write = true, .create = true}));
    const int fd = static_cast<PosixFile*>(opened.get())->fd();
    ASSIGN_OR_RETURN(const FsStat stat, opened->Stat());
    RETURN_IF_ERROR(stat.bytes == bytes ? OwnBlocks(fd, bytes, path) : Fresh(fd, bytes, path));
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) return ErrnoStatus(errno, "map", path);
    return std::unique_ptr<FsMapping>(std::make_unique<PosixMapping>(memory, bytes));
  }
  std::string_view Boot() override { return BootId(); }

  bool IsNetwork(const std::string& path) override {
    struct statfs st;
    if (Uninterrupted([&] { return statfs(path.c_str(), &st); }) != 0) return false;
    switch (static_cast<std::uint32_t>(st.f_type)) {
      case 0x6969:      // NFS
      case 0x517b:      // SMB
      case 0xff534d42:  // CIFS
      case 0xfe534d42:  // SMB2
      case 0x564c:      // NCP
      case 0x65735546:  // FUSE: sshfs, s3fs, GlusterFS and more
      case 0x00c36400:  // Ceph
      case 0x0bd00bd0:  // Lustre
      case 0x47504653:  // GPFS
      case 0x19830326:  // BeeGFS
      case 0x01021997:  // 9p
      case 0x5346414f:  // AFS
      case 0x6b414653:  // kAFS
      case 0x7461636f:  // OCFS2
      case 0x01161970:  // GFS2
      case 0xaad7aaea:  // PanFS
        return true;
      default:
        return false;
    }
  }
};

}  // namespace

Fs* PosixFs() {
  static auto* fs = new PosixFsImpl;  // never destroyed: files may outlive static destructors
  return fs;
}

Status ErrnoStatus(int error, std::string_view operation, std::string_view path) {
  return Status(CodeOf(error),
                fmt::format("{} \"{}\": {}{}", operation, path,
                            std::generic_category().message(error), RemedyOf(error)));
}

Result<std::unique_ptr<PosixFile>> OpenDirectory(const std::string& path) {
  const int fd =
      Uninterrupted([&] { return open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
  if (fd == -1) return ErrnoStatus(errno, "open directory", path);
  return std::make_unique<PosixFile>(fd, path, 0);
}

PosixFile::~PosixFile() { close(fd_); }

Result<std::size_t> PosixFile::ReadAt(std::uint64_t offset, std::span<std::byte> into) {
  RETURN_IF_ERROR(CheckRange(offset, into.size(), "read", path_));
  std::size_t done = 0;
  while (done < into.size()) {
    const std::size_t want = std::min(into.size() - done, kMaxTransfer);
    const ssize_t n = Uninterrupted(
        [&] { return pread(fd_, into.data() + done, want, static_cast<off_t>(offset + done)); });
    if (n == -1 && errno == EAGAIN) continue;
    if (n == -1) return ErrnoStatus(errno, "read", path_);
    if (n == 0) break;
    done += static_cast<std::size_t>(n);
    if (EndsAt(offset + done)) break;
  }
  return done;
}

Status PosixFile::WriteAt(std::uint64_t offset, std::span<const std::byte> bytes) {
  RETURN_IF_ERROR(CheckRange(offset, bytes.size(), "write", path_));
  std::size_t done = 0;
  while (done < bytes.size()) {
    const std::size_t want = std::min(bytes.size() - done, kMaxTransfer);
    const ssize_t n = Uninterrupted(
        [&] { return pwrite(fd_, bytes.data() + done, want, static_cast<off_t>(offset + done)); });
    if (n == -1 && errno == EAGAIN) continue;
    if (n == -1) return ErrnoStatus(errno, "write", path_);
    if (n == 0) {
      return InternalError(fmt::format("write \"{}\": the kernel took no bytes", path_));
    }
    done += static_cast<std::size_t>(n);
  }
  return Status::Ok();
}

Status PosixFile::Sync(std::string_view) {
  if (Uninterrupted([&] { return fdatasync(fd_); }) != 0) {
    return ErrnoStatus(errno, "fdatasync", path_);
  }
  return WritebackStatus();
}

Status PosixFile::Truncate(std::uint64_t bytes) {
  RETURN_IF_ERROR(CheckRange(bytes, 0, "truncate", path_));
  if (Uninterrupted([&] { return ftruncate(fd_, static_cast<off_t>(bytes)); }) != 0) {
    return ErrnoStatus(errno, "truncate", path_);
  }
  return Status::Ok();
}

Status PosixFile::Allocate(std::uint64_t bytes) {
  RETURN_IF_ERROR(CheckRange(bytes, 0, "allocate", path_));
  if (bytes == 0) return Status::Ok();
  if (Uninterrupted(
          [&] { return fallocate(fd_, FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes)); }) != 0) {
    return ErrnoStatus(errno, "allocate", path_);
  }
  return Status::Ok();
}

Result<FsStat> PosixFile::Stat() {
  struct stat st;
  if (fstat(fd_, &st) != 0) return ErrnoStatus(errno, "stat", path_);
  return ToFsStat(st);
}

void PosixFile::StartWriteback(std::uint64_t offset, std::uint64_t bytes) {
  if (bytes == 0 || !CheckRange(offset, bytes, "write back", path_).ok()) return;
  if (sync_file_range(fd_, static_cast<off_t>(offset), static_cast<off_t>(bytes),
                      SYNC_FILE_RANGE_WRITE) != 0 &&
      errno != EINTR && errno != ENOSYS && errno != ESPIPE && errno != EINVAL) {
    int none = 0;
    writeback_error_.compare_exchange_strong(none, errno);
  }
}

void PosixFile::DropCache(std::uint64_t offset, std::uint64_t bytes) {
  if (bytes == 0 || !CheckRange(offset, bytes, "drop cache", path_).ok()) return;
  if (sync_file_range(fd_, static_cast<off_t>(offset), static_cast<off_t>(bytes),
                      SYNC_FILE_RANGE_WAIT_BEFORE) != 0 &&
      errno != EINTR && errno != ENOSYS && errno != ESPIPE && errno != EINVAL) {
    int none = 0;
    writeback_error_.compare_exchange_strong(none, errno);
  }
  (void)posix_fadvise(fd_, static_cast<off_t>(offset), static_cast<off_t>(bytes),
                      POSIX_FADV_DONTNEED);
}

Status PosixFile::WritebackStatus() const {
  const int error = writeback_error_.load();
  return error == 0 ? Status::Ok() : ErrnoStatus(error, "write back", path_);
}

}  // namespace cairn
