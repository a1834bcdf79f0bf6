#include "paramserver/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace cairn::ps {
namespace {

/// In the child, after fork: nothing here allocates.
[[noreturn]] void Become(char* const* argv, char* const* envp, int out, int err, pid_t parent) {
  // A group of its own: a terminal's Ctrl-C is for the supervisor, which saves first.
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // it died before the line above
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  struct sigaction action{};
  action.sa_handler = SIG_DFL;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) sigaction(signal, &action, nullptr);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execvpe(argv[0], argv, envp);
  const char* why = std::strerror(errno);
  const auto say = [](const char* text) { (void)!write(STDERR_FILENO, text, std::strlen(text)); };
  say(argv[0]);
  say(": ");
  say(why);
  say("\n");
  _exit(127);
}

std::vector<std::string> Environment(const std::map<std::string, std::string>& over) {
  std::vector<std::string> all;
  for (char** at = environ; *at != nullptr; ++at) {
    const std::string_view entry(*at);
    if (!over.contains(std::string(entry.substr(0, entry.find('='))))) all.emplace_back(entry);
  }
  for (const auto& [name, value] : over) all.push_back(name + "=" + value);
  return all;
}

std::vector<char*> Pointers(std::vector<std::string>* words) {
  std::vector<char*> pointers;
  for (std::string& word : *words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

Result<ChildProcess> ChildProcess::Start(const std::vector<std::string>& argv,
                                         const std::map<std::string, std::string>& env) {
  if (argv.empty()) return InvalidArgumentError("there is no command to run");
  int out[2];
  int err[2];
  if (pipe2(out, O_CLOEXEC) != 0) return UnavailableError(std::strerror(errno));
  if (pipe2(err, O_CLOEXEC) != 0) {
    close(out[0]);
    close(out[1]);
    return UnavailableError(std::strerror(errno));
  }
  std::vector<std::string> words = argv;
  std::vector<std::string> variables = Environment(env);
  const std::vector<char*> argv_pointers = Pointers(&words);
  const std::vector<char*> env_pointers = Pointers(&variables);
  const pid_t parent = getpid();
  ChildProcess child;
  child.pid_ = fork();
  if (child.pid_ == 0) Become(argv_pointers.data(), env_pointers.data(), out[1], err[1], parent);
  close(out[1]);
  close(err[1]);
  child.out_ = out[0];
  child.err_ = err[0];
  child.started_ = std::chrono::steady_clock::now();
  if (child.pid_ < 0) {
    child.reaped_ = true;
    return UnavailableError("cannot start " + argv[0] + ": " + std::strerror(errno));
  }
  child.pidfd_ = static_cast<int>(syscall(SYS_pidfd_open, child.pid_, 0));
  if (child.pidfd_ < 0) return UnavailableError(std::string("pidfd_open: ") + std::strerror(errno));
  fcntl(child.out_, F_SETFL, O_NONBLOCK);
  fcntl(child.err_, F_SETFL, O_NONBLOCK);
  return child;
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept { *this = std::move(other); }

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  if (this == &other) return *this;
  CloseAll();
  pid_ = std::exchange(other.pid_, -1);
  pidfd_ = std::exchange(other.pidfd_, -1);
  out_ = std::exchange(other.out_, -1);
  err_ = std::exchange(other.err_, -1);
  reaped_ = other.reaped_;
  status_ = other.status_;
  rest_[0] = std::move(other.rest_[0]);
  rest_[1] = std::move(other.rest_[1]);
  started_ = other.started_;
  return *this;
}

ChildProcess::~ChildProcess() { CloseAll(); }

void ChildProcess::CloseAll() {
  if (pid_ > 0 && !reaped_) {
    Signal(SIGKILL);
    Reap();
  }
  for (int* fd : {&pidfd_, &out_, &err_}) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
  }
}

void ChildProcess::Signal(int signal) const {
  // Not reaped: the number cannot be another's yet.
  if (pid_ > 0 && !reaped_) {
    if (kill(-pid_, signal) != 0) kill(pid_, signal);
  }
}

int ChildProcess::Reap() {
  if (!reaped_ && pid_ > 0) {
    while (waitpid(pid_, &status_, 0) < 0 && errno == EINTR) {
    }
    reaped_ = true;
  }
  return status_;
}

std::vector<std::string> ChildProcess::ReadLines(bool error) {
  int& fd = error ? err_ : out_;
  std::string& rest = rest_[error ? 1 : 0];
  std::vector<std::string> lines;
  if (fd < 0) return lines;
  char buffer[16384];
  for (;;) {
    const ssize_t n = read(fd, buffer, sizeof buffer);
    if (n > 0) {
      rest.append(buffer, static_cast<std::size_t>(n));
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) break;
    close(fd);
    fd = -1;
    if (!rest.empty() && rest.back() != '\n') rest += '\n';
    break;
  }
  std::size_t begin = 0;
  for (std::size_t end = 0; (end = rest.find('\n', begin)) != rest.npos; begin = end + 1) {
    lines.push_back(rest.substr(begin, end - begin));
  }
  rest.erase(0, begin);
  return lines;
}

std::string DescribeExit(int status) {
  if (WIFSIGNALED(status)) return "killed by signal " + std::to_string(WTERMSIG(status));
  return "exit code " + std::to_string(WEXITSTATUS(status));
}

}  // namespace cairn::ps
