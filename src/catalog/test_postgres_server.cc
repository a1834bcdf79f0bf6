#include "catalog/test_postgres_server.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <grp.h>
#include <pwd.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>
#include <vector>

#include "base/status_macros.h"
#include "catalog/connection.h"

namespace cairn {
namespace {

constexpr auto kPatience = std::chrono::seconds(60);
const std::string kPrograms = "/usr/lib/postgresql/15/bin/";

std::string Contents(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

/// Starts a program as the user postgres when we are root: it refuses to run as root.
pid_t Spawn(const std::vector<std::string>& argv, const std::string& log) {
  const passwd* user = geteuid() == 0 ? getpwnam("postgres") : nullptr;
  std::vector<char*> arguments;
  for (const std::string& argument : argv) arguments.push_back(const_cast<char*>(argument.data()));
  arguments.push_back(nullptr);
  const pid_t pid = fork();
  if (pid != 0) return pid;
  const int out = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  dup2(out, 1);
  dup2(out, 2);
  if (user != nullptr &&
      (setgroups(0, nullptr) != 0 || setgid(user->pw_gid) != 0 || setuid(user->pw_uid) != 0)) {
    _exit(126);
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // after the change of user, which clears it
  if (chdir("/") != 0) _exit(126);
  execv(arguments[0], arguments.data());
  _exit(127);
}

}  // namespace

Result<TestPostgresServer*> TestPostgresServer::Shared() {
  // Never destroyed by a static destructor: the kernel ends it with this process.
  static auto* const server = new Result<std::unique_ptr<TestPostgresServer>>(Start());
  if (!server->ok()) return server->status();
  return (*server)->get();
}

Result<std::unique_ptr<TestPostgresServer>> TestPostgresServer::Start() {
  std::unique_ptr<TestPostgresServer> server(new TestPostgresServer);
  if (server->port_.number() == 0) return UnavailableError("no free port on 127.0.0.1");
  RETURN_IF_ERROR(server->Initialize());
  RETURN_IF_ERROR(server->Launch());
  return server;
}

Status TestPostgresServer::Initialize() {
  const std::string initdb = kPrograms + "initdb";
  if (access(initdb.c_str(), X_OK) != 0) {
    return NotFoundError("there is no PostgreSQL 15 to test with: scripts/setup test installs it");
  }
  if (const passwd* user = geteuid() == 0 ? getpwnam("postgres") : nullptr; user != nullptr) {
    if (chown(directory_.path().c_str(), user->pw_uid, user->pw_gid) != 0) {
      return InternalError("chown " + directory_.path());
    }
  }
  const std::string log = directory_ / "initdb.log";
  const pid_t pid = Spawn({initdb, "-D", directory_ / "data", "-U", "postgres", "-A", "trust", "-N",
                           "-E", "UTF8", "--locale=C", "--no-instructions"},
                          log);
  int ended = 0;
  waitpid(pid, &ended, 0);
  return ended == 0 ? Status::Ok() : InternalError("initdb failed:\n" + Contents(log));
}

Status TestPostgresServer::Launch() {
  const std::string log = directory_ / "log";
  pid_ = Spawn({kPrograms + "postgres", "-D", directory_ / "data", "-k", directory_.path(), "-p",
                std::to_string(port_.number()), "-c", "listen_addresses=127.0.0.1", "-c",
                "shared_buffers=32MB", "-c", "max_connections=60"},
               log);
  const auto begun = std::chrono::steady_clock::now();
  for (;;) {
    const auto opened =
        Connection::Open({.dialect = Dialect::kPostgres, .conninfo = Url("postgres")});
    if (opened.ok()) return Status::Ok();
    int ended = 0;
    if (waitpid(pid_, &ended, WNOHANG) == pid_) {
      pid_ = -1;
      return InternalError("PostgreSQL ended at its start:\n" + Contents(log));
    }
    if (std::chrono::steady_clock::now() - begun > kPatience) {
      return DeadlineExceededError("PostgreSQL did not start:\n" + Contents(log));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // it does not tell
  }
}

void TestPostgresServer::Stop() {
  if (pid_ <= 0) return;
  kill(pid_, SIGINT);  // "fast": sends clients away
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

void TestPostgresServer::Kill() {
  if (pid_ <= 0) return;
  kill(pid_, SIGQUIT);  // "immediate": all of its processes end without writing anything
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

TestPostgresServer::~TestPostgresServer() { Kill(); }

std::string TestPostgresServer::Url(const std::string& database) const {
  return fmt::format("postgresql://postgres@127.0.0.1:{}/{}", port_.number(), database);
}

Result<std::string> TestPostgresServer::FreshDatabase() {
  ASSIGN_OR_RETURN(const auto connection,
                   Connection::Open({.dialect = Dialect::kPostgres, .conninfo = Url("postgres")}));
  const std::string name = fmt::format("t{}_{}", getpid(), ++databases_);
  RETURN_IF_ERROR(connection->Script("CREATE DATABASE " + name));
  return Url(name);
}

}  // namespace cairn
