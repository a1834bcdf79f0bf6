#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/status.h>

#include "base/clock.h"
#include "base/thread_annotations.h"
#include "catalog/accounts.h"

namespace cairn::master {

/// What a user may do; each includes those before it.
enum class Role : std::uint8_t { kViewer, kUser, kAdmin };
std::string_view RoleName(Role role);
std::optional<Role> RoleFromName(std::string_view name);

/// Who a request comes from.
struct Principal {
  std::int64_t user = 0;
  std::string name;
  Role role = Role::kViewer;
  std::int64_t token = 0;
  bool session = false;  // of a login, which Logout ends
};

struct Session {
  Principal who;
  std::string token;
  std::int64_t expires = 0;  // nanoseconds since 1970
};

struct AccountsOptions {
  CatalogAccounts* catalog = nullptr;  // borrowed
  Clock* clock = Clock::System();      // borrowed
  std::chrono::nanoseconds session_time = std::chrono::hours(24);
  std::chrono::nanoseconds code_time = std::chrono::minutes(10);
  /// Passwords are hashed with as little work as possible: for tests alone.
  bool weak_hashes = false;
};

/// Users, passwords (Argon2id), tokens and logins. All of it is also in memory, so that a request
/// is judged without waiting; what changes is in the catalog first. Tokens are known by their
/// hashes alone. May be called from any thread.
class Accounts {
 public:
  using Options = AccountsOptions;
  /// Reads the catalog. A catalog without users gets an admin, "admin", without a password.
  static Result<std::unique_ptr<Accounts>> Open(Options options);

  /// PermissionDenied. Quick.
  Result<Principal> Authenticate(std::string_view token);

  /// Whether what the request was judged by still holds: for answers that last. Quick.
  bool StillValid(const Principal& who) const;
  /// Takes as long for a wrong name as for a wrong password. PermissionDenied; ResourceExhausted
  /// when there were too many wrong ones.
  Result<Session> Login(const std::string& name, const std::string& password);
  /// With a code of NewLoginCode, which works once.
  Result<Session> LoginWithCode(std::string_view code);
  Result<std::string> NewLoginCode(std::int64_t user);
  Status Logout(const Principal& who);

  /// Whether anybody can log in with a password.
  bool AnyPassword() const;
  Result<User> Get(const std::string& name) const;
  std::vector<User> List() const;
  Result<User> Create(const std::string& name, const std::optional<std::string>& password,
                      Role role);
  struct Change {
    std::optional<Role> role;
    std::optional<std::string> password;
    std::optional<std::string> current_password;
    std::optional<bool> active;
  };
  /// As `by`: an admin anybody, others their own password. The last active admin stays one.
  Result<User> Update(const Principal& by, const std::string& name, const Change& change);

  struct NewSecret {
    Token token;
    std::string secret;
  };
  /// `seconds` 0: until it is deleted.
  Result<NewSecret> CreateToken(std::int64_t user, const std::string& label, double seconds);
  std::vector<Token> ListTokens(std::int64_t user) const;
  /// NotFound, also for those of others, unless `by` is an admin.
  Status DeleteToken(const Principal& by, std::int64_t token);

  /// Writes down when tokens were used, forgets what has expired. Called now and then.
  Status Tidy();

 private:
  explicit Accounts(Options options) : options_(options) {}
  Status Load();
  Result<std::string> HashPassword(const std::string& password) const;
  bool PasswordMatches(const std::string& hash, const std::string& password) const;
  Result<Session> NewSession(const User& user);
  void Forget(std::int64_t user, std::optional<TokenKind> kind) REQUIRES(mu_);
  std::int64_t Now() const { return options_.clock->WallNanos(); }

  const Options options_;
  std::string decoy_;  // a hash that nothing matches
  Mutex hashing_;      // one at a time: each takes 64 MiB
  Mutex changing_;     // catalog and memory change together

  mutable Mutex mu_;
  std::map<std::int64_t, User> users_ GUARDED_BY(mu_);
  std::map<std::string, Token, std::less<>> tokens_ GUARDED_BY(mu_);  // by hash
  std::set<std::int64_t> used_ GUARDED_BY(mu_);
  struct Code {
    std::int64_t user = 0;
    std::int64_t expires = 0;
  };
  std::map<std::string, Code, std::less<>> codes_ GUARDED_BY(mu_);  // by hash
  struct Failures {
    int count = 0;
    std::int64_t until = 0;
  };
  std::map<std::string, Failures, std::less<>> failures_ GUARDED_BY(mu_);  // by name
  int logins_ GUARDED_BY(mu_) = 0;                                         // under way
};

}  // namespace cairn::master
