#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <cairn/status.h>

#include "base/clock.h"
#include "base/thread_annotations.h"
#include "catalog/catalog.h"
#include "catalog/connection.h"
#include "storage/fs.h"

namespace cairn {

/// The connections of a catalog: one that writes and some that read, opened when they are needed
/// and again when the server went away. May be called from any thread.
///
/// Who owns the catalog is a row of the table `owner`: opening counts its epoch up, and every
/// transaction that writes looks whether the epoch is still ours, holding that row, so that it
/// commits before a new owner's first transaction or not at all. The lock (a file's or the
/// server's) only keeps people from starting a second master by mistake.
class CatalogDatabase {
 public:
  using Body = std::function<Status(Connection& connection)>;

  static Result<std::unique_ptr<CatalogDatabase>> Open(CatalogOptions options);
  ~CatalogDatabase();

  Dialect dialect() const { return target_.dialect; }
  Clock* clock() const { return options_.clock; }
  const ConnectionTarget& target() const { return target_; }

  /// A transaction. Rolled back when the body or the commit fails; after Unavailable it may have
  /// been committed. The body is called at most once.
  Status Write(const Body& body);
  /// Statements that read, each as of its own moment. Tried again on a new connection when the old
  /// one is gone: the body starts over.
  Status Read(const Body& body);
  /// The same, all as of one moment.
  Status ReadSnapshot(const Body& body);

 private:
  explicit CatalogDatabase(CatalogOptions options) : options_(std::move(options)) {}
  Status ParseUrl();
  Status OpenOwner();
  /// Corruption for a log without its database, before SQLite looks at it.
  Status CheckWhole() const;
  Status OpenReader();
  /// Takes the lock that says that an owner lives, or says who does.
  Status TakeLock(Connection* connection, bool may_fail);
  Status TakeOver(Connection* connection);
  Status ReadOn(bool snapshot, const Body& body);
  Result<std::unique_ptr<Connection>> Borrow();
  void GiveBack(std::unique_ptr<Connection> connection);

  const CatalogOptions options_;
  ConnectionTarget target_;
  std::unique_ptr<FsLock> file_lock_;
  std::int64_t epoch_ = 0;

  Mutex writer_mu_;
  std::unique_ptr<Connection> writer_ GUARDED_BY(writer_mu_);

  Mutex readers_mu_;
  CondVar reader_free_;
  std::vector<std::unique_ptr<Connection>> idle_ GUARDED_BY(readers_mu_);
  int borrowed_ GUARDED_BY(readers_mu_) = 0;
};

}  // namespace cairn
