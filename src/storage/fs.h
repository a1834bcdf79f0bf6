#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/status.h>

namespace cairn {

/// The seam between the local store and the kernel. Everything the local store does to a disk goes
/// through here, so that a simulated file system (sim_fs.h) can forget whatever was not synced and
/// a faulty one can fail any operation.
///
/// Durability as POSIX gives it, no more: bytes survive a crash after FsFile::Sync returned OK;
/// names (created, linked, renamed, removed) after SyncDirectory of their directory did. A failed
/// Sync condemns the file: its bytes may be lost although a second Sync succeeds.
///
/// Paths are absolute or relative to the process; the interface does not interpret them. Statuses:
/// ENOENT → NotFound, EEXIST → AlreadyExists, ENOSPC/EDQUOT/EMFILE/ENFILE/ENOMEM →
/// ResourceExhausted, EACCES/EPERM/EROFS → PermissionDenied, ENOTDIR/EISDIR/ELOOP/ENAMETOOLONG/
/// EINVAL → InvalidArgument, ETIMEDOUT/ESTALE/ECONNREFUSED… → Unavailable, EIO and the rest →
/// Internal: the disk does not give what is there. The message names operation, path and the
/// kernel's words.
///
/// `why` in the sync calls says in a few words what the sync is for ("data file", "record name").
/// The kernel never sees it: crash tests switch single reasons off and must notice.

struct FsStat {
  bool is_directory = false;
  std::uint64_t bytes = 0;
  std::uint64_t links = 1;
  std::uint64_t inode = 0;
};

struct FsEntry {
  std::string name;
  bool is_directory = false;  // also a link to one
  bool is_link = false;       // a symbolic one
};

struct OpenMode {
  bool write = false;
  bool create = false;
  bool exclusive = false;  // with create: AlreadyExists when the name is taken
  bool truncate = false;
  bool direct = false;  // O_DIRECT; InvalidArgument where the file system refuses it
};

/// An open file. Distinct ranges may be read and written by several threads; closing is by
/// destruction, which reports nothing: whoever needs the bytes calls Sync.
class FsFile {
 public:
  virtual ~FsFile() = default;
  /// Fills `into` from `offset`; fewer bytes only at the end of the file.
  virtual Result<std::size_t> ReadAt(std::uint64_t offset, std::span<std::byte> into) = 0;
  /// Writes all of `bytes`, or fails with an unknown part written.
  virtual Status WriteAt(std::uint64_t offset, std::span<const std::byte> bytes) = 0;
  virtual Status Sync(std::string_view why) = 0;  // fdatasync
  virtual Status Truncate(std::uint64_t bytes) = 0;
  /// Reserves blocks without changing the size. Unimplemented where it cannot be done.
  virtual Status Allocate(std::uint64_t bytes) = 0;
  virtual Result<FsStat> Stat() = 0;
  /// Starts writing dirty pages of the range to the disk; no promise, only less to do for Sync.
  virtual void StartWriteback(std::uint64_t offset, std::uint64_t bytes) = 0;
  /// Tells the kernel that the cached pages of the range are not needed.
  virtual void DropCache(std::uint64_t offset, std::uint64_t bytes) = 0;
};

/// Reads and writes in flight. For one thread at a time. Files and buffers are borrowed until their
/// completion was returned; the destructor waits for what is in flight.
class IoQueue {
 public:
  struct Done {
    std::uint64_t tag = 0;
    Status status;
    std::size_t bytes = 0;  // short reads at the end of a file; writes are all or an error
  };

  virtual ~IoQueue() = default;
  virtual int depth() const = 0;
  virtual int in_flight() const = 0;
  /// At most depth() may be in flight: a further submission is refused with InvalidArgument.
  virtual Status SubmitRead(FsFile* file, std::uint64_t offset, std::span<std::byte> into,
                            std::uint64_t tag) = 0;
  virtual Status SubmitWrite(FsFile* file, std::uint64_t offset, std::span<const std::byte> bytes,
                             std::uint64_t tag) = 0;
  /// fdatasync in the queue; covers only writes whose completion was returned before.
  virtual Status SubmitSync(FsFile* file, std::string_view why, std::uint64_t tag) = 0;
  /// Waits for one completion. InvalidArgument when nothing is in flight.
  virtual Result<Done> Wait() = 0;
  /// Fs::SyncDirectory in the queue. A directory that is not there is NotFound, from here or from
  /// Wait.
  virtual Status SubmitSyncDirectory(const std::string& path, std::string_view why,
                                     std::uint64_t tag) = 0;
};

/// Holds an advisory lock until destroyed.
class FsLock {
 public:
  virtual ~FsLock() = default;
  /// Takes it again, should this process have lost it: it does as soon as any of its code closes a
  /// descriptor of the lock file, be it that it made a copy of the directory. Nothing is done where
  /// another has it by now.
  virtual void Renew() {}
};

/// A file as memory: what stands in it outlives the process, whatever ends it, and is there for the
/// next one of the same start of the machine. What the disk has of it is the kernel's affair.
class FsMapping {
 public:
  virtual ~FsMapping() = default;
  virtual std::span<std::byte> bytes() const = 0;
};

/// May be used from several threads at once.
class Fs {
 public:
  virtual ~Fs() = default;

  virtual Result<std::unique_ptr<FsFile>> Open(const std::string& path, OpenMode mode) = 0;
  virtual Result<std::unique_ptr<IoQueue>> NewQueue(int depth) = 0;

  virtual Status MakeDirectory(const std::string& path) = 0;    // AlreadyExists when there
  virtual Status RemoveDirectory(const std::string& path) = 0;  // FailedPrecondition: not empty
  virtual Status Unlink(const std::string& path) = 0;
  /// Never replaces: AlreadyExists. ResourceExhausted at the link limit (EMLINK); Unimplemented
  /// where the file system has no hard links.
  virtual Status Link(const std::string& from, const std::string& to) = 0;
  virtual Status Rename(const std::string& from, const std::string& to) = 0;  // replaces files
  virtual Result<FsStat> Stat(const std::string& path) = 0;
  virtual Result<std::vector<FsEntry>> List(const std::string& path) = 0;  // sorted by name
  virtual Status SyncDirectory(const std::string& path, std::string_view why) = 0;

  virtual Result<std::uint64_t> FreeBytes(const std::string& path) = 0;
  /// Takes an exclusive lock on the file (created when missing) for this process, or Unavailable
  /// when another process, or another holder in this process, has it; Unimplemented where locks do
  /// not work. Released by the kernel when the process ends; not inherited by forked children.
  virtual Result<std::unique_ptr<FsLock>> TryLock(const std::string& path) = 0;
  /// True when nobody, in any process, has the file open (a write lease can be had).
  virtual bool IsUnused(const std::string& path) = 0;
  /// The file as memory of exactly so many bytes: made, of zeros, where it is not there or of
  /// another size. All of it has room on the disk, also when the file was there. Unimplemented
  /// where memory and file may part, or where such room cannot be reserved.
  virtual Result<std::unique_ptr<FsMapping>> Map(const std::string& path, std::uint64_t) {
    return UnimplementedError("map \"" + path + "\": this file system does not");
  }
  /// Differs after each start of the machine; empty where that cannot be told.
  virtual std::string_view Boot() { return {}; }
  /// A network file system, where names that were missing a moment ago may be cached as missing.
  virtual bool IsNetwork(const std::string& path) = 0;
};

}  // namespace cairn
