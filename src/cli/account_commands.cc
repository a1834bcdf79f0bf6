#include "cli/account_commands.h"

#include <fmt/format.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "base/status_macros.h"
#include "cli/experiment_commands.h"
#include "cli/experiment_tables.h"
#include "cli/output.h"
#include "cli/token_file.h"
#include "net/url.h"

namespace cairn::cli {
namespace {

Result<std::string> ReadLine() {
  std::string line;
  for (;;) {
    char c = 0;
    const ssize_t n = read(STDIN_FILENO, &c, 1);
    if (n < 0 && errno == EINTR && !Console::interrupted()) continue;
    if (n < 0) return CancelledError("no password");
    if (n == 0 || c == '\n') return line;
    if (line.size() >= 1024) return InvalidArgumentError("the password is too long");
    line += c;
  }
}

/// Typed without showing on the terminal, or a line of standard input.
Result<std::string> Password(const std::string& prompt, bool from_stdin) {
  if (from_stdin) return ReadLine();
  termios before{};
  if (isatty(STDIN_FILENO) != 1 || tcgetattr(STDIN_FILENO, &before) != 0) {
    return FailedPreconditionError(
        "a password is asked for on a terminal, and there is none: --password-stdin reads it from "
        "standard input");
  }
  std::fputs((prompt + ": ").c_str(), stderr);
  std::fflush(stderr);
  termios silent = before;
  silent.c_lflag &= ~static_cast<tcflag_t>(ECHO);
  tcsetattr(STDIN_FILENO, TCSAFLUSH, &silent);
  auto line = ReadLine();
  tcsetattr(STDIN_FILENO, TCSAFLUSH, &before);
  std::fputs("\n", stderr);
  return line;
}

Result<std::string> NewPassword(bool from_stdin) {
  ASSIGN_OR_RETURN(std::string first, Password("New password", from_stdin));
  if (from_stdin) return first;
  ASSIGN_OR_RETURN(const std::string second, Password("The same again", false));
  if (first != second) return InvalidArgumentError("the two passwords are not the same");
  return first;
}

std::string UserPath(const std::string& name) { return "/api/v1/users/" + PercentEncode(name); }

Output UserOutput(Value user) {
  Output output;
  output.text = UserTable({user});
  output.json = std::move(user);
  return output;
}

}  // namespace

Result<Output> Login(const LoginOptions& options, Console* console) {
  ASSIGN_OR_RETURN(const auto master, MasterClient::Open(options.master, console));
  ASSIGN_OR_RETURN(const std::string path, LoginTokenPath(master->url()));
  console->CatchInterrupts();
  ASSIGN_OR_RETURN(const std::string password,
                   Password("Password of " + options.username, options.password_stdin));
  master->SetToken("");
  ASSIGN_OR_RETURN(const Value login, master->Send("POST", "/api/v1/auth/login",
                                                   Value::Object{{"username", options.username},
                                                                 {"password", password}}));
  RETURN_IF_ERROR(WriteToken(path, TextIn(login, "token")));
  Output output;
  const double expires = NumberIn(login, "expires");
  output.text =
      fmt::format("logged in at {} as {} until {}\n", master->url(), Printable(options.username),
                  UtcTime(static_cast<std::int64_t>(expires * 1e9)));
  const Value* user = login.Find("user");
  output.json = Value::Object{{"user", user == nullptr ? Value() : *user}, {"expires", expires}};
  return output;
}

Result<Output> LoginLink(const MasterOptions& options, Console* console) {
  ASSIGN_OR_RETURN(const auto master, MasterClient::Open(options, console));
  ASSIGN_OR_RETURN(const Value answer, master->Send("POST", "/api/v1/auth/code"));
  // Behind '#': browsers do not send it to anybody.
  const std::string link = fmt::format("{}/#code={}", master->url(), TextIn(answer, "code"));
  Output output;
  output.text = link + "\n";
  output.json = Value::Object{{"link", link}};
  return output;
}

Result<Output> Logout(const MasterOptions& options, Console* console) {
  ASSIGN_OR_RETURN(const auto master, MasterClient::Open(options, console));
  ASSIGN_OR_RETURN(const std::string path, LoginTokenPath(master->url()));
  ASSIGN_OR_RETURN(const std::string token, ReadToken(path));
  Output output;
  output.json = Value::Object{};
  if (token.empty()) {
    output.text = "not logged in\n";
    return output;
  }
  master->SetToken(token);
  const auto answer = master->Send("POST", "/api/v1/auth/logout");
  // One that has expired is no reason to keep it.
  if (!answer.ok() && !answer.status().Is(Code::kPermissionDenied)) return answer.status();
  RETURN_IF_ERROR(RemoveToken(path));
  output.text = "logged out\n";
  return output;
}

Result<Output> Whoami(const MasterOptions& options, Console* console) {
  ASSIGN_OR_RETURN(const auto master, MasterClient::Open(options, console));
  ASSIGN_OR_RETURN(Value user, master->Get("/api/v1/auth/whoami"));
  Output output;
  output.text = fmt::format("{} ({}) at {}\n", Printable(TextIn(user, "username")),
                            Printable(TextIn(user, "role")), master->url());
  output.json = std::move(user);
  return output;
}

Result<Output> ListUsers(const MasterOptions& options, Console* console) {
  ASSIGN_OR_RETURN(const auto master, MasterClient::Open(options, console));
  Output output;
  ASSIGN_OR_RETURN(output.json, master->Get("/api/v1/users"));
  output.text = UserTable(ListIn(output.json, "users"));
  return output;
}

Result<Output> CreateUser(const UserOptions& options, Console* console) {
  ASSIGN_OR_RETURN(const auto master, MasterClient::Open(options.master, console));
  Value::Object body{{"username", options.username}, {"role", options.role}};
  if (!options.no_password) {
    ASSIGN_OR_RETURN(const std::string password, NewPassword(options.password_stdin));
    body["password"] = password;
  }
  ASSIGN_OR_RETURN(Value user, master->Send("POST", "/api/v1/users", Value(std::move(body))));
  return UserOutput(std::move(user));
}

Result<Output> SetUserActive(const UserOptions& options, bool active, Console* console) {
  ASSIGN_OR_RETURN(const auto master, MasterClient::Open(options.master, console));
  ASSIGN_OR_RETURN(Value user, master->Send("PATCH", UserPath(options.username),
                                            Value::Object{{"active", active}}));
  return UserOutput(std::move(user));
}

Result<Output> SetUserRole(const UserOptions& options, Console* console) {
  ASSIGN_OR_RETURN(const auto master, MasterClient::Open(options.master, console));
  ASSIGN_OR_RETURN(Value user, master->Send("PATCH", UserPath(options.username),
                                            Value::Object{{"role", options.role}}));
  return UserOutput(std::move(user));
}

Result<Output> ChangePassword(const UserOptions& options, Console* console) {
  ASSIGN_OR_RETURN(const auto master, MasterClient::Open(options.master, console));
  ASSIGN_OR_RETURN(const Value self, master->Get("/api/v1/auth/whoami"));
  const std::string name = options.username.empty() ? TextIn(self, "username") : options.username;
  Value::Object body;
  if (TextIn(self, "role") != "admin") {
    ASSIGN_OR_RETURN(const std::string current,
                     Password("Present password of " + name, options.password_stdin));
    body["current_password"] = current;
  }
  ASSIGN_OR_RETURN(const std::string password, NewPassword(options.password_stdin));
  body["password"] = password;
  ASSIGN_OR_RETURN(Value user, master->Send("PATCH", UserPath(name), Value(std::move(body))));
  Output output;
  output.text = fmt::format("{} has a new password\n", Printable(name));
  output.json = std::move(user);
  return output;
}

Result<Output> ListTokens(const TokenOptions& options, Console* console) {
  ASSIGN_OR_RETURN(const auto master, MasterClient::Open(options.master, console));
  Output output;
  ASSIGN_OR_RETURN(output.json, master->Get("/api/v1/tokens"));
  output.text = ListIn(output.json, "tokens").empty()
                    ? "no tokens\n"
                    : TokenTable(ListIn(output.json, "tokens"), UnixNow(console));
  return output;
}

Result<Output> CreateToken(const TokenOptions& options, Console* console) {
  ASSIGN_OR_RETURN(const auto master, MasterClient::Open(options.master, console));
  Value::Object body{{"name", options.name}};
  if (options.expires_days > 0) body["expires_seconds"] = options.expires_days * 86400;
  Output output;
  ASSIGN_OR_RETURN(output.json, master->Send("POST", "/api/v1/tokens", Value(std::move(body))));
  console->Note("This is the only time that it is shown; programs take it from CAIRN_TOKEN:");
  output.text = TextIn(output.json, "token") + "\n";
  return output;
}

Result<Output> RemoveToken(const TokenOptions& options, Console* console) {
  ASSIGN_OR_RETURN(const auto master, MasterClient::Open(options.master, console));
  Output output;
  ASSIGN_OR_RETURN(output.json,
                   master->Send("DELETE", "/api/v1/tokens/" + PercentEncode(options.id)));
  output.text = fmt::format("token {} is no longer good\n", Printable(options.id));
  return output;
}

}  // namespace cairn::cli
