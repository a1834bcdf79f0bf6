#include "catalog/accounts.h"

#include <fmt/format.h>

#include <utility>

#include "base/status_macros.h"
#include "catalog/database.h"
#include "format/json.h"

namespace cairn {
namespace {

constexpr std::int64_t kTouchEvery = 60'000'000'000;

constexpr std::string_view kUserSelect =
    "SELECT id, name, password_hash, role, active, created FROM users";
User UserFrom(const SqlRow& row) {
  return {.id = row.Int(0),
          .name = row.Text(1),
          .password_hash = row.Text(2),
          .role = row.Text(3),
          .active = row.Bool(4),
          .created = row.Int(5)};
}

constexpr std::string_view kTokenSelect =
    "SELECT id, kind, hash, user_id, label, trial, run, created, expires, last_used FROM tokens";
constexpr std::string_view kTokenColumns = "ittittiiii";
Token TokenFrom(const SqlRow& row) {
  Token token{.id = row.Int(0),
              .hash = row.Text(2),
              .user = row.Int(3),
              .label = row.Text(4),
              .trial = row.Text(5),
              .run = row.Uint(6),
              .created = row.Int(7),
              .expires = row.Int(8),
              .last_used = row.Int(9)};
  for (const TokenKind kind : {TokenKind::kUser, TokenKind::kRun, TokenKind::kSession}) {
    if (TokenKindName(kind) == row.Text(1)) token.kind = kind;
  }
  return token;
}

std::string Folded(std::string name) {
  for (char& c : name) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return name;
}

Status NameTaken(const Status& status, const std::string& name) {
  if (!status.Is(Code::kAlreadyExists)) return status;
  return AlreadyExistsError(fmt::format("there is a user {}", QuoteForMessage(name)));
}

Result<User> FindOne(CatalogDatabase* db, const std::string& where, const Cell& value,
                     const std::string& called) {
  std::optional<User> found;
  RETURN_IF_ERROR(db->Read([&](Connection& connection) {
    return connection.Query(std::string(kUserSelect) + where, {value}, "itttii",
                            [&](const SqlRow& row) {
                              found = UserFrom(row);
                              return Status::Ok();
                            });
  }));
  if (!found) return NotFoundError(fmt::format("no user {}", called));
  return std::move(*found);
}

}  // namespace

std::string_view TokenKindName(TokenKind kind) {
  switch (kind) {
    case TokenKind::kUser:
      return "user";
    case TokenKind::kRun:
      return "run";
    case TokenKind::kSession:
      return "session";
  }
  return "user";
}

Result<std::int64_t> CatalogAccounts::CreateUser(const User& user) {
  std::int64_t id = 0;
  const Status made = db_->Write([&](Connection& connection) {
    return connection.Query(
        "INSERT INTO users (name, folded, password_hash, role, active, created) VALUES (?, ?, ?, "
        "?, ?, ?) RETURNING id",
        {user.name, Folded(user.name), user.password_hash, user.role, Flag(user.active),
         user.created != 0 ? user.created : db_->clock()->WallNanos()},
        "i", [&](const SqlRow& row) {
          id = row.Int(0);
          return Status::Ok();
        });
  });
  if (!made.ok()) return NameTaken(made, user.name);
  return id;
}

Result<User> CatalogAccounts::GetUser(std::int64_t id) {
  return FindOne(db_, " WHERE id = ?", id, std::to_string(id));
}

Result<User> CatalogAccounts::FindUser(const std::string& name) {
  return FindOne(db_, " WHERE folded = ?", Folded(name), QuoteForMessage(name));
}

Result<std::vector<User>> CatalogAccounts::ListUsers() {
  std::vector<User> users;
  RETURN_IF_ERROR(db_->Read([&](Connection& connection) {
    users.clear();
    return connection.Query(std::string(kUserSelect) + " ORDER BY folded", {}, "itttii",
                            [&](const SqlRow& row) {
                              users.push_back(UserFrom(row));
                              return Status::Ok();
                            });
  }));
  return users;
}

Status CatalogAccounts::UpdateUser(std::int64_t id, const UserChange& change) {
  const Status updated = db_->Write([&](Connection& connection) -> Status {
    const auto set = [&](const std::string& column, const Cell& value) {
      return connection.Run("UPDATE users SET " + column + " = ? WHERE id = ?", {value, id});
    };
    ASSIGN_OR_RETURN(const auto known,
                     connection.QueryInt("SELECT id FROM users WHERE id = ?", {id}));
    if (!known) return NotFoundError(fmt::format("no user {}", id));
    if (change.name) {
      RETURN_IF_ERROR(set("name", *change.name));
      RETURN_IF_ERROR(set("folded", Folded(*change.name)));
    }
    if (change.password_hash) RETURN_IF_ERROR(set("password_hash", *change.password_hash));
    if (change.role) RETURN_IF_ERROR(set("role", *change.role));
    if (change.active) RETURN_IF_ERROR(set("active", Flag(*change.active)));
    if (change.active && !*change.active) {
      return connection.Run("DELETE FROM tokens WHERE user_id = ?", {id});
    }
    if (!change.password_hash) return Status::Ok();
    return connection.Run("DELETE FROM tokens WHERE user_id = ? AND kind = ?",
                          {id, std::string(TokenKindName(TokenKind::kSession))});
  });
  return change.name ? NameTaken(updated, *change.name) : updated;
}

Status CatalogAccounts::DeleteUser(std::int64_t id) {
  return db_->Write([&](Connection& connection) -> Status {
    std::int64_t changed = 0;
    RETURN_IF_ERROR(connection.Run("DELETE FROM users WHERE id = ?", {id}, &changed));
    return changed == 0 ? NotFoundError(fmt::format("no user {}", id)) : Status::Ok();
  });
}

Result<std::int64_t> CatalogAccounts::AddToken(const Token& token) {
  std::int64_t id = 0;
  RETURN_IF_ERROR(db_->Write([&](Connection& connection) {
    return connection.Query(
        "INSERT INTO tokens (kind, hash, user_id, label, trial, run, created, expires, last_used) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING id",
        {std::string(TokenKindName(token.kind)), token.hash,
         token.user == 0 ? Cell() : Cell(token.user), token.label, token.trial, Number(token.run),
         token.created != 0 ? token.created : db_->clock()->WallNanos(), token.expires,
         token.last_used},
        "i", [&](const SqlRow& row) {
          id = row.Int(0);
          return Status::Ok();
        });
  }));
  return id;
}

Result<Token> CatalogAccounts::FindToken(const std::string& hash, std::int64_t now) {
  std::optional<Token> found;
  RETURN_IF_ERROR(db_->Read([&](Connection& connection) {
    return connection.Query(std::string(kTokenSelect) + " WHERE hash = ?", {hash}, kTokenColumns,
                            [&](const SqlRow& row) {
                              found = TokenFrom(row);
                              return Status::Ok();
                            });
  }));
  if (!found || (found->expires != 0 && found->expires <= now)) {
    return NotFoundError("no such token, or it has expired");
  }
  return std::move(*found);
}

Result<std::vector<Token>> CatalogAccounts::ListTokens(std::int64_t user,
                                                       std::optional<TokenKind> kind) {
  std::string sql = std::string(kTokenSelect) + " WHERE 1 = 1";
  std::vector<Cell> values;
  if (user != 0) {
    sql += " AND user_id = ?";
    values.emplace_back(user);
  }
  if (kind) {
    sql += " AND kind = ?";
    values.emplace_back(std::string(TokenKindName(*kind)));
  }
  std::vector<Token> tokens;
  RETURN_IF_ERROR(db_->Read([&](Connection& connection) {
    tokens.clear();
    return connection.Query(sql + " ORDER BY id", values, kTokenColumns, [&](const SqlRow& row) {
      tokens.push_back(TokenFrom(row));
      return Status::Ok();
    });
  }));
  return tokens;
}

Status CatalogAccounts::TouchToken(std::int64_t id, std::int64_t now) {
  // Most calls find that it was used a moment ago: they cost no sync.
  std::optional<std::int64_t> last;
  RETURN_IF_ERROR(db_->Read([&](Connection& connection) -> Status {
    ASSIGN_OR_RETURN(last, connection.QueryInt("SELECT last_used FROM tokens WHERE id = ?", {id}));
    return Status::Ok();
  }));
  if (!last || (now >= *last && now - *last < kTouchEvery)) return Status::Ok();
  return db_->Write([&](Connection& connection) {
    return connection.Run("UPDATE tokens SET last_used = ? WHERE id = ?", {now, id});
  });
}

Status CatalogAccounts::DeleteToken(std::int64_t id) {
  return db_->Write([&](Connection& connection) {
    return connection.Run("DELETE FROM tokens WHERE id = ?", {id});
  });
}

Status CatalogAccounts::DeleteExpiredTokens(std::int64_t now) {
  return db_->Write([&](Connection& connection) {
    return connection.Run("DELETE FROM tokens WHERE expires <> 0 AND expires <= ?", {now});
  });
}

}  // namespace cairn
