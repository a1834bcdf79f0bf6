#include "catalog/database.h"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <utility>

#include "base/log.h"
#include "base/status_macros.h"
#include "catalog/migrations.h"
#include "format/json.h"
#include "storage/local/posix_fs.h"

namespace cairn {
namespace {

/// PostgreSQL's advisory lock of a living owner: one catalog in a database.
constexpr std::int64_t kOwnerLock = 0x636169726e6f776e;  // "cairnown"
constexpr int kLockPatience = 3000;                      // milliseconds

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "unknown";
}

std::string OwnerInWords(Connection* connection) {
  std::string words;
  connection
      ->Query("SELECT host, pid FROM owner WHERE id = 1", {}, "ti",
              [&](const SqlRow& row) {
                words = fmt::format(" (pid {} on {})", row.Int(1), row.Text(0));
                return Status::Ok();
              })
      .IgnoreError("for the message alone");
  return words;
}

}  // namespace

Status CatalogOptions::Validate() const {
  if (!url.starts_with("sqlite:") && !url.starts_with("postgresql://") &&
      !url.starts_with("postgres://")) {
    return InvalidArgumentError(
        "the catalog's URL is sqlite:PATH or postgresql://user@host:port/database");
  }
  if (url == "sqlite:") return InvalidArgumentError("sqlite: wants a path");
  if (clock == nullptr || ids == nullptr) return InvalidArgumentError("no clock or ids");
  if (readers < 1 || readers > 256) return InvalidArgumentError("readers: 1 to 256");
  if (timeout < std::chrono::milliseconds(1)) return InvalidArgumentError("timeout: at least 1 ms");
  return Status::Ok();
}

Status CatalogDatabase::ParseUrl() {
  RETURN_IF_ERROR(options_.Validate());
  target_.timeout = options_.timeout;
  target_.max_bytes = options_.max_bytes;
  if (options_.url.starts_with("sqlite:")) {
    target_.dialect = Dialect::kSqlite;
    target_.path = std::filesystem::absolute(options_.url.substr(7)).lexically_normal().string();
  } else {
    target_.dialect = Dialect::kPostgres;
    target_.conninfo = options_.url;
  }
  return Status::Ok();
}

Result<std::unique_ptr<CatalogDatabase>> CatalogDatabase::Open(CatalogOptions options) {
  const bool owner = options.mode == CatalogOptions::Mode::kOwner;
  std::unique_ptr<CatalogDatabase> database(new CatalogDatabase(std::move(options)));
  RETURN_IF_ERROR(database->ParseUrl());
  Status opened = database->CheckWhole();
  if (opened.ok()) opened = owner ? database->OpenOwner() : database->OpenReader();
  if (!opened.ok()) return opened.WithContext("catalog");
  return database;
}

CatalogDatabase::~CatalogDatabase() = default;

Status CatalogDatabase::CheckWhole() const {
  if (target_.dialect != Dialect::kSqlite) return Status::Ok();
  const auto bytes = [](const std::string& path) {
    std::error_code error;
    const std::uintmax_t size = std::filesystem::file_size(path, error);
    return error ? std::uintmax_t{0} : size;
  };
  // SQLite throws the log of a database away that is missing or empty, and takes it for a new one.
  const std::string log = target_.path + "-wal";
  if (bytes(target_.path) > 0 || bytes(log) == 0) return Status::Ok();
  return CorruptionError(fmt::format(
      "{} is missing or empty, and what was written to it last is in {}: put the file back, or a "
      "backup in place of both; to begin anew, move the second away (`cairn master reindex` then "
      "takes in what is in the storage)",
      QuoteForMessage(target_.path), QuoteForMessage(log)));
}

Status CatalogDatabase::OpenReader() {
  if (target_.dialect == Dialect::kSqlite && !std::filesystem::exists(target_.path)) {
    return NotFoundError(fmt::format("there is no database {}", QuoteForMessage(target_.path)));
  }
  return Read([&](Connection& connection) { return CheckSchema(&connection); });
}

Status CatalogDatabase::TakeLock(Connection* connection, bool may_fail) {
  if (target_.dialect == Dialect::kSqlite) {
    if (file_lock_ != nullptr) return Status::Ok();
    auto lock = PosixFs()->TryLock(target_.path + "-owner");
    if (lock.ok()) {
      file_lock_ = std::move(*lock);
      return Status::Ok();
    }
    if (may_fail || lock.status().Is(Code::kUnimplemented)) return Status::Ok();
    if (!lock.status().Is(Code::kUnavailable)) return lock.status();
  } else {
    if (may_fail) {
      return connection
          ->QueryInt("SELECT CASE WHEN pg_try_advisory_lock(?) THEN 1 ELSE 0 END",
                     {Cell(kOwnerLock)})
          .status();
    }
    // Not at once: the server may not have noticed yet that the last owner was killed.
    RETURN_IF_ERROR(connection->Script(fmt::format("SET lock_timeout = {}", kLockPatience)));
    const Status taken = connection->Script(fmt::format("SELECT pg_advisory_lock({})", kOwnerLock));
    RETURN_IF_ERROR(
        connection->Script(fmt::format("SET lock_timeout = {}", target_.timeout.count())));
    if (taken.ok() || connection->lost()) return taken;
  }
  return UnavailableError(
      fmt::format("another master{} works on it; stop that one first", OwnerInWords(connection)));
}

