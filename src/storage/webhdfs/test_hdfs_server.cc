#include "storage/webhdfs/test_hdfs_server.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string_view>
#include <thread>

#include "base/status_macros.h"

namespace cairn {
namespace {

constexpr auto kPatience = std::chrono::seconds(120);

/// Built by `scripts/service hdfs`; tests run in the repository's root.
std::string Program() {
  const char* const named = std::getenv("CAIRN_ONE_NODE_HDFS");
  return named != nullptr ? named : ".cache/services/bin/one-node-hdfs";
}

std::string Contents(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

Result<TestHdfsServer*> TestHdfsServer::Shared() {
  // Never destroyed by a static destructor: the kernel ends it with this process.
  static auto* const server = new Result<std::unique_ptr<TestHdfsServer>>(Start({}));
  if (!server->ok()) return server->status();
  return (*server)->get();
}

Result<std::unique_ptr<TestHdfsServer>> TestHdfsServer::Start(const Options& options) {
  std::unique_ptr<TestHdfsServer> server(new TestHdfsServer);
  server->options_ = options;
  if (server->http_port() == 0 || server->rpc_port() == 0 || server->data_port() == 0) {
    return UnavailableError("no free port on 127.0.0.1");
  }
  RETURN_IF_ERROR(server->Launch());
  return server;
}

Status TestHdfsServer::Launch() {
  const std::string program = Program();
  if (access(program.c_str(), X_OK) != 0) {
    return NotFoundError("there is no HDFS to test with: build it with `scripts/service hdfs`");
  }
  const std::string log = directory_ / "log";
  const std::string run = directory_ / "run";
  const std::array<std::string, 3> ports = {std::to_string(rpc_port()), std::to_string(http_port()),
                                            std::to_string(data_port())};
  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int out = open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(out, 1);
    dup2(out, 2);
    execl(program.c_str(), program.c_str(), run.c_str(), ports[0].c_str(), ports[1].c_str(),
          ports[2].c_str(), options_.permissions ? "true" : "false",
          options_.tokens ? "true" : "false", nullptr);
    _exit(127);
  }
  const auto begun = std::chrono::steady_clock::now();
  while (Contents(log).find("READY") == std::string::npos) {
    int ended = 0;
    if (waitpid(pid_, &ended, WNOHANG) == pid_) {
      pid_ = -1;
      return InternalError("HDFS ended at its start:\n" + Contents(log));
    }
    if (std::chrono::steady_clock::now() - begun > kPatience) {
      return DeadlineExceededError("HDFS did not start:\n" + Contents(log));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // it tells by a line in a file
  }
  const std::string said = Contents(log);
  constexpr std::string_view kToken = "TOKEN ";
  if (const std::size_t at = said.find(kToken); at != std::string::npos) {
    const std::size_t begin = at + kToken.size();
    token_ = said.substr(begin, said.find('\n', begin) - begin);
  }
  return Status::Ok();
}

void TestHdfsServer::Kill(int signal) {
  if (pid_ <= 0) return;
  kill(pid_, signal);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

TestHdfsServer::~TestHdfsServer() { Kill(SIGKILL); }

Status TestHdfsServer::KillAndRestart() {
  Kill(SIGKILL);
  std::remove((directory_ / "log").c_str());
  return Launch();
}

std::string TestHdfsServer::Url(const std::string& path) const {
  return "hdfs://127.0.0.1:" + std::to_string(http_port()) + "/" + path;
}

std::string TestHdfsServer::FreshUrl() { return Url("t" + std::to_string(urls_++)); }

}  // namespace cairn
