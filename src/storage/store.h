#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/status.h>

namespace cairn {

/// What a store can do beyond the interface's promises.
struct StoreTraits {
  bool create_only = true;    // Create() admits one winner among concurrent callers
  bool hard_links = false;    // Link() works, MoveToPool() too
  bool locks = false;         // TryLock() works
  bool direct_io = false;     // bulk data bypasses the page cache
  bool directories = false;   // empty directories exist and are worth pruning
  bool resumes = false;       // NewObject::resume goes on with what a session left unfinished
  int parallel_requests = 1;  // calls worth making at once, from as many threads
};

struct ObjectInfo {
  std::string name;  // relative to the store's root, like every name here
  std::uint64_t bytes = 0;
};

struct Listing {
  std::vector<ObjectInfo> objects;    // sorted by name
  std::vector<std::string> prefixes;  // "sub-directories" one level down, without trailing slash
  /// Links that somebody put there and that lead nowhere, in a circle, or to where we may not look:
  /// what they stand for cannot be told. A name that is ours may be among them.
  std::vector<std::string> unreachable;
};

/// How the local store moves bulk data to the disk.
enum class WriteMode {
  kAuto,      // measured on the first large session, then remembered by the store
  kDirect,    // O_DIRECT where the file system allows it, buffered where not
  kBuffered,  // through the page cache, written back and dropped as it goes
};

/// What a crash of the machine may leave of a volatile object.
enum class AfterCrash {
  kWholeOrNothing,
  kAnything,  // also a name with torn bytes, or none
};

struct NewObject {
  std::uint64_t bytes = 0;  // the final size, known beforehand
  std::string reuse;        // an object of the pool to write over (it disappears), or empty
  /// Go on with what a session that ended left unfinished under this name, of the same number of
  /// bytes: what ListUnfinished names or, where unfinished objects are visible, the object itself,
  /// which nothing else may refer to. Nothing there: begin anew. Ignored without traits().resumes.
  bool resume = false;
};

/// An object without its name (WriteSession::Prepare). Destroyed before it was created it leaves
/// nothing behind. May outlive its session, but not the store.
class PreparedObject {
 public:
  virtual ~PreparedObject() = default;
  /// As Store::Create, once. FailedPrecondition unless the session was drained.
  virtual Status Create() = 0;
};

/// How a write session wants an object of some size.
struct ObjectParts {
  std::size_t part_bytes = 0;  // of every part but the last. A multiple of 4 KiB
  int buffers = 8;             // parts worth having in memory at once, filled or being sent
};

/// Writes bulk objects, with a bounded number of parts in flight. For one thread at a time.
///
/// An object's bytes are durable after Drain() returned OK; its *name* after Store::SyncNames.
/// Until then the object may or may not be visible; it is not visible half-written on object
/// stores, but is on local disks: nothing may refer to it before it is durable. After an error the
/// session is condemned: every further call returns that error, and the caller deletes the names.
class WriteSession {
 public:
  virtual ~WriteSession() = default;
  /// The size of parts, but for objects so large that there would be too many of them.
  virtual std::size_t part_bytes() const = 0;
  /// How an object of `bytes` is to be appended.
  virtual ObjectParts PartsOf(std::uint64_t /*bytes*/) const {
    return {.part_bytes = part_bytes()};
  }
  /// Replaces nothing: the name must be free.
  virtual Result<std::uint32_t> Open(const std::string& name, const NewObject& object) = 0;
  /// Hands over the next part of the object; may wait for a free slot. The bytes are borrowed until
  /// a later WaitPart() returned `tag`, or Drain() returned. Starting at a 4 KiB boundary with room
  /// up to the next multiple of 4 KiB behind them (`padded`: the store may write that room and cut
  /// it off again) they are written without a copy.
  virtual Status Append(std::uint32_t object, std::span<const std::byte> part, bool padded,
                        std::uint64_t tag) = 0;
  /// All of the object's parts were appended.
  virtual Status Close(std::uint32_t object) = 0;
  /// Waits for one appended part and returns its tag. InvalidArgument when none is outstanding.
  virtual Result<std::uint64_t> WaitPart() = 0;
  /// Makes all closed objects' bytes durable.
  virtual Status Drain() = 0;

