#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <cairn/status.h>

namespace cairn {

class Store;

/// An object that grows at its end. One thread appends at a time; Sync comes from any, also beside
/// an append, and covers what was appended before it began.
///
/// After an error an unknown part of the bytes is there and the object is condemned: nothing more
/// may be appended to it, and what was not synced before may be lost although a later Sync says OK.
class AppendObject {
 public:
  virtual ~AppendObject() = default;
  virtual std::uint64_t bytes() const = 0;
  /// The bytes survive the death of the process.
  virtual Status Append(std::string_view bytes) = 0;
  /// All that was appended survives the death of the machine. Unimplemented where the store cannot
  /// promise that of what was appended: there, what must be durable is put.
  virtual Status Sync(std::string_view why) = 0;
};

/// An ability that only some stores have: object stores cannot append. Apart from Store, so that
/// the many that only put and get need not know of it.
class AppendingStore {
 public:
  virtual ~AppendingStore() = default;
  /// The object must exist (Store::Create made its name durable); one opener at a time.
  virtual Result<std::unique_ptr<AppendObject>> OpenAppend(const std::string& name) = 0;

  /// The same for what grows fast and is synced seldom: its newest bytes may stand in the object
  /// `tail` beside it (in the same directory) alone until the next Sync, and a reader does not see
  /// them. One that is open at a time has the tail; whoever opens the next takes it over, and the
  /// one before must have been synced or given up.
  virtual Result<std::unique_ptr<AppendObject>> OpenTailed(const std::string& name,
                                                           const std::string& /*tail*/) {
    return OpenAppend(name);
  }
  /// Puts what only a tail has, after the death of its process, into its object. Before that is
  /// read; any number of times; OK where there is no tail.
  virtual Status RecoverTail(const std::string& /*tail*/) { return Status::Ok(); }
};

/// The store's ability to append, or null.
AppendingStore* FindAppending(Store* store);

}  // namespace cairn
