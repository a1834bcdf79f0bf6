#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <cairn/status.h>

namespace cairn {

enum class Dialect : std::uint8_t { kSqlite, kPostgres };

/// Bytes of a BLOB or BYTEA column.
struct Blob {
  std::string bytes;
};

/// What goes into a statement or comes out of it; monostate is NULL.
using Cell = std::variant<std::monostate, std::int64_t, double, std::string, Blob>;

/// SQLite and PostgreSQL know signed numbers only.
inline Cell Number(std::uint64_t value) { return static_cast<std::int64_t>(value); }
inline Cell Flag(bool value) { return static_cast<std::int64_t>(value ? 1 : 0); }

/// A row of an answer. NULL reads as 0 or "".
class SqlRow {
 public:
  bool IsNull(std::size_t i) const { return std::holds_alternative<std::monostate>(cells_[i]); }
  std::int64_t Int(std::size_t i) const;
  std::uint64_t Uint(std::size_t i) const { return static_cast<std::uint64_t>(Int(i)); }
  bool Bool(std::size_t i) const { return Int(i) != 0; }
  double Double(std::size_t i) const;
  std::optional<double> OptionalDouble(std::size_t i) const;
  const std::string& Text(std::size_t i) const;
  const std::string& Bytes(std::size_t i) const;

 private:
  friend class Connection;
  std::vector<Cell> cells_;
};

struct ConnectionTarget {
  Dialect dialect = Dialect::kSqlite;
  std::string path;      // SQLite
  std::string conninfo;  // PostgreSQL: libpq's URL
  std::chrono::milliseconds timeout = std::chrono::seconds(10);
  std::uint64_t max_bytes = 0;  // SQLite; 0: no bound
  bool read_only = false;
};

/// One connection to a database: SOCI behind a narrow seam, so that its templates and its
/// exceptions stay in one file. Statements are written with `?`, in SQL that both databases know,
/// and stay prepared. For one thread at a time.
///
/// Statuses: AlreadyExists (a unique key), FailedPrecondition (another constraint),
/// ResourceExhausted (full), Unavailable (gone, busy; `lost()` says whether it can be used again),
/// Corruption (damaged), PermissionDenied, InvalidArgument (text that is not UTF-8 or holds a NUL),
/// Internal. Messages do not show what was bound.
class Connection {
 public:
  static Result<std::unique_ptr<Connection>> Open(const ConnectionTarget& target);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  Dialect dialect() const { return target_.dialect; }

  /// A statement without rows; `changed`, when given, is told how many it changed.
  Status Run(std::string_view sql, std::span<const Cell> values, std::int64_t* changed = nullptr);
  Status Run(std::string_view sql, std::initializer_list<Cell> values = {},
             std::int64_t* changed = nullptr) {
    return Run(sql, std::span<const Cell>(values.begin(), values.size()), changed);
  }
  /// A statement with rows. `columns` has a letter for each: i(nteger), d(ouble), t(ext), b(lob).
  /// The visitor must not use the connection; an error of it ends the query.
  using Visitor = std::function<Status(const SqlRow& row)>;
  Status Query(std::string_view sql, std::span<const Cell> values, std::string_view columns,
               const Visitor& visit);
  Status Query(std::string_view sql, std::initializer_list<Cell> values, std::string_view columns,
               const Visitor& visit) {
    return Query(sql, std::span<const Cell>(values.begin(), values.size()), columns, visit);
  }
  /// The first column of the first row, a number; empty: no row, or NULL.
  Result<std::optional<std::int64_t>> QueryInt(std::string_view sql,
                                               std::initializer_list<Cell> values = {});
  /// Statements that are not kept: DDL, BEGIN, PRAGMA. May hold several, separated by semicolons at
  /// the end of a line.
  Status Script(std::string_view sql);

  /// The connection is gone: nothing more can be done with it.
  bool lost() const { return lost_; }
  /// SQLite alone: copies the whole database into the file, as of one moment.
  Status CopyTo(const std::string& path);

 private:
  struct Impl;
  struct Prepared;
  explicit Connection(ConnectionTarget target);
  Status Connect();
  Status Guard(const std::function<Status()>& body);
  Result<Prepared*> Prepare(std::string_view sql, std::span<const Cell> values,
                            std::string_view columns);
  void Drop(Prepared* prepared);

  const ConnectionTarget target_;
  bool lost_ = false;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn
