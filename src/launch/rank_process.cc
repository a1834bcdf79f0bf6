#include "launch/rank_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/status_macros.h"

extern char** environ;

namespace cairn {
namespace {

/// What the child says through a pipe when it could not become the program.
struct StartFailure {
  int error = 0;
  char what[24] = {};
};

struct Pipe {
  OwnedFd read;
  OwnedFd write;
};

Result<Pipe> MakePipe() {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return ErrnoStatus("pipe", errno);
  return Pipe{.read = OwnedFd(fds[0]), .write = OwnedFd(fds[1])};
}

/// The environment of this process with `variables` put over it, as execve wants it.
std::vector<std::string> Environment(const std::map<std::string, std::string>& variables) {
  std::map<std::string, std::string> merged;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    merged.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  for (const auto& [name, value] : variables) merged[name] = value;
  std::vector<std::string> entries;
  entries.reserve(merged.size());
  for (const auto& [name, value] : merged) entries.push_back(name + "=" + value);
  return entries;
}

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

bool Limit(__rlimit_resource resource, std::uint64_t bound) {
  rlimit limit = {};
  if (getrlimit(resource, &limit) != 0) return false;
  limit.rlim_cur =
      limit.rlim_max == RLIM_INFINITY ? bound : std::min<rlim_t>(bound, limit.rlim_max);
  limit.rlim_max = limit.rlim_cur;
  return setrlimit(resource, &limit) == 0;
}

/// Runs in the child: only calls that are allowed between fork and exec.
[[noreturn]] void BecomeRank(const LaunchRecord& launch, pid_t parent, int input, int out, int err,
                             int report, char* const* argv, char* const* env) {
  const auto fail = [report](const char* what) {
    StartFailure failure;
    failure.error = errno;
    std::strncpy(failure.what, what, sizeof(failure.what) - 1);
    if (write(report, &failure, sizeof(failure)) < 0) _exit(126);
    _exit(127);
  };
  // A parent that died before the request was made sends no signal: look once more.
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) fail("prctl");
  if (getppid() != parent) _exit(127);
  // A group of its own: a rank that signals its group must not hit its keeper.
  if (setpgid(0, 0) != 0) fail("setpgid");
  if (dup2(input, 0) < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0) fail("dup2");
  if (launch.limits.address_space_bytes > 0 &&
      !Limit(RLIMIT_AS, launch.limits.address_space_bytes)) {
    fail("limit of memory");
  }
  if (launch.limits.open_files > 0 && !Limit(RLIMIT_NOFILE, launch.limits.open_files)) {
    fail("limit of open files");
  }
  if (!Limit(RLIMIT_CORE, launch.limits.core_bytes)) fail("limit of core dumps");
  errno = 0;
  if (launch.limits.nice != 0 && nice(launch.limits.nice) == -1 && errno != 0) fail("nice");
  if (!launch.cwd.empty() && chdir(launch.cwd.c_str()) != 0) fail("working directory");
  for (int signal = 1; signal < NSIG; ++signal) std::signal(signal, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  environ = const_cast<char**>(env);
  execvp(argv[0], argv);  // finds argv[0] on the PATH of `env`
  fail("program");
  _exit(127);
}

Status FailureStatus(const StartFailure& failure, const LaunchRecord& launch) {
  const std::string what(failure.what);
  if (what == "program") return ErrnoStatus("cannot run '" + launch.argv[0] + "'", failure.error);
  if (what == "working directory") return ErrnoStatus(what + " " + launch.cwd, failure.error);
  return ErrnoStatus(what, failure.error);
}

}  // namespace

namespace {

Result<RankProcess> Start(const LaunchRecord& launch, int rank,
                          const std::map<std::string, std::string>& variables,
                          const OwnedFd& input) {
  ASSIGN_OR_RETURN(Pipe out, MakePipe());
  ASSIGN_OR_RETURN(Pipe err, MakePipe());
  ASSIGN_OR_RETURN(Pipe report, MakePipe());
  std::vector<std::string> entries = Environment(variables);
  std::vector<std::string> arguments = launch.argv;
  const std::vector<char*> env = Pointers(entries);
  const std::vector<char*> argv = Pointers(arguments);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return ErrnoStatus("fork", errno);
  if (pid == 0) {
    BecomeRank(launch, parent, input.get(), out.write.get(), err.write.get(), report.write.get(),
               argv.data(), env.data());
  }
  report.write.Reset();
  StartFailure failure;
  ssize_t got = 0;
  do {
    got = read(report.read.get(), &failure, sizeof(failure));
  } while (got < 0 && errno == EINTR);
  if (got == static_cast<ssize_t>(sizeof(failure))) {  // else: closed by exec
    waitpid(pid, nullptr, 0);
    return FailureStatus(failure, launch);
  }
  RankProcess process;
  process.rank = rank;
  process.pid = pid;
  process.out.fd = std::move(out.read);
  process.err.fd = std::move(err.read);
  process.err.is_stderr = true;
  for (const RankStream* stream : {&process.out, &process.err}) {
    fcntl(stream->fd.get(), F_SETFL, O_NONBLOCK);
  }
  return process;
}

}  // namespace

Result<RankProcess> StartRank(const LaunchRecord& launch, int rank,
                              const std::map<std::string, std::string>& variables) {
  const OwnedFd input(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!input.valid()) return ErrnoStatus("open /dev/null", errno);
  return Start(launch, rank, variables, input);
}

Result<RankProcess> StartRankWithInput(const LaunchRecord& launch, int rank,
                                       const std::map<std::string, std::string>& variables,
                                       OwnedFd* input) {
  ASSIGN_OR_RETURN(Pipe pipe, MakePipe());
  ASSIGN_OR_RETURN(RankProcess process, Start(launch, rank, variables, pipe.read));
  fcntl(pipe.write.get(), F_SETFL, O_NONBLOCK);
  *input = std::move(pipe.write);
  return process;
}

}  // namespace cairn
