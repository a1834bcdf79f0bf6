#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/status.h>

namespace cairn {

class CatalogDatabase;

struct User {
  std::int64_t id = 0;
  std::string name;           // unique, letter case (ASCII) does not matter
  std::string password_hash;  // as the caller made it; "": no login by password
  std::string role;           // the caller's word: viewer, user, admin
  bool active = true;
  std::int64_t created = 0;  // nanoseconds since 1970
};

/// What UpdateUser changes; empty: stays.
struct UserChange {
  std::optional<std::string> name;
  std::optional<std::string> password_hash;
  std::optional<std::string> role;
  std::optional<bool> active;
};

enum class TokenKind : std::uint8_t { kUser, kRun, kSession };
std::string_view TokenKindName(TokenKind kind);

/// Something that lets its bearer in. The token itself is never stored.
struct Token {
  std::int64_t id = 0;
  TokenKind kind = TokenKind::kUser;
  std::string hash;       // unique
  std::int64_t user = 0;  // whose; 0: nobody's (kRun)
  std::string label;
  std::string trial;           // of kRun
  std::uint64_t run = 0;       // of kRun
  std::int64_t created = 0;    // nanoseconds since 1970
  std::int64_t expires = 0;    // 0: never
  std::int64_t last_used = 0;  // 0: never
};

/// Users, their tokens and sessions. May be called from any thread.
class CatalogAccounts {
 public:
  explicit CatalogAccounts(CatalogDatabase* db) : db_(db) {}

  /// AlreadyExists when the name is taken.
  Result<std::int64_t> CreateUser(const User& user);
  Result<User> GetUser(std::int64_t id);           // NotFound
  Result<User> FindUser(const std::string& name);  // NotFound
  Result<std::vector<User>> ListUsers();           // by name
  /// In one transaction with the end of what lets him in: of all his tokens when he is not active
  /// any more, of his sessions when his password is another one.
  Status UpdateUser(std::int64_t id, const UserChange& change);
  Status DeleteUser(std::int64_t id);  // with all tokens

  Result<std::int64_t> AddToken(const Token& token);  // AlreadyExists for a known hash
  /// NotFound for unknown and expired ones.
  Result<Token> FindToken(const std::string& hash, std::int64_t now);
  /// Of one user (0: of all); of one kind, when given.
  Result<std::vector<Token>> ListTokens(std::int64_t user, std::optional<TokenKind> kind = {});
  /// When it was used; written at most once a minute for each token.
  Status TouchToken(std::int64_t id, std::int64_t now);
  Status DeleteToken(std::int64_t id);  // NotFound is OK
  Status DeleteExpiredTokens(std::int64_t now);

 private:
  CatalogDatabase* const db_;
};

}  // namespace cairn