Status CatalogDatabase::TakeOver(Connection* connection) {
  RETURN_IF_ERROR(connection->Script(dialect() == Dialect::kSqlite ? "BEGIN IMMEDIATE" : "BEGIN"));
  const std::string returning =
      "UPDATE owner SET epoch = epoch + 1, uuid = ?, host = ?, pid = ?, since = ? WHERE id = 1 "
      "RETURNING epoch";
  const Status taken =
      connection->Query(returning,
                        {options_.ids->NewUuid(), HostName(), static_cast<std::int64_t>(getpid()),
                         options_.clock->WallNanos()},
                        "i", [&](const SqlRow& row) {
                          epoch_ = row.Int(0);
                          return Status::Ok();
                        });
  if (!taken.ok()) return taken;
  if (epoch_ == 0) return CorruptionError("the table owner has no row");
  return connection->Script("COMMIT");
}

Status CatalogDatabase::OpenOwner() {
  MutexLock hold(&writer_mu_);
  ASSIGN_OR_RETURN(writer_, Connection::Open(target_));
  RETURN_IF_ERROR(TakeLock(writer_.get(), options_.takeover));
  RETURN_IF_ERROR(Migrate(writer_.get(), options_.clock));
  return TakeOver(writer_.get());
}

Status CatalogDatabase::Write(const Body& body) {
  if (options_.mode != CatalogOptions::Mode::kOwner) {
    return FailedPreconditionError("catalog: it was opened for reading only");
  }
  MutexLock hold(&writer_mu_);
  Status status;
  for (int attempt = 0; attempt < 2; ++attempt) {
    if (writer_ == nullptr) {
      ASSIGN_OR_RETURN(auto fresh, Connection::Open(target_));
      RETURN_IF_ERROR(TakeLock(fresh.get(), /*may_fail=*/true));
      writer_ = std::move(fresh);
    }
    // SQLite's is prepared once; PostgreSQL prepares no words of transactions.
    status = dialect() == Dialect::kSqlite ? writer_->Run("BEGIN IMMEDIATE", {})
                                           : writer_->Script("BEGIN");
    if (status.ok() || !writer_->lost()) break;
    writer_.reset();  // it went away while nobody used it
  }
  if (!status.ok()) return status;
  Connection* const writer = writer_.get();
  const auto fenced = [&]() -> Status {
    ASSIGN_OR_RETURN(const auto epoch,
                     writer->QueryInt(dialect() == Dialect::kSqlite
                                          ? "SELECT epoch FROM owner WHERE id = 1"
                                          : "SELECT epoch FROM owner WHERE id = 1 FOR NO KEY "
                                            "UPDATE"));
    if (epoch == epoch_) return Status::Ok();
    return AbortedError(
        fmt::format("catalog: another master{} has taken over", OwnerInWords(writer)));
  };
  status = fenced();
  if (status.ok()) status = body(*writer);
  if (status.ok()) {
    status = dialect() == Dialect::kSqlite ? writer->Run("COMMIT", {}) : writer->Script("COMMIT");
    if (status.ok()) return status;
  }
  // A connection whose transaction cannot be ended is of no use: the next one is fresh.
  if (writer->lost() || !writer->Script("ROLLBACK").ok()) writer_.reset();
  return status;
}

Result<std::unique_ptr<Connection>> CatalogDatabase::Borrow() {
  {
    MutexLock hold(&readers_mu_);
    while (idle_.empty() && borrowed_ >= options_.readers) reader_free_.Wait(&readers_mu_);
    ++borrowed_;
    if (!idle_.empty()) {
      auto connection = std::move(idle_.back());
      idle_.pop_back();
      return connection;
    }
  }
  ConnectionTarget target = target_;
  target.read_only = true;
  auto opened = Connection::Open(target);
  if (!opened.ok()) GiveBack(nullptr);
  return opened;
}

void CatalogDatabase::GiveBack(std::unique_ptr<Connection> connection) {
  MutexLock hold(&readers_mu_);
  --borrowed_;
  if (connection != nullptr) idle_.push_back(std::move(connection));
  reader_free_.NotifyOne();
}

Status CatalogDatabase::Read(const Body& body) { return ReadOn(/*snapshot=*/false, body); }
Status CatalogDatabase::ReadSnapshot(const Body& body) { return ReadOn(/*snapshot=*/true, body); }

Status CatalogDatabase::ReadOn(bool snapshot, const Body& body) {
  const std::string begin =
      dialect() == Dialect::kSqlite ? "BEGIN" : "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
  // After a restart of the server every idle connection is dead: as many tries as there may be.
  for (int attempt = 0;; ++attempt) {
    ASSIGN_OR_RETURN(auto connection, Borrow());
    Status status = snapshot ? connection->Script(begin) : Status::Ok();
    const bool began = status.ok();
    if (began) status = body(*connection);
    if (snapshot && began && !connection->Script("COMMIT").ok()) {
      // Reading ends in one way or another; a connection that cannot say so is not used again.
      const bool lost = connection->lost();
      GiveBack(nullptr);
      if (!status.ok() && lost && attempt < options_.readers) continue;
      return status;
    }
    const bool lost = connection->lost();
    GiveBack(lost ? nullptr : std::move(connection));
    if (status.ok() || !lost || attempt >= options_.readers) return status;
  }
}

}  // namespace cairn
