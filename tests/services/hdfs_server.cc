#include "tests/services/hdfs_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string_view>
#include <thread>
#include <vector>

#include "base/status_macros.h"

namespace cairn {
namespace {

constexpr auto kPatience = std::chrono::seconds(120);

/// What the command prints; an error when it fails.
Result<std::string> OutputOf(const std::string& command) {
  FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return InternalError("cannot run " + command);
  std::string output;
  std::array<char, 4096> buffer{};
  while (const std::size_t count = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    output.append(buffer.data(), count);
  }
  if (pclose(pipe) != 0) return InternalError(command + " failed; see above");
  while (output.ends_with('\n')) output.pop_back();
  return output;
}

/// Ports that are free now. All are held until the last is known, so that they differ.
std::vector<std::uint16_t> FreePorts(int count) {
  std::vector<int> sockets;
  std::vector<std::uint16_t> ports;
  for (int i = 0; i < count; ++i) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{.sin_family = AF_INET, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof address;
    bind(fd, reinterpret_cast<sockaddr*>(&address), size);
    getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
    sockets.push_back(fd);
    ports.push_back(ntohs(address.sin_port));
  }
  for (const int fd : sockets) close(fd);
  return ports;
}

std::string Contents(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

Result<HdfsServer*> HdfsServer::Shared() {
  // Never destroyed by a static destructor: the kernel ends it with this process.
  static auto* const server = new Result<std::unique_ptr<HdfsServer>>(Start({}));
  if (!server->ok()) return server->status();
  return (*server)->get();
}

Result<std::unique_ptr<HdfsServer>> HdfsServer::Start(const Options& options) {
  std::unique_ptr<HdfsServer> server(new HdfsServer);
  server->permissions_ = options.permissions;
  const std::vector<std::uint16_t> ports = FreePorts(3);
  server->rpc_port_ = ports[0];
  server->http_port_ = ports[1];
  server->data_port_ = ports[2];
  RETURN_IF_ERROR(server->Launch());
  return server;
}

Status HdfsServer::Launch() {
  ASSIGN_OR_RETURN(const std::string command, OutputOf(CAIRN_SERVICE_HDFS));
  const std::string log = directory_ / "log";
  std::string line = "set -f; exec " + command;
  line += " " + (directory_ / "run");
  for (const std::uint16_t port : {rpc_port_, http_port_, data_port_}) {
    line += " " + std::to_string(port);
  }
  line += permissions_ ? " true" : " false";
  line += " >'" + log + "' 2>&1";
  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    execl("/bin/sh", "sh", "-c", line.c_str(), nullptr);
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
  return Status::Ok();
}

void HdfsServer::Kill(int signal) {
  if (pid_ <= 0) return;
  kill(pid_, signal);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

HdfsServer::~HdfsServer() { Kill(SIGKILL); }

Status HdfsServer::KillAndRestart() {
  Kill(SIGKILL);
  std::remove((directory_ / "log").c_str());
  return Launch();
}

std::string HdfsServer::Url(const std::string& path) const {
  return "hdfs://127.0.0.1:" + std::to_string(http_port_) + "/" + path;
}

std::string HdfsServer::FreshUrl() { return Url("t" + std::to_string(urls_++)); }

}  // namespace cairn
