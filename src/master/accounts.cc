#include "master/accounts.h"

#include <fmt/format.h>
#include <sodium.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/status_macros.h"
#include "net/token.h"

namespace cairn::master {
namespace {

constexpr std::string_view kRoles[] = {"viewer", "user", "admin"};
constexpr int kFreeFailures = 5;
constexpr int kMostLogins = 8;  // under way at once
constexpr std::size_t kMostNames = 10'000;
constexpr std::size_t kShortestPassword = 8;

bool IsUserName(std::string_view name) {
  const auto letter = [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  };
  return !name.empty() && name.size() <= 64 && letter(name.front()) &&
         std::ranges::all_of(name, [&](char c) { return letter(c) || c == '.' || c == '@'; });
}

std::string Lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

bool Expired(std::int64_t expires, std::int64_t now) { return expires != 0 && expires <= now; }

Status WrongLogin() { return PermissionDeniedError("wrong name or password"); }

}  // namespace

std::string_view RoleName(Role role) { return kRoles[static_cast<std::size_t>(role)]; }

std::optional<Role> RoleFromName(std::string_view name) {
  const auto* found = std::ranges::find(kRoles, name);
  if (found == std::end(kRoles)) return std::nullopt;
  return static_cast<Role>(found - std::begin(kRoles));
}

Result<std::unique_ptr<Accounts>> Accounts::Open(Options options) {
  if (sodium_init() < 0) return InternalError("libsodium cannot be used");
  std::unique_ptr<Accounts> accounts(new Accounts(options));
  RETURN_IF_ERROR(accounts->Load());
  ASSIGN_OR_RETURN(const std::string nobody, NewToken());
  ASSIGN_OR_RETURN(accounts->decoy_, accounts->HashPassword(nobody));
  if (accounts->List().empty()) {
    RETURN_IF_ERROR(accounts->Create("admin", std::nullopt, Role::kAdmin).status());
  }
  return accounts;
}

Status Accounts::Load() {
  ASSIGN_OR_RETURN(const std::vector<User> users, options_.catalog->ListUsers());
  ASSIGN_OR_RETURN(const std::vector<Token> tokens, options_.catalog->ListTokens(0));
  MutexLock hold(&mu_);
  for (const User& user : users) users_[user.id] = user;
  for (const Token& token : tokens) {
    if (token.kind != TokenKind::kRun) tokens_[token.hash] = token;
  }
  return Status::Ok();
}

Result<std::string> Accounts::HashPassword(const std::string& password) const {
  std::array<char, crypto_pwhash_STRBYTES> out{};
  const auto ops =
      options_.weak_hashes ? crypto_pwhash_OPSLIMIT_MIN : crypto_pwhash_OPSLIMIT_INTERACTIVE;
  const std::size_t memory =
      options_.weak_hashes ? crypto_pwhash_MEMLIMIT_MIN : crypto_pwhash_MEMLIMIT_INTERACTIVE;
  if (crypto_pwhash_str(out.data(), password.data(), password.size(), ops, memory) != 0) {
    return ResourceExhaustedError("no memory to hash a password");
  }
  return std::string(out.data());
}

bool Accounts::PasswordMatches(const std::string& hash, const std::string& password) const {
  return crypto_pwhash_str_verify(hash.c_str(), password.data(), password.size()) == 0;
}

Result<Principal> Accounts::Authenticate(std::string_view secret) {
  if (secret.empty()) {
    return PermissionDeniedError(
        "no token: log in, or set CAIRN_TOKEN (a local master writes one into its data directory)");
  }
  // Found by the hash of the token: how long that takes says nothing about the token.
  const std::string hash = HashToken(secret);
  const std::int64_t now = Now();
  MutexLock hold(&mu_);
  const auto found = tokens_.find(hash);
  if (found == tokens_.end() || Expired(found->second.expires, now)) {
    return PermissionDeniedError("the token is not known, or has expired: log in again");
  }
  const Token& token = found->second;
  const auto user = users_.find(token.user);
  if (user == users_.end() || !user->second.active) {
    return PermissionDeniedError("the user of this token is not active");
  }
  const auto role = RoleFromName(user->second.role);
  if (!role) return PermissionDeniedError("the user of this token has no role that is known");
  used_.insert(token.id);
  return Principal{.user = user->first,
                   .name = user->second.name,
                   .role = *role,
                   .token = token.id,
                   .session = token.kind == TokenKind::kSession};
}

bool Accounts::StillValid(const Principal& who) const {
  const std::int64_t now = Now();
  MutexLock hold(&mu_);
  const auto user = users_.find(who.user);
  if (user == users_.end() || !user->second.active) return false;
  return std::ranges::any_of(tokens_, [&](const auto& item) {
    return item.second.id == who.token && !Expired(item.second.expires, now);
  });
}

Result<Session> Accounts::NewSession(const User& user) {
  ASSIGN_OR_RETURN(const std::string secret, NewToken());
  Token token{.kind = TokenKind::kSession,
              .hash = HashToken(secret),
              .user = user.id,
              .label = "login",
              .created = Now(),
              .expires = Now() + options_.session_time.count()};
  MutexLock change(&changing_);
  {
    // Comparing a password takes its time: what it was compared with may not hold any more.
    MutexLock hold(&mu_);
    const User& now = users_[user.id];
    if (!now.active || now.password_hash != user.password_hash) return WrongLogin();
  }
  ASSIGN_OR_RETURN(token.id, options_.catalog->AddToken(token));
  {
    MutexLock hold(&mu_);
    tokens_[token.hash] = token;
  }
  ASSIGN_OR_RETURN(Principal who, Authenticate(secret));
  return Session{.who = std::move(who), .token = secret, .expires = token.expires};
}

Result<Session> Accounts::Login(const std::string& name, const std::string& password) {
  const std::string key = Lower(name).substr(0, 64);
  std::optional<User> user;
  {
    MutexLock hold(&mu_);
    const auto failed = failures_.find(key);
    if (failed != failures_.end() && failed->second.until > Now()) {
      return ResourceExhaustedError("too many wrong passwords: wait a minute");
    }
    if (logins_ >= kMostLogins) return ResourceExhaustedError("too many logins at once: try again");
    ++logins_;
    for (const auto& [id, one] : users_) {
      if (Lower(one.name) == key && one.active && !one.password_hash.empty()) user = one;
    }
  }
  bool matches = false;
  {
    MutexLock one(&hashing_);
    matches = PasswordMatches(user ? user->password_hash : decoy_, password) && user.has_value();
  }
  {
    MutexLock hold(&mu_);
    --logins_;
    if (matches) {
      failures_.erase(key);
    } else {
      if (failures_.size() > kMostNames) failures_.clear();
      Failures& failed = failures_[key];
      ++failed.count;
      if (failed.count >= kFreeFailures) {
        const double wait = std::min(std::exp2(failed.count - kFreeFailures), 60.0);
        failed.until = Now() + static_cast<std::int64_t>(wait * 1e9);
      }
    }
  }
  if (!matches) return WrongLogin();
  return NewSession(*user);
}

Result<std::string> Accounts::NewLoginCode(std::int64_t user) {
  ASSIGN_OR_RETURN(const std::string code, NewToken());
  MutexLock hold(&mu_);
  std::erase_if(codes_, [&](const auto& item) { return Expired(item.second.expires, Now()); });
  codes_[HashToken(code)] = {.user = user, .expires = Now() + options_.code_time.count()};
  return code;
}

Result<Session> Accounts::LoginWithCode(std::string_view code) {
  User user;
  {
    MutexLock hold(&mu_);
    const auto found = codes_.find(HashToken(code));
    const bool good = found != codes_.end() && !Expired(found->second.expires, Now()) &&
                      users_.contains(found->second.user) && users_[found->second.user].active;
    if (good) user = users_[found->second.user];
    if (found != codes_.end()) codes_.erase(found);
    if (!good) return PermissionDeniedError("the link was used already, or is too old");
  }
  return NewSession(user);
}

Status Accounts::Logout(const Principal& who) {
  if (!who.session)
    return FailedPreconditionError("this is a token, not a login: delete it instead");
  MutexLock change(&changing_);
  RETURN_IF_ERROR(options_.catalog->DeleteToken(who.token));
  MutexLock hold(&mu_);
  std::erase_if(tokens_, [&](const auto& item) { return item.second.id == who.token; });
  return Status::Ok();
}

bool Accounts::AnyPassword() const {
  MutexLock hold(&mu_);
  return std::ranges::any_of(users_, [](const auto& item) {
    return item.second.active && !item.second.password_hash.empty();
  });
}

Result<User> Accounts::Get(const std::string& name) const {
  const std::string key = Lower(name);
  MutexLock hold(&mu_);
  for (const auto& [id, user] : users_) {
    if (Lower(user.name) == key) return user;
  }
  return NotFoundError(fmt::format("no user {}", name));
}

std::vector<User> Accounts::List() const {
  std::vector<User> out;
  {
    MutexLock hold(&mu_);
    for (const auto& [id, user] : users_) out.push_back(user);
  }
  std::ranges::sort(out, {}, &User::name);
  return out;
}

Result<User> Accounts::Create(const std::string& name, const std::optional<std::string>& password,
                              Role role) {
  if (!IsUserName(name)) {
    return InvalidArgumentError("username: 1 to 64 letters, digits, _ - . @");
  }
  if (password && password->size() < kShortestPassword) {
    return InvalidArgumentError("password: at least 8 characters");
  }
  User user{.name = name, .role = std::string(RoleName(role)), .created = Now()};
  if (password) {
    MutexLock one(&hashing_);
    ASSIGN_OR_RETURN(user.password_hash, HashPassword(*password));
  }
  MutexLock change(&changing_);
  ASSIGN_OR_RETURN(user.id, options_.catalog->CreateUser(user));
  MutexLock hold(&mu_);
  users_[user.id] = user;
  return user;
}

Result<User> Accounts::Update(const Principal& by, const std::string& name, const Change& change) {
  const bool admin = by.role == Role::kAdmin;
  const auto found = Get(name);
  const bool own = found.ok() && found->id == by.user;
  if (!admin && !own) return NotFoundError(fmt::format("no user {}", name));
  RETURN_IF_ERROR(found.status());
  UserChange out;
  if (!admin && (change.role || change.active)) {
    return FailedPreconditionError("only an admin changes roles, or who is active");
  }
  if (change.password) {
    if (change.password->size() < kShortestPassword) {
      return InvalidArgumentError("password: at least 8 characters");
    }
    MutexLock one(&hashing_);
    if (!admin && !found->password_hash.empty() &&
        !PasswordMatches(found->password_hash, change.current_password.value_or(""))) {
      return InvalidArgumentError("current_password is not the present one");
    }
    ASSIGN_OR_RETURN(out.password_hash, HashPassword(*change.password));
  }
  if (change.role) out.role = std::string(RoleName(*change.role));
  out.active = change.active;
  MutexLock one_at_a_time(&changing_);
  // As it is now: hashing takes its time, and another may have changed him meanwhile.
  User user;
  {
    MutexLock hold(&mu_);
    user = users_[found->id];
    if (!admin && !user.active) return NotFoundError(fmt::format("no user {}", name));
    if (!admin && user.password_hash != found->password_hash) {
      return FailedPreconditionError("the password was changed meanwhile: try again");
    }
    if (out.password_hash) user.password_hash = *out.password_hash;
    if (out.role) user.role = *out.role;
    if (out.active) user.active = *out.active;
    const bool admins_left = std::ranges::any_of(users_, [&](const auto& item) {
      const User& one = item.first == user.id ? user : item.second;
      return one.active && one.role == RoleName(Role::kAdmin);
    });
    if (!admins_left) return FailedPreconditionError("the last active admin must stay one");
  }
  RETURN_IF_ERROR(options_.catalog->UpdateUser(user.id, out));
  MutexLock hold(&mu_);
  users_[user.id] = user;
  if (change.active && !*change.active) {
    Forget(user.id, std::nullopt);
  } else if (change.password) {
    Forget(user.id, TokenKind::kSession);
  }
  return user;
}

void Accounts::Forget(std::int64_t user, std::optional<TokenKind> kind) {
  std::erase_if(tokens_, [&](const auto& item) {
    return item.second.user == user && (!kind || item.second.kind == *kind);
  });
}

Result<Accounts::NewSecret> Accounts::CreateToken(std::int64_t user, const std::string& label,
                                                  double seconds) {
  NewSecret out;
  ASSIGN_OR_RETURN(out.secret, NewToken());
  out.token = {.kind = TokenKind::kUser,
               .hash = HashToken(out.secret),
               .user = user,
               .label = label,
               .created = Now(),
               .expires = seconds > 0 ? Now() + static_cast<std::int64_t>(seconds * 1e9) : 0};
  MutexLock change(&changing_);
  ASSIGN_OR_RETURN(out.token.id, options_.catalog->AddToken(out.token));
  MutexLock hold(&mu_);
  tokens_[out.token.hash] = out.token;
  return out;
}

std::vector<Token> Accounts::ListTokens(std::int64_t user) const {
  std::vector<Token> out;
  const std::int64_t now = Now();
  {
    MutexLock hold(&mu_);
    for (const auto& [hash, token] : tokens_) {
      const bool wanted = token.user == user && token.kind == TokenKind::kUser;
      if (wanted && !Expired(token.expires, now)) out.push_back(token);
    }
  }
  std::ranges::sort(out, std::greater<>(), &Token::id);
  return out;
}

Status Accounts::DeleteToken(const Principal& by, std::int64_t id) {
  MutexLock change(&changing_);
  {
    MutexLock hold(&mu_);
    const auto found = std::ranges::find_if(tokens_, [&](const auto& item) {
      return item.second.id == id && (by.role == Role::kAdmin || item.second.user == by.user);
    });
    if (found == tokens_.end()) return NotFoundError(fmt::format("no token {}", id));
  }
  RETURN_IF_ERROR(options_.catalog->DeleteToken(id));
  MutexLock hold(&mu_);
  std::erase_if(tokens_, [&](const auto& item) { return item.second.id == id; });
  return Status::Ok();
}

Status Accounts::Tidy() {
  std::set<std::int64_t> used;
  const std::int64_t now = Now();
  {
    MutexLock hold(&mu_);
    used.swap(used_);
    std::erase_if(tokens_, [&](const auto& item) { return Expired(item.second.expires, now); });
    for (auto& [hash, token] : tokens_) {
      if (used.contains(token.id)) token.last_used = now;
    }
  }
  for (const std::int64_t id : used) RETURN_IF_ERROR(options_.catalog->TouchToken(id, now));
  return options_.catalog->DeleteExpiredTokens(now);
}

}  // namespace cairn::master
