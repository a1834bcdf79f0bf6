#include "catalog/connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <utility>

// Debian's SOCI was configured with Boost for types that are not used here; without this its
// headers would want Boost's.
#include <soci/soci-config.h>
#undef SOCI_HAVE_BOOST
#undef SOCI_HAVE_BOOST_DATE_TIME
#include <soci/postgresql/soci-postgresql.h>
#include <soci/soci.h>
#include <soci/sqlite3/soci-sqlite3.h>

#include "base/log.h"
#include "base/status_macros.h"
#include "format/json.h"

namespace cairn {
namespace {

constexpr std::size_t kMaxPrepared = 256;

Status SqliteStatus(int code, std::string message) {
  switch (code & 0xff) {
    case SQLITE_FULL:
      return ResourceExhaustedError("the database is full: " + message);
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return CorruptionError("the database is damaged: " + message);
    case SQLITE_CONSTRAINT:
      // Extended codes are not on: SQLite's own words tell the kinds apart.
      return message.find("UNIQUE") != std::string::npos ? AlreadyExistsError(message)
                                                         : FailedPreconditionError(message);
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
    case SQLITE_IOERR:
    case SQLITE_CANTOPEN:
    case SQLITE_PROTOCOL:
      return UnavailableError(message);
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_AUTH:
      return PermissionDeniedError(message);
    case SQLITE_NOMEM:
      return ResourceExhaustedError(message);
    default:
      return InternalError(fmt::format("SQLite {}: {}", code, message));
  }
}

/// By the classes of PostgreSQL's table of error codes.
Status PostgresStatus(std::string_view state, std::string message) {
  const std::string_view kind = state.substr(0, 2);
  if (state == "23505") return AlreadyExistsError(message);
  if (kind == "23") return FailedPreconditionError(message);
  if (state == "53300" || kind == "08" || kind == "40" || kind == "58" || state == "55P03") {
    return UnavailableError(message);
  }
  if (kind == "57") {
    return state == "57014" ? DeadlineExceededError(message) : UnavailableError(message);
  }
  if (kind == "53") return ResourceExhaustedError("the database is full: " + message);
  if (kind == "XX") {
    return state == "XX000" ? InternalError(message)
                            : CorruptionError("the database is damaged: " + message);
  }
  if (kind == "28" || state == "42501") return PermissionDeniedError(message);
  if (kind == "22") return InvalidArgumentError(message);
  if (state == "3D000") return FailedPreconditionError(message);
  return InternalError(fmt::format("PostgreSQL {}: {}", state, message));
}

/// libpq's messages end with a newline and repeat themselves over several.
std::string OneLine(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  for (char& c : text) {
    if (c == '\n' || c == '\t') c = ' ';
  }
  return text;
}

constexpr char kDigits[] = "0123456789abcdef";

/// PostgreSQL's text form of bytes.
std::string Hex(std::string_view bytes) {
  std::string text = "\\x";
  text.reserve(2 + bytes.size() * 2);
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

int Digit(char c) { return c <= '9' ? c - '0' : (c | 32) - 'a' + 10; }

std::string Unhex(std::string_view text) {
  std::string bytes;
  if (!text.starts_with("\\x")) return bytes;
  bytes.reserve(text.size() / 2);
  for (std::size_t i = 2; i + 1 < text.size(); i += 2) {
    bytes += static_cast<char>(Digit(text[i]) << 4 | Digit(text[i + 1]));
  }
  return bytes;
}

char TypeOf(const Cell& cell) {
  if (std::holds_alternative<std::int64_t>(cell)) return 'i';
  if (std::holds_alternative<double>(cell)) return 'd';
  if (std::holds_alternative<Blob>(cell)) return 'b';
  return 't';  // also NULL, which fits every column
}

/// `?` → `:p1` …, as SOCI has it.
std::string Named(std::string_view sql) {
  std::string named;
  int count = 0;
  for (const char c : sql) {
    if (c == '?') {
      named += fmt::format(":p{}", ++count);
    } else {
      named += c;
    }
  }
  return named;
}

/// A place that SOCI reads from or writes to: its address must not change.
struct Slot {
  char type = 't';
  long long number = 0;  // NOLINT(google-runtime-int): SOCI's word
  double real = 0;
  std::string text;
  std::unique_ptr<soci::blob> blob;
  soci::indicator indicator = soci::i_ok;
};

}  // namespace

std::int64_t SqlRow::Int(std::size_t i) const {
  const auto* value = std::get_if<std::int64_t>(&cells_[i]);
  return value == nullptr ? 0 : *value;
}
double SqlRow::Double(std::size_t i) const { return OptionalDouble(i).value_or(0); }
std::optional<double> SqlRow::OptionalDouble(std::size_t i) const {
  const auto* value = std::get_if<double>(&cells_[i]);
  return value == nullptr ? std::nullopt : std::optional(*value);
}
const std::string& SqlRow::Text(std::size_t i) const {
  static const std::string kNone;
  const auto* value = std::get_if<std::string>(&cells_[i]);
  return value == nullptr ? kNone : *value;
}
const std::string& SqlRow::Bytes(std::size_t i) const {
  static const std::string kNone;
  const auto* value = std::get_if<Blob>(&cells_[i]);
  return value == nullptr ? kNone : value->bytes;
}

struct Connection::Prepared {
  explicit Prepared(soci::session& session) : statement(session) {}

