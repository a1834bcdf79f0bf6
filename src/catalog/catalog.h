#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <cairn/status.h>

#include "base/clock.h"
#include "base/ids.h"
#include "catalog/accounts.h"
#include "catalog/experiments.h"
#include "catalog/logs.h"
#include "catalog/metrics.h"
#include "catalog/trials.h"
#include "catalog/webhooks.h"
#include "trial/event_log.h"

namespace cairn {

struct CatalogOptions {
  /// "sqlite:PATH" (the file is made when it is missing; its directory must exist) or
  /// "postgresql://user:password@host:port/database?…" (libpq's; the database must exist).
  std::string url;
  /// kOwner: the one master. Makes and migrates the tables, and fences whoever owned the catalog
  ///   before: that one's writes fail with Aborted from then on. While it lives (it holds a lock of
  ///   the database or of the file), Unavailable, naming it, unless `takeover`.
  /// kReader: tools. Reads and backs up beside a living owner; writes are refused
  ///   (FailedPrecondition). The tables must be there, of a version that this program knows.
  enum class Mode : std::uint8_t { kOwner, kReader } mode = Mode::kOwner;
  bool takeover = false;
  Clock* clock = Clock::System();  // borrowed
  IdSource* ids = IdSource::System();
  /// Connections that read beside each other.
  int readers = 4;
  /// How long a statement waits for a lock, and a connection for its server.
  std::chrono::milliseconds timeout = std::chrono::seconds(10);
  /// SQLite: the database grows to at most so many bytes; 0: as the disk lets it.
  std::uint64_t max_bytes = 0;

  Status Validate() const;
};

/// The master's record, in SQLite or PostgreSQL: the events of the trial engine and, written in the
/// same transactions, the tables that pages and lists are read from; logs; users; webhooks.
/// docs/format/catalog.md has the tables and says what is the truth.
///
/// What holds for both databases:
///  1. A call that changes something is durable when it returns OK, whole or not at all. After
///     Unavailable (the database was gone, or its answer) it may have happened: calls that are not
///     the same when repeated say how they are made so.
///  2. A database that went away is connected to again by the next call. ResourceExhausted: the
///     disk or the database is full; Corruption: its bytes are damaged; Aborted: another owner took
///     over, for ever.
///  3. What was written is seen by every later read of this process.
///
/// May be called from any thread. Reads run beside each other and beside writes; writes take turns.
class Catalog {
 public:
  using Options = CatalogOptions;

  static Result<std::unique_ptr<Catalog>> Open(Options options);
  ~Catalog();
  Catalog(const Catalog&) = delete;
  Catalog& operator=(const Catalog&) = delete;

  /// The engine's record (trial/event_log.h). Beyond that contract: Replay may be called at any
  /// time and from any thread, for example to follow events from a number on; it gives what was
  /// durable when it began. It holds one of the readers meanwhile: a visitor that reads the catalog
  /// may wait for ever when there is only one.
  EventLog& events() { return *events_; }
  CatalogExperiments& experiments() { return experiments_; }
  CatalogTrials& trials() { return trials_; }
  CatalogMetrics& metrics() { return metrics_; }
  CatalogLogs& logs() { return logs_; }
  CatalogAccounts& accounts() { return accounts_; }
  CatalogWebhooks& webhooks() { return webhooks_; }

  /// The number of the last event; 0: none.
  Result<std::uint64_t> LastEvent();

  /// Settings: small texts by name.
  Result<std::optional<std::string>> GetSetting(const std::string& name);
  Status SetSetting(const std::string& name, const std::string& value);
  Status DeleteSetting(const std::string& name);
  Result<std::map<std::string, std::string>> ListSettings(const std::string& prefix = "");

  /// OK when the database answers.
  Status Ping();
  /// For people: "SQLite 3.40.1, /var/…/cairn.db", "PostgreSQL 15.3, host/database".
  Result<std::string> Describe();

  /// SQLite: a copy as of now, made beside readers and the writer, in a file that appears whole
  /// (AlreadyExists when there is one). PostgreSQL: Unimplemented, naming pg_dump.
  Status Backup(const std::string& path);

 private:
  explicit Catalog(std::unique_ptr<CatalogDatabase> db);

  const std::unique_ptr<CatalogDatabase> db_;
  const std::unique_ptr<EventLog> events_;
  CatalogExperiments experiments_;
  CatalogTrials trials_;
  CatalogMetrics metrics_;
  CatalogLogs logs_;
  CatalogAccounts accounts_;
  CatalogWebhooks webhooks_;
};

}  // namespace cairn