  // Of an object opened with `resume`, before its next part is appended:

  /// Fills `into`, of that part's size, with what was left of it; whether that is good the caller
  /// finds out. False: nothing was left, or the store cannot read what is unfinished.
  virtual Result<bool> ReadLeft(std::uint32_t /*object*/, std::span<std::byte> /*into*/) {
    return false;
  }
  /// Takes over what was left of it in the place of Append, if that is `part`: what ReadLeft has
  /// just given, or by the checksum that the store has of it. Nothing is borrowed, no tag comes
  /// back. False: append it.
  virtual Result<bool> KeepLeft(std::uint32_t /*object*/, std::span<const std::byte> /*part*/) {
    return false;
  }
  /// True: what is unfinished at the session's end stays, for one that resumes it, unless an error
  /// other than Unavailable and DeadlineExceeded condemned the session. Otherwise it is given up,
  /// or the caller deletes it.
  virtual void LeaveUnfinished(bool /*leave*/) {}
  /// From now on adds to `bytes` what the store has of each part, when it has it, on any thread
  /// until the session's end. False: it does not, and the caller counts what it hands over.
  virtual bool CountArrived(std::atomic<std::uint64_t>* /*bytes*/) { return false; }

  // What Drain may wait for at once, instead of the caller for one after the other:

  /// Begins to make the names durable that are at or below `prefix` by now. A head start for
  /// Store::SyncNames, which is called after Drain all the same.
  virtual Status SyncNames(const std::string& /*prefix*/, std::string_view /*why*/) {
    return Status::Ok();
  }
  /// Begins to make the bytes of an object durable that is to be created after Drain. Null: the
  /// store gains nothing by it, and Store::Create is to be called then.
  virtual Result<std::unique_ptr<PreparedObject>> Prepare(const std::string& /*name*/,
                                                          std::string_view /*bytes*/) {
    return std::unique_ptr<PreparedObject>();
  }
};

/// An object opened for reading. It stays readable although its name is deleted meanwhile (local
/// disks), or fails with NotFound (object stores). May be used from several threads.
class ObjectReader {
 public:
  virtual ~ObjectReader() = default;
  virtual const std::string& name() const = 0;
  virtual std::uint64_t bytes() const = 0;
  /// Fills `into` exactly, or fails; past the end is Corruption ("short read").
  virtual Status Read(std::uint64_t offset, std::span<std::byte> into) = 0;
};

/// Ranged reads in flight, of one store's readers. For one thread at a time. Fast when offset,
/// length and address are multiples of 4 KiB (the last range of an object may be asked for with its
/// length rounded up). Readers and buffers are borrowed until their completion was returned; the
/// destructor waits for what is in flight.
class ReadQueue {
 public:
  struct Done {
    std::uint64_t tag = 0;
    Status status;
    std::size_t bytes = 0;  // shorter than asked for only at the end of the object
  };
  virtual ~ReadQueue() = default;
  virtual int depth() const = 0;
  virtual int in_flight() const = 0;
  virtual Status Submit(ObjectReader* reader, std::uint64_t offset, std::span<std::byte> into,
                        std::uint64_t tag) = 0;
  virtual Result<Done> Wait() = 0;
};

class StoreLock {
 public:
  virtual ~StoreLock() = default;
  virtual void Renew() {}  // FsLock::Renew
};

/// Named objects under one root: the storage backend of a repository. Names are relative paths with
/// '/' between components (ValidateObjectName). All methods may be called from several threads.
///
/// Statuses tell apart: NotFound (no such object), Unavailable (the store cannot be reached),
/// PermissionDenied, ResourceExhausted (no space), Corruption (short or damaged).
class Store {
 public:
  virtual ~Store() = default;

  /// For people: a path or URL.
  virtual std::string Describe() const = 0;
  virtual StoreTraits traits() const = 0;

