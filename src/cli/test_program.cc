#include "cli/test_program.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>

#include "format/json.h"

namespace cairn {
namespace {

std::string Program() {
  const char* bin = std::getenv("CAIRN_BIN_DIR");
  return std::string(bin != nullptr ? bin : "build/bin") + "/cairn";
}

/// In the child: becomes the program.
[[noreturn]] void Become(const std::vector<std::string>& words) {
  std::vector<std::string> copy = words;
  copy.insert(copy.begin(), Program());
  std::vector<char*> argv;
  for (std::string& word : copy) argv.push_back(word.data());
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  _exit(127);
}

void Reap(pid_t child, Finished* finished) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status)) finished->code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) finished->signal = WTERMSIG(status);
}

}  // namespace

RunningProgram::RunningProgram(const std::vector<std::string>& words,
                               const std::function<void()>& in_child) {
  int out[2];
  int err[2];
  EXPECT_EQ(pipe2(out, O_CLOEXEC), 0);
  EXPECT_EQ(pipe2(err, O_CLOEXEC), 0);
  child_ = fork();
  if (child_ == 0) {
    const int null = open("/dev/null", O_RDONLY);
    dup2(null, STDIN_FILENO);
    dup2(out[1], STDOUT_FILENO);
    dup2(err[1], STDERR_FILENO);
    if (in_child) in_child();
    Become(words);
  }
  close(out[1]);
  close(err[1]);
  ends_[0] = out[0];
  ends_[1] = err[0];
}

RunningProgram::~RunningProgram() {
  if (child_ < 0) return;
  kill(child_, SIGKILL);
  Wait();
}

bool RunningProgram::ReadSome() {
  pollfd ends[2] = {{ends_[0], POLLIN, 0}, {ends_[1], POLLIN, 0}};
  std::string* const texts[2] = {&finished_.out, &finished_.err};
  if (ends_[0] < 0 && ends_[1] < 0) return false;
  if (poll(ends, 2, -1) < 0) return true;
  for (int i = 0; i < 2; ++i) {
    if (ends_[i] < 0 || ends[i].revents == 0) continue;
    char buffer[4096];
    const ssize_t n = read(ends_[i], buffer, sizeof buffer);
    if (n > 0) {
      texts[i]->append(buffer, static_cast<std::size_t>(n));
    } else {
      close(ends_[i]);
      ends_[i] = -1;
    }
  }
  return true;
}

bool RunningProgram::WaitForOutput(const std::string& text) {
  for (;;) {
    if (finished_.out.find(text) != std::string::npos) return true;
    if (!ReadSome()) return false;
  }
}

void RunningProgram::Signal(int signal) const { kill(child_, signal); }

Finished RunningProgram::Wait() {
  while (ReadSome()) {
  }
  Reap(std::exchange(child_, -1), &finished_);
  return finished_;
}

Finished RunProgram(const std::vector<std::string>& words, const std::function<void()>& in_child) {
  return RunningProgram(words, in_child).Wait();
}

Finished RunOnTerminal(const std::vector<std::string>& words, const std::string& answer) {
  int terminal = -1;
  const pid_t child = forkpty(&terminal, nullptr, nullptr, nullptr);
  if (child == 0) Become(words);
  Finished finished;
  EXPECT_EQ(write(terminal, answer.data(), answer.size()), static_cast<ssize_t>(answer.size()));
  char buffer[4096];
  for (;;) {
    const ssize_t n = read(terminal, buffer, sizeof buffer);
    if (n <= 0) break;  // EIO: the other side is closed
    finished.out.append(buffer, static_cast<std::size_t>(n));
  }
  Reap(child, &finished);
  close(terminal);
  return finished;
}

Value Json(const Finished& finished) {
  auto value = DecodeJson(finished.out);
  EXPECT_TRUE(value.ok()) << finished.out << finished.err;
  return value.ok() ? *value : Value();
}

}  // namespace cairn
