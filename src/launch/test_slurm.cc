#include "launch/test_slurm.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

namespace cairn {
namespace {

constexpr char kProgram[] = "tests/services/slurm/one-machine-slurm";
constexpr std::chrono::milliseconds kLook{20};

int input_of_slurm = -1;
int output_of_slurm = -1;

/// Its input ends: it stops the daemons, and then its output ends.
void End() {
  close(input_of_slurm);
  char block[512];
  while (read(output_of_slurm, block, sizeof(block)) > 0) continue;
  std::error_code left;
  if (const char* conf = std::getenv("SLURM_CONF");
      conf != nullptr && testing::UnitTest::GetInstance()->Passed()) {
    std::filesystem::remove_all(std::filesystem::path(conf).parent_path(), left);
  }
}

}  // namespace

TestSlurm& TestSlurm::Get() {
  static TestSlurm* slurm = new TestSlurm;  // ended by End
  return *slurm;
}

TestSlurm::TestSlurm() {
  // Short: munge's socket has a name of at most 107 bytes.
  std::string name = "/tmp/cairn-slurm-XXXXXX";
  directory_ = mkdtemp(name.data());
  int in[2];
  int out[2];
  if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) std::abort();
  const pid_t between = fork();
  if (between == 0) {
    // Nobody's child: whoever kills this process with all that descends from it leaves the one that
    // stops the daemons.
    if (fork() != 0) _exit(0);
    dup2(in[0], 0);
    dup2(out[1], 1);
    dup2(out[1], 2);
    execl("/usr/bin/python3", "python3", kProgram, directory_.c_str(), nullptr);
    _exit(127);
  }
  waitpid(between, nullptr, 0);
  close(in[0]);
  close(out[1]);
  input_of_slurm = in[1];
  output_of_slurm = out[0];
  std::string said;
  char block[512];
  ssize_t got = 0;
  while (said.find("READY") == std::string::npos &&
         (got = read(out[0], block, sizeof(block))) > 0) {
    said.append(block, static_cast<std::size_t>(got));
  }
  setenv("SLURM_CONF", (directory_ + "/slurm.conf").c_str(), 1);
  std::atexit(End);
  if (said.find("READY") == std::string::npos) {
    std::fprintf(stderr, "there is no Slurm to test with: %s\n", said.c_str());
    std::exit(1);
  }
}

const std::string& TestSlurm::Rest() {
  if (rest_.empty()) {
    StartDaemon("slurmrestd");
    rest_ = "unix:" + directory_ + "/rest.sock";
  }
  return rest_;
}

const std::string& TestSlurm::RestWithTokens() {
  if (rest_with_tokens_.empty()) {
    StartDaemon("slurmrestd.jwt");
    std::ifstream(directory_ + "/rest.address") >> rest_with_tokens_;
    rest_with_tokens_.insert(0, "http://");
  }
  return rest_with_tokens_;
}

std::string TestSlurm::Shell(const std::string& command) {
  std::FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  std::string said;
  char block[512];
  while (std::fgets(block, sizeof(block), pipe) != nullptr) said += block;
  pclose(pipe);
  return said;
}

void TestSlurm::KillDaemon(const std::string& daemon) {
  const std::string path = directory_ + "/" + daemon + ".pid";
  pid_t pid = 0;
  std::ifstream(path) >> pid;
  ASSERT_GT(pid, 1) << path;
  ASSERT_EQ(kill(pid, SIGKILL), 0) << daemon;
  while (kill(pid, 0) == 0) std::this_thread::sleep_for(kLook);
}

void TestSlurm::StartDaemon(const std::string& daemon) {
  ASSERT_EQ(std::system((directory_ + "/start " + daemon).c_str()), 0) << daemon;
}

void TestSlurm::UntilIdle() {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(90);
  while (Shell("squeue -h") != "" || Shell("sinfo -h -N -p low -o %t") != "idle\nidle\n") {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline)
        << Shell("squeue; sinfo -N") << "did not become idle";
    std::this_thread::sleep_for(kLook);
  }
}

}  // namespace cairn
