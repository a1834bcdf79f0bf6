#include "catalog/catalog.h"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <utility>

#include "base/status_macros.h"
#include "catalog/catalog_event_log.h"
#include "catalog/connection.h"
#include "catalog/database.h"
#include "format/json.h"
#include "storage/local/posix_fs.h"

namespace cairn {

Catalog::Catalog(std::unique_ptr<CatalogDatabase> db)
    : db_(std::move(db)),
      events_(std::make_unique<CatalogEventLog>(db_.get())),
      experiments_(db_.get()),
      trials_(db_.get()),
      metrics_(db_.get()),
      logs_(db_.get()),
      accounts_(db_.get()),
      webhooks_(db_.get()) {}

Catalog::~Catalog() = default;

Result<std::unique_ptr<Catalog>> Catalog::Open(Options options) {
  ASSIGN_OR_RETURN(auto db, CatalogDatabase::Open(std::move(options)));
  return std::unique_ptr<Catalog>(new Catalog(std::move(db)));
}

Result<std::uint64_t> Catalog::LastEvent() {
  return static_cast<CatalogEventLog*>(events_.get())->Last();
}

Result<std::optional<std::string>> Catalog::GetSetting(const std::string& name) {
  std::optional<std::string> value;
  RETURN_IF_ERROR(db_->Read([&](Connection& connection) {
    value.reset();
    return connection.Query("SELECT value FROM settings WHERE name = ?", {name}, "t",
                            [&](const SqlRow& row) {
                              value = row.Text(0);
                              return Status::Ok();
                            });
  }));
  return value;
}

Status Catalog::SetSetting(const std::string& name, const std::string& value) {
  return db_->Write([&](Connection& connection) {
    return connection.Run(
        "INSERT INTO settings (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = "
        "excluded.value",
        {name, value});
  });
}

Status Catalog::DeleteSetting(const std::string& name) {
  return db_->Write([&](Connection& connection) {
    return connection.Run("DELETE FROM settings WHERE name = ?", {name});
  });
}

Result<std::map<std::string, std::string>> Catalog::ListSettings(const std::string& prefix) {
  std::map<std::string, std::string> settings;
  RETURN_IF_ERROR(db_->Read([&](Connection& connection) {
    settings.clear();
    return connection.Query("SELECT name, value FROM settings", {}, "tt", [&](const SqlRow& row) {
      if (row.Text(0).starts_with(prefix)) settings[row.Text(0)] = row.Text(1);
      return Status::Ok();
    });
  }));
  return settings;
}

Status Catalog::Ping() {
  return db_->Read([](Connection& connection) -> Status {
    ASSIGN_OR_RETURN(const auto epoch, connection.QueryInt("SELECT epoch FROM owner WHERE id = 1"));
    return epoch ? Status::Ok() : CorruptionError("the table owner has no row");
  });
}

Result<std::string> Catalog::Describe() {
  std::string text;
  const bool sqlite = db_->dialect() == Dialect::kSqlite;
  RETURN_IF_ERROR(db_->Read([&](Connection& connection) {
    return connection.Query(
        sqlite ? "SELECT sqlite_version()"
               : "SELECT current_setting('server_version') || ', database ' || current_database()",
        {}, "t", [&](const SqlRow& row) {
          text = sqlite ? fmt::format("SQLite {}, {}", row.Text(0), db_->target().path)
                        : "PostgreSQL " + row.Text(0);
          return Status::Ok();
        });
  }));
  return text;
}

Status Catalog::Backup(const std::string& path) {
  if (db_->dialect() != Dialect::kSqlite) {
    return UnimplementedError(
        "the catalog is in PostgreSQL: back it up with pg_dump --format=custom, and restore it "
        "with pg_restore into an empty database");
  }
  if (std::filesystem::exists(path)) {
    return AlreadyExistsError(fmt::format("{} exists", QuoteForMessage(path)));
  }
  const std::string partial = path + ".partial";
  std::error_code ignored;
  std::filesystem::remove(partial, ignored);  // of a backup that was cut short
  const auto copied = db_->Read([&](Connection& connection) { return connection.CopyTo(partial); });
  if (!copied.ok()) {
    std::filesystem::remove(partial, ignored);
    return copied.WithContext(fmt::format("backup to {}", QuoteForMessage(path)));
  }
  // SQLite has synced the file; the name is made last, and only where none is.
  Fs* fs = PosixFs();
  RETURN_IF_ERROR(fs->Link(partial, path));
  RETURN_IF_ERROR(fs->Unlink(partial));
  const std::string parent = std::filesystem::absolute(path).parent_path().string();
  return fs->SyncDirectory(parent, "backup");
}

}  // namespace cairn