  std::string key;
  std::deque<Slot> in;
  std::deque<Slot> out;
  soci::statement statement;  // after the slots: it goes before them
  bool busy = false;
};

struct Connection::Impl {
  soci::session session;
  std::map<std::string, std::unique_ptr<Prepared>, std::less<>> prepared;
};

Connection::Connection(ConnectionTarget target)
    : target_(std::move(target)), impl_(std::make_unique<Impl>()) {}

Connection::~Connection() {
  impl_->prepared.clear();
  try {
    impl_.reset();
  } catch (const std::exception&) {  // a connection that is gone cannot be closed in good order
  }
}

Status Connection::Guard(const std::function<Status()>& body) {
  try {
    return body();
  } catch (const soci::sqlite3_soci_error& error) {
    return SqliteStatus(error.result(), OneLine(error.get_error_message()));
  } catch (const soci::postgresql_soci_error& error) {
    const std::string state = error.sqlstate();
    auto* backend = static_cast<soci::postgresql_session_backend*>(impl_->session.get_backend());
    // An error without a code is the client library's own: the server did not live to send one.
    const bool gone = backend == nullptr || PQstatus(backend->conn_) != CONNECTION_OK ||
                      state.find_first_not_of(' ') == std::string::npos;
    std::string message = OneLine(error.get_error_message());
    if (gone || state.substr(0, 2) == "08") {
      lost_ = true;
      return UnavailableError(message);
    }
    return PostgresStatus(state, std::move(message));
  } catch (const soci::soci_error& error) {
    std::string message = OneLine(error.get_error_message());
    if (target_.dialect == Dialect::kPostgres) {
      auto* backend = static_cast<soci::postgresql_session_backend*>(impl_->session.get_backend());
      if (backend != nullptr && PQstatus(backend->conn_) != CONNECTION_OK) {
        lost_ = true;
        return UnavailableError(message);
      }
    }
    return InternalError(message);
  } catch (const std::exception& error) {
    lost_ = true;
    return InternalError(error.what());
  }
}

Result<std::unique_ptr<Connection>> Connection::Open(const ConnectionTarget& target) {
  std::unique_ptr<Connection> connection(new Connection(target));
  const Status connected = connection->Connect();
  if (!connected.ok()) {
    return connected.WithContext(target.dialect == Dialect::kSqlite
                                     ? fmt::format("database {}", QuoteForMessage(target.path))
                                     : "PostgreSQL");
  }
  return connection;
}

Status Connection::Connect() {
  if (target_.dialect == Dialect::kSqlite) {
    RETURN_IF_ERROR(Guard([&] {
      if (target_.path.find('"') != std::string::npos) {
        return InvalidArgumentError("the path must not hold a quotation mark");
      }
      impl_->session.open(soci::sqlite3, fmt::format("db=\"{}\"", target_.path));
      return Status::Ok();
    }));
    // WAL with synchronous=FULL syncs the log at each commit: what was acknowledged stays.
    RETURN_IF_ERROR(
        Script(fmt::format("PRAGMA busy_timeout={};\n"
                           "PRAGMA journal_mode=WAL;\n"
                           "PRAGMA synchronous=FULL;\n"
                           "PRAGMA foreign_keys=ON;\n"
                           "PRAGMA temp_store=MEMORY;\n"
                           "PRAGMA cache_size=-16000;\n"
                           "PRAGMA wal_autocheckpoint=4000;\n"
                           "PRAGMA journal_size_limit=67108864;",
                           target_.timeout.count())));
    if (target_.max_bytes != 0) {
      ASSIGN_OR_RETURN(const auto page, QueryInt("PRAGMA page_size"));
      RETURN_IF_ERROR(
          Script(fmt::format("PRAGMA max_page_count={};",
                             target_.max_bytes / static_cast<std::uint64_t>(page.value_or(4096)))));
    }
    return target_.read_only ? Script("PRAGMA query_only=ON;") : Status::Ok();
  }
  const auto seconds = std::max<std::int64_t>(
      2, std::chrono::duration_cast<std::chrono::seconds>(target_.timeout).count());
  const char joint = target_.conninfo.find('?') == std::string::npos ? '?' : '&';
  // A server that is cut off must be noticed: without these a commit would wait for it for hours.
  const std::string conninfo = fmt::format(
      "{}{}connect_timeout={}&tcp_user_timeout={}&keepalives_idle=10&keepalives_interval=5&"
      "keepalives_count=3&application_name=cairn&client_encoding=UTF8",
      target_.conninfo, joint, seconds, target_.timeout.count());
  try {
    impl_->session.open(soci::postgresql, conninfo);
  } catch (const std::exception& error) {
    lost_ = true;
    const auto* known = dynamic_cast<const soci::soci_error*>(&error);
    std::string message = OneLine(known != nullptr ? known->get_error_message() : error.what());
    const auto says = [&](std::string_view words) {
      return message.find(words) != std::string::npos;
    };
    if (says("does not exist")) return FailedPreconditionError(message);
    if (says("authentication failed") || says("no pg_hba.conf entry")) {
      return PermissionDeniedError(message);
    }
    if (says("invalid URI") || says("invalid connection option")) {
      return InvalidArgumentError(message);
    }
    return UnavailableError(message);
  }
  auto* backend = static_cast<soci::postgresql_session_backend*>(impl_->session.get_backend());
  PQsetNoticeProcessor(
      backend->conn_, [](void*, const char* notice) { LogDebug(OneLine(notice)); }, nullptr);
  return Script(fmt::format(
      "SET synchronous_commit = on;\n"
      "SET lock_timeout = {0};\n"
      "SET standard_conforming_strings = on;\n"
      "SET bytea_output = 'hex';\n"
      "SET extra_float_digits = 3;\n"
      "SET client_min_messages = warning;\n"
      "{1}",
      target_.timeout.count(), target_.read_only ? "SET default_transaction_read_only = on;" : ""));
}

Status Connection::Script(std::string_view sql) {
  return Guard([&] {
    std::size_t at = 0;
    while (at < sql.size()) {
      std::size_t end = sql.find(";\n", at);
      if (end == std::string_view::npos) end = sql.size();
      std::string statement(sql.substr(at, end - at));
      while (!statement.empty() && (statement.back() == ';' || statement.back() == '\n')) {
        statement.pop_back();
      }
      if (statement.find_first_not_of(" \n") != std::string::npos) {
        impl_->session.once << statement;
      }
      at = end + 2;
    }
    return Status::Ok();
  });
}

Result<Connection::Prepared*> Connection::Prepare(std::string_view sql,
                                                  std::span<const Cell> values,
                                                  std::string_view columns) {
  std::string key(sql);
  key += '\0';
  for (const Cell& cell : values) key += TypeOf(cell);
  key += '\0';
  key += columns;
  const bool sqlite = target_.dialect == Dialect::kSqlite;
  Prepared* prepared = nullptr;
  if (const auto found = impl_->prepared.find(key); found != impl_->prepared.end()) {
    prepared = found->second.get();
    if (prepared->busy) return InternalError("a statement is used while it is read");
  } else {
    if (impl_->prepared.size() >= kMaxPrepared) impl_->prepared.clear();
    auto fresh = std::make_unique<Prepared>(impl_->session);
    fresh->key = key;
    fresh->statement.alloc();
    fresh->statement.prepare(Named(sql));
    for (const Cell& cell : values) {
      Slot& slot = fresh->in.emplace_back();
      slot.type = TypeOf(cell);
      switch (slot.type) {
        case 'i':
          fresh->statement.exchange(soci::use(slot.number, slot.indicator));
          break;
        case 'd':
          fresh->statement.exchange(soci::use(slot.real, slot.indicator));
          break;
        case 'b':
          if (sqlite) {
            slot.blob = std::make_unique<soci::blob>(impl_->session);
            fresh->statement.exchange(soci::use(*slot.blob, slot.indicator));
            break;
          }
          [[fallthrough]];
        default:
          fresh->statement.exchange(soci::use(slot.text, slot.indicator));
      }
    }
    for (const char type : columns) {
      Slot& slot = fresh->out.emplace_back();
      slot.type = type;
      switch (type) {
        case 'i':
          fresh->statement.exchange(soci::into(slot.number, slot.indicator));
          break;
        case 'd':
          fresh->statement.exchange(soci::into(slot.real, slot.indicator));
          break;
        case 'b':
          if (sqlite) {
            slot.blob = std::make_unique<soci::blob>(impl_->session);
            fresh->statement.exchange(soci::into(*slot.blob, slot.indicator));
            break;
          }
          [[fallthrough]];
        default:
          fresh->statement.exchange(soci::into(slot.text, slot.indicator));
      }
    }
    fresh->statement.define_and_bind();
    prepared = fresh.get();
    impl_->prepared.emplace(std::move(key), std::move(fresh));
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    Slot& slot = prepared->in[i];
    slot.indicator = soci::i_ok;
    if (const auto* number = std::get_if<std::int64_t>(&values[i])) {
      slot.number = *number;
    } else if (const auto* real = std::get_if<double>(&values[i])) {
      slot.real = *real;
    } else if (const auto* text = std::get_if<std::string>(&values[i])) {
      if (text->find('\0') != std::string::npos || !IsValidUtf8(*text)) {
        return InvalidArgumentError("text for the database is not UTF-8, or holds a NUL");
      }
      slot.text = *text;
    } else if (const auto* blob = std::get_if<Blob>(&values[i])) {
      if (slot.blob != nullptr) {
        slot.blob->trim(0);
        slot.blob->append(blob->bytes.data(), blob->bytes.size());
      } else {
        slot.text = Hex(blob->bytes);
      }
    } else {
      slot.indicator = soci::i_null;
    }
  }
  return prepared;
}

void Connection::Drop(Prepared* prepared) {
  const std::string key = prepared->key;
  impl_->prepared.erase(key);
}

Status Connection::Run(std::string_view sql, std::span<const Cell> values, std::int64_t* changed) {
  if (lost_) return UnavailableError("the connection to the database is gone");
  Prepared* prepared = nullptr;
  const Status ran = Guard([&]() -> Status {
    ASSIGN_OR_RETURN(prepared, Prepare(sql, values, ""));
    prepared->statement.execute(true);
    if (changed != nullptr) *changed = prepared->statement.get_affected_rows();
    return Status::Ok();
  });
  if (!ran.ok() && prepared != nullptr) Drop(prepared);
  return ran;
}

Status Connection::Query(std::string_view sql, std::span<const Cell> values,
                         std::string_view columns, const Visitor& visit) {
  if (lost_) return UnavailableError("the connection to the database is gone");
  Prepared* prepared = nullptr;
  const Status ran = Guard([&]() -> Status {
    ASSIGN_OR_RETURN(prepared, Prepare(sql, values, columns));
    prepared->busy = true;
    SqlRow row;
    row.cells_.resize(columns.size());
    for (bool got = prepared->statement.execute(true); got; got = prepared->statement.fetch()) {
      for (std::size_t i = 0; i < columns.size(); ++i) {
        Slot& slot = prepared->out[i];
        Cell& cell = row.cells_[i];
        if (slot.indicator == soci::i_null) {
          cell = std::monostate();
        } else if (slot.type == 'i') {
          cell = static_cast<std::int64_t>(slot.number);
        } else if (slot.type == 'd') {
          cell = slot.real;
        } else if (slot.type == 'b') {
          if (slot.blob != nullptr) {
            std::string bytes(slot.blob->get_len(), '\0');
            if (!bytes.empty()) slot.blob->read(0, bytes.data(), bytes.size());
            cell = Blob{std::move(bytes)};
          } else {
            cell = Blob{Unhex(slot.text)};
          }
        } else {
          cell = slot.text;
        }
      }
      RETURN_IF_ERROR(visit(row));
    }
    prepared->busy = false;
    return Status::Ok();
  });
  // A statement that was left half way holds its snapshot.
  if (!ran.ok() && prepared != nullptr) Drop(prepared);
  return ran;
}

Result<std::optional<std::int64_t>> Connection::QueryInt(std::string_view sql,
                                                         std::initializer_list<Cell> values) {
  std::optional<std::int64_t> value;
  RETURN_IF_ERROR(Query(sql, values, "i", [&](const SqlRow& row) {
    if (!value && !row.IsNull(0)) value = row.Int(0);
    return Status::Ok();
  }));
  return value;
}

Status Connection::CopyTo(const std::string& path) {
  return Guard([&] {
    sqlite_api::sqlite3* target = nullptr;
    auto* backend = static_cast<soci::sqlite3_session_backend*>(impl_->session.get_backend());
    int code = sqlite_api::sqlite3_open(path.c_str(), &target);
    if (code == SQLITE_OK) {
      sqlite_api::sqlite3_backup* copy =
          sqlite_api::sqlite3_backup_init(target, "main", backend->conn_, "main");
      if (copy == nullptr) {
        code = sqlite_api::sqlite3_errcode(target);
      } else {
        // All pages in one step: one snapshot, which in WAL mode holds nobody up.
        code = sqlite_api::sqlite3_backup_step(copy, -1);
        sqlite_api::sqlite3_backup_finish(copy);
        if (code == SQLITE_DONE) code = SQLITE_OK;
      }
    }
    std::string message = target == nullptr ? "no memory" : sqlite_api::sqlite3_errmsg(target);
    sqlite_api::sqlite3_close(target);
    return code == SQLITE_OK ? Status::Ok() : SqliteStatus(code, std::move(message));
  });
}

}  // namespace cairn
