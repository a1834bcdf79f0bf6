#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include <cairn/status.h>

#include "base/thread_annotations.h"
#include "storage/store.h"

namespace cairn {

/// The bookkeeping of sessions that send parts to a server, several at a time and straight from the
/// caller's memory: which part is due, how much is borrowed, which tags can be given back, what is
/// closed and not yet stored, and the error that condemned the session. A backend says how a part
/// is sent and how an object is put together.
///
/// After an error nothing is in flight any more, every call returns that error, and the backend has
/// given up what is unfinished, as far as its server could be reached.
class PartedWriteSession : public WriteSession {
 public:
  std::size_t part_bytes() const final { return limits_.part_bytes; }
  /// Larger parts, and fewer of them in memory, when the object would have too many: as large as
  /// its size needs, as many as fit into 512 MiB, at least two.
  ObjectParts PartsOf(std::uint64_t bytes) const final;
  Result<std::uint32_t> Open(const std::string& name, const NewObject& object) final;
  Status Append(std::uint32_t object, std::span<const std::byte> part, bool padded,
                std::uint64_t tag) final;
  Status Close(std::uint32_t object) final;
  Result<std::uint64_t> WaitPart() final;
  Status Drain() final;
  Result<bool> ReadLeft(std::uint32_t object, std::span<std::byte> into) final;
  Result<bool> KeepLeft(std::uint32_t object, std::span<const std::byte> part) final;
  void LeaveUnfinished(bool leave) final;
  bool CountArrived(std::atomic<std::uint64_t>* bytes) final;

 protected:
  struct Limits {
    std::size_t part_bytes = 0;
    std::size_t parts = 0;  // of an object
    std::uint64_t largest_part_bytes = 0;
    int in_flight = 1;           // parts that are borrowed at a time
    const char* too_large = "";  // what to know when an object has more bytes than that
  };
  struct Object {
    std::string name;
    std::uint64_t bytes = 0;
    std::size_t part_bytes = 0;
    int in_flight = 1;
    std::uint64_t appended = 0;
    std::size_t parts = 0;
    std::size_t arrived = 0;
    bool closed = false;
    bool done = false;
  };
  struct Transfer {
    std::uint32_t object = 0;
    std::size_t part = 0;
    std::span<const std::byte> bytes;
    std::uint64_t tag = 0;
  };

  explicit PartedWriteSession(Limits limits) : limits_(limits) {}

  // What a backend does, on the caller's thread.

  /// Fails when the name is taken, before any byte is sent.
  virtual Status CheckFree(const std::string& name) EXCLUDES(mu_) = 0;
  /// Looks for what was left of an object that is to be resumed, for the call of Opened() that
  /// follows.
  virtual Status FindLeft(const Object& object) EXCLUDES(mu_) = 0;
  /// objects_.back() is new.
  virtual void Opened() REQUIRES(mu_) = 0;
  /// See ReadLeft and KeepLeft; `due` is the next part.
  virtual Result<bool> ReadLeftPart(const Transfer& due, std::span<std::byte> into)
      EXCLUDES(mu_) = 0;
  virtual Result<bool> HoldsLeftPart(const Transfer& due) EXCLUDES(mu_) = 0;
  /// Begins to send a part. PartArrived or Fail follows, on any thread.
  virtual Status Send(const Transfer& transfer) EXCLUDES(mu_) = 0;
  /// Begins to put the object together: it is closed, and all of its parts have arrived. ObjectDone
  /// or Fail follows, on any thread.
  virtual Status Finish(std::uint32_t id) EXCLUDES(mu_) = 0;
  /// Ends what is in flight and gives up what is unfinished. Called once or more; destructors of
  /// backends call it too.
  virtual void StopAll() EXCLUDES(mu_) = 0;

  // What a backend tells.

  /// The part's memory is given back. True: it was the last one of a closed object.
  bool PartArrived(const Transfer& transfer) REQUIRES(mu_);
  void ObjectDone(std::uint32_t id) REQUIRES(mu_);
  void Fail(Status status) REQUIRES(mu_);
  /// Whether StopAll leaves what is unfinished (LeaveUnfinished).
  bool LeavesUnfinished() const REQUIRES(mu_);

  Mutex mu_;
  CondVar changed_;
  Status condemned_ GUARDED_BY(mu_);
  std::vector<Object> objects_ GUARDED_BY(mu_);

 private:
  Status TryOpen(const std::string& name, const NewObject& object, std::uint32_t* id);
  Status TryAppend(const Transfer& transfer);
  Status TryClose(std::uint32_t id);
  Status CheckObject(std::uint32_t id) REQUIRES(mu_);
  /// The number of the object's next part, which has to have so many bytes.
  Result<std::size_t> NextPart(std::uint32_t id, std::size_t bytes) REQUIRES(mu_);
  Result<bool> TryReadLeft(std::uint32_t object, std::span<std::byte> into) EXCLUDES(mu_);
  Result<bool> TryKeepLeft(Transfer due) EXCLUDES(mu_);
  Status Condemn(Status status) EXCLUDES(mu_);

  const Limits limits_;
  bool leave_ GUARDED_BY(mu_) = false;
  std::atomic<std::uint64_t>* arrived_bytes_ GUARDED_BY(mu_) = nullptr;
  std::size_t unfinished_ GUARDED_BY(mu_) = 0;      // closed and not done
  int borrowed_ GUARDED_BY(mu_) = 0;                // parts
  std::deque<std::uint64_t> tags_ GUARDED_BY(mu_);  // to be given back by WaitPart
};

}  // namespace cairn