  /// Stores the object whole, replacing one of that name; durable (bytes and name) on return. A
  /// crash leaves the old or the new bytes.
  virtual Status Put(const std::string& name, std::string_view bytes) = 0;
  /// As Put, but never replaces: of all callers at any time exactly one gets OK for a name, the
  /// others AlreadyExists. After any other error the object may or may not be there.
  virtual Status Create(const std::string& name, std::string_view bytes) = 0;
  /// As Create (one winner, never seen half-written), for what only the living read: a crash of the
  /// machine may forget it, or more, as `crash` allows. Stores that gain nothing by that make it
  /// durable.
  virtual Status CreateVolatile(const std::string& name, std::string_view bytes,
                                AfterCrash /*crash*/) {
    return Create(name, bytes);
  }
  /// The whole object; ResourceExhausted when it is larger than `limit`.
  virtual Result<std::string> Get(const std::string& name, std::uint64_t limit) = 0;
  virtual Result<ObjectInfo> Stat(const std::string& name) = 0;
  /// What stands directly under `prefix` ("" = the root). An empty or missing prefix lists nothing.
  /// Names whose component starts with ".cairn-tmp" are the store's own and are not listed.
  virtual Result<Listing> List(const std::string& prefix) = 0;
  /// Deletes the object; NotFound when it was not there. Durable after SyncNames.
  virtual Status Delete(const std::string& name) = 0;
  /// Removes empty directories at and below `prefix`; nothing on stores without directories.
  virtual Status PruneDirectories(const std::string& prefix) = 0;

  virtual Result<std::unique_ptr<WriteSession>> NewWriteSession(WriteMode mode) = 0;
  /// Makes durable every name that this Store object created, linked or removed at or below
  /// `prefix`, and the directories that lead to it. Nothing to do on object stores.
  virtual Status SyncNames(const std::string& prefix, std::string_view why) = 0;
  /// Makes durable every name that stands directly in `directory`, whoever made it: what another
  /// process has published is visible before it is durable. The directory's own name is not
  /// covered. NotFound when it is not there. Nothing to do on object stores.
  virtual Status SyncDirectory(const std::string& /*directory*/, std::string_view /*why*/) {
    return Status::Ok();
  }

  virtual Result<std::unique_ptr<ObjectReader>> OpenReader(const std::string& name) = 0;
  virtual Result<std::unique_ptr<ReadQueue>> NewReadQueue(int depth) = 0;

  /// A second name for the same bytes. AlreadyExists when `to` is taken; ResourceExhausted when the
  /// object has all the links it may have; Unimplemented without hard_links. Durable after
  /// SyncNames.
  virtual Status Link(const std::string& from, const std::string& to) = 0;
  /// How many names the object has (1 without hard_links).
  virtual Result<std::uint64_t> LinkCount(const std::string& name) = 0;
  /// Renames `name` to `pool_name` for a later NewObject::reuse, if it has no other name and nobody
  /// has it open; false (and nothing done) otherwise.
  virtual Result<bool> MoveToPool(const std::string& name, const std::string& pool_name) = 0;

  /// Names at or below `prefix` that write sessions of any process have begun, and neither finished
  /// nor given up: what a killed writer leaves, and what living ones are writing. Only on stores
  /// where such a thing is not an object and costs space.
  virtual Result<std::vector<std::string>> ListUnfinished(const std::string& /*prefix*/) {
    return std::vector<std::string>();
  }
  /// Gives up all that was begun under that name; a session that is still writing it fails. OK when
  /// there is nothing.
  virtual Status AbandonUnfinished(const std::string& /*name*/) { return Status::Ok(); }

  /// An exclusive lock for a living process, or Unavailable when it is held; Unimplemented without
  /// locks.
  virtual Result<std::unique_ptr<StoreLock>> TryLock(const std::string& name) = 0;
  /// Bytes that can still be written; nullopt where nobody knows.
  virtual Result<std::optional<std::uint64_t>> FreeBytes() = 0;
  /// Makes other machines' recent names under `prefix` visible (network file systems).
  virtual Status Refresh(const std::string& prefix) = 0;
};

/// OK for a name that every store can hold: relative, no empty, "." or ".." component, no NUL or
/// control characters, components of at most 255 bytes, at most 1,024 bytes in all, no component
/// that starts with ".cairn-tmp".
Status ValidateObjectName(std::string_view name);

}  // namespace cairn
