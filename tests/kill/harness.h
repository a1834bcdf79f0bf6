#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "format/json.h"
#include "tests/kill/job_state.h"

/// What tests that kill real processes share.
namespace cairn::kill {

class TempDir {
 public:
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "cairn-kill-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// A blackboard in a file of its own.
class MappedBoard {
 public:
  explicit MappedBoard(const std::filesystem::path& path) : path_(path) {
    const int fd = open(path.c_str(), O_RDWR | O_CREAT, 0600);
    EXPECT_EQ(ftruncate(fd, sizeof(Blackboard)), 0);
    board_ = static_cast<Blackboard*>(
        mmap(nullptr, sizeof(Blackboard), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    close(fd);
    board_->acknowledged = -1;
    board_->resumed = -1;
  }
  ~MappedBoard() { munmap(board_, sizeof(Blackboard)); }
  MappedBoard(const MappedBoard&) = delete;
  MappedBoard& operator=(const MappedBoard&) = delete;
  Blackboard* operator->() { return board_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  Blackboard* board_;
};

/// Starts a program of the build. `inherited` is a descriptor that it gets, marked close-on-exec
/// here.
inline pid_t StartProcess(const std::string& name, const std::vector<std::string>& args,
                          int inherited = -1) {
  const char* bin = std::getenv("CAIRN_BIN_DIR");
  const std::string program = std::string(bin == nullptr ? "." : bin) + "/" + name;
  std::vector<char*> argv = {const_cast<char*>(program.c_str())};
  for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    if (inherited >= 0) fcntl(inherited, F_SETFD, 0);
    execv(program.c_str(), argv.data());
    _exit(127);
  }
  return pid;
}

/// True when the process ended by SIGKILL; false with its exit code otherwise.
inline bool WaitKilled(pid_t pid, int* exit_code) {
  int status = 0;
  waitpid(pid, &status, 0);
  *exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

/// Seeds and counts that accumulate over runs of `make torture`.
struct Record {
  std::uint64_t seed = 20261115;
  std::int64_t cycles = 0;

  static Record Load() {
    Record record;
    const char* path = std::getenv("CAIRN_TORTURE_STATE");
    if (path == nullptr) return record;
    std::ifstream in(path);
    const std::string text((std::istreambuf_iterator<char>(in)), {});
    auto value = DecodeJson(text);
    if (!value.ok()) return record;
    if (const Value* seed = value->Find("seed")) {
      record.seed = static_cast<std::uint64_t>(seed->AsInt()) + 1;
    }
    if (const Value* cycles = value->Find("cycles")) record.cycles = cycles->AsInt();
    return record;
  }
  void Save() const {
    const char* path = std::getenv("CAIRN_TORTURE_STATE");
    if (path == nullptr) return;
    Value::Object object{{"seed", seed}, {"cycles", cycles}};
    std::ofstream(path) << EncodeJson(object) << "\n";
  }
};

/// How long `make torture` wants the test to run; 0 in `make test`.
inline std::chrono::seconds TortureTime() {
  const char* seconds = std::getenv("CAIRN_TORTURE_SECONDS");
  return std::chrono::seconds(seconds == nullptr ? 0 : std::atol(seconds));
}

}  // namespace cairn::kill
