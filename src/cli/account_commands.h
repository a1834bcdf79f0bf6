#pragma once

#include <string>

#include <cairn/status.h>

#include "cli/console.h"
#include "cli/master_client.h"

namespace cairn::cli {

// Who one is at a master: logging in, users, tokens.

struct LoginOptions {
  MasterOptions master;
  std::string username;
  bool password_stdin = false;  // read it from standard input instead of asking
};
/// Stores the session's token for later commands.
Result<Output> Login(const LoginOptions& options, Console* console);
/// A link that opens the page and logs the caller in, once, within ten minutes.
Result<Output> LoginLink(const MasterOptions& options, Console* console);
/// Ends the session and forgets its token.
Result<Output> Logout(const MasterOptions& options, Console* console);
Result<Output> Whoami(const MasterOptions& options, Console* console);

struct UserOptions {
  MasterOptions master;
  std::string username;
  std::string role;
  bool password_stdin = false;
  bool no_password = false;
};
Result<Output> ListUsers(const MasterOptions& options, Console* console);
Result<Output> CreateUser(const UserOptions& options, Console* console);
Result<Output> SetUserActive(const UserOptions& options, bool active, Console* console);
Result<Output> SetUserRole(const UserOptions& options, Console* console);
/// Without a name the caller's own.
Result<Output> ChangePassword(const UserOptions& options, Console* console);

struct TokenOptions {
  MasterOptions master;
  std::string name;         // of a new one
  std::string id;           // of one to take back
  double expires_days = 0;  // 0: never
};
Result<Output> ListTokens(const TokenOptions& options, Console* console);
Result<Output> CreateToken(const TokenOptions& options, Console* console);
Result<Output> RemoveToken(const TokenOptions& options, Console* console);

}  // namespace cairn::cli
