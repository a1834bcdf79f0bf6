#include "launch/run_command.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>

#include "base/status_macros.h"
#include "launch/process_identity.h"

namespace cairn {
namespace {

using Steady = std::chrono::steady_clock;

constexpr std::size_t kMostOutput = std::size_t{64} << 20;

bool IsProgram(const std::string& path) { return access(path.c_str(), X_OK) == 0; }

std::vector<char*> Pointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

/// The input lies in memory: nobody has to feed a pipe.
Result<OwnedFd> InputFile(std::string_view input) {
  OwnedFd fd(memfd_create("input", MFD_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus("memfd_create", errno);
  while (!input.empty()) {
    const ssize_t wrote = write(fd.get(), input.data(), input.size());
    if (wrote < 0) return ErrnoStatus("write of a command's input", errno);
    input.remove_prefix(static_cast<std::size_t>(wrote));
  }
  if (lseek(fd.get(), 0, SEEK_SET) != 0) return ErrnoStatus("lseek", errno);
  return fd;
}

/// Between fork and exec.
[[noreturn]] void Become(pid_t parent, int input, int out, int err, char* const* argv,
                         char* const* env) {
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent) _exit(126);
  if (dup2(input, 0) < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0) _exit(126);
  for (int signal = 1; signal < NSIG; ++signal) std::signal(signal, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execve(argv[0], argv, env);
  _exit(127);
}

/// False when the stream is over.
bool ReadOnce(int fd, std::string* out) {
  char block[16384];
  const ssize_t got = read(fd, block, sizeof(block));
  if (got < 0) return errno == EINTR || errno == EAGAIN;
  if (out->size() <= kMostOutput) out->append(block, static_cast<std::size_t>(got));
  return got > 0;
}

/// Both streams to their ends. False when the time was over first.
bool ReadAll(OwnedFd* out, OwnedFd* err, Steady::time_point deadline, CommandOutcome* outcome) {
  while (out->valid() || err->valid()) {
    pollfd waits[2] = {{.fd = out->get(), .events = POLLIN, .revents = 0},
                       {.fd = err->get(), .events = POLLIN, .revents = 0}};
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - Steady::now()).count();
    if (left <= 0) return false;
    if (poll(waits, 2, static_cast<int>(left)) < 0 && errno != EINTR) return false;
    if (waits[0].revents != 0 && !ReadOnce(out->get(), &outcome->out)) out->Reset();
    if (waits[1].revents != 0 && !ReadOnce(err->get(), &outcome->err)) err->Reset();
  }
  return true;
}

}  // namespace

Result<std::string> FindProgram(const std::string& name) {
  if (name.find('/') != std::string::npos) {
    if (IsProgram(name)) return name;
    return NotFoundError("there is no program " + name);
  }
  const char* path = std::getenv("PATH");
  std::string_view rest(path == nullptr ? "" : path);
  while (!rest.empty()) {
    const std::size_t colon = rest.find(':');
    const std::string found = std::string(rest.substr(0, colon)) + "/" + name;
    if (colon != 0 && IsProgram(found)) return found;
    rest.remove_prefix(colon == std::string_view::npos ? rest.size() : colon + 1);
  }
  return NotFoundError("there is no program " + name + " on the PATH");
}

Result<CommandOutcome> RunCommand(const std::vector<std::string>& argv,
                                  const std::vector<std::string>& environment,
                                  std::string_view input, std::chrono::nanoseconds timeout) {
  ASSIGN_OR_RETURN(const std::string program, FindProgram(argv.at(0)));
  std::vector<std::string> words = argv;
  words[0] = program;
  ASSIGN_OR_RETURN(const OwnedFd source, InputFile(input));
  int out_ends[2];
  int err_ends[2];
  if (pipe2(out_ends, O_CLOEXEC) != 0) return ErrnoStatus("pipe", errno);
  OwnedFd out(out_ends[0]);
  OwnedFd out_write(out_ends[1]);
  if (pipe2(err_ends, O_CLOEXEC) != 0) return ErrnoStatus("pipe", errno);
  OwnedFd err(err_ends[0]);
  OwnedFd err_write(err_ends[1]);
  const std::vector<char*> pointers = Pointers(words);
  const std::vector<char*> env = Pointers(environment);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return ErrnoStatus("fork", errno);
  if (pid == 0) {
    Become(parent, source.get(), out_write.get(), err_write.get(), pointers.data(), env.data());
  }
  out_write.Reset();
  err_write.Reset();
  CommandOutcome outcome;
  const bool in_time = ReadAll(&out, &err, Steady::now() + timeout, &outcome);
  if (!in_time) kill(pid, SIGKILL);
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
  if (!in_time) return DeadlineExceededError(argv[0] + " did not end in time");
  if (outcome.out.size() > kMostOutput || outcome.err.size() > kMostOutput) {
    return ResourceExhaustedError(argv[0] + " says more than 64 MiB");
  }
  outcome.code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return outcome;
}

}  // namespace cairn
