#include "launch/process_identity.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>

#include "base/status_macros.h"

namespace cairn {
namespace {

constexpr std::chrono::seconds kKillTimeout{10};

// The declarations of glibc 2.36 (sys/pidfd.h) cannot be linked from C++.
int PidfdOpen(pid_t pid) { return static_cast<int>(syscall(SYS_pidfd_open, pid, 0)); }
int PidfdSendSignal(int process, int signal) {
  return static_cast<int>(syscall(SYS_pidfd_send_signal, process, signal, nullptr, 0));
}

/// The whole of a small file of /proc; nullopt when it cannot be read (the process is gone).
std::optional<std::string> ReadProc(const std::string& path, std::size_t max_bytes) {
  const OwnedFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return std::nullopt;
  std::string text;
  char block[16384];
  while (text.size() < max_bytes) {
    const ssize_t got = read(fd.get(), block, sizeof(block));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return std::nullopt;
    if (got == 0) break;
    text.append(block, static_cast<std::size_t>(got));
  }
  return text;
}

/// What we want of /proc/<pid>/stat.
struct ProcStat {
  char state = 0;
  pid_t parent = 0;
  std::uint64_t start_ticks = 0;
};

std::optional<ProcStat> ReadStat(pid_t pid) {
  const auto text = ReadProc("/proc/" + std::to_string(pid) + "/stat", 4096);
  if (!text.has_value()) return std::nullopt;
  // The second field is the program's name in parentheses, which may hold anything.
  const std::size_t name_end = text->rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  ProcStat stat;
  std::size_t at = name_end + 2;
  for (int field = 3; field <= 22 && at < text->size(); ++field) {
    const std::size_t end = std::min(text->find(' ', at), text->size());
    const char* first = text->data() + at;
    const char* last = text->data() + end;
    if (field == 3) stat.state = *first;
    if (field == 4) std::from_chars(first, last, stat.parent);
    if (field == 22) {
      if (std::from_chars(first, last, stat.start_ticks).ec != std::errc()) return std::nullopt;
      return stat;
    }
    at = end + 1;
  }
  return std::nullopt;
}

bool IsDead(const ProcStat& stat) { return stat.state == 'Z' || stat.state == 'X'; }

std::string BootId() {
  auto text = ReadProc("/proc/sys/kernel/random/boot_id", 256).value_or("unknown");
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

std::vector<pid_t> AllProcesses() {
  std::vector<pid_t> pids;
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir("/proc"), closedir);
  if (directory == nullptr) return pids;
  while (const dirent* entry = readdir(directory.get())) {
    const char* end = entry->d_name + std::strlen(entry->d_name);
    pid_t pid = 0;
    const auto [stopped, error] = std::from_chars(entry->d_name, end, pid);
    if (error == std::errc() && stopped == end) pids.push_back(pid);
  }
  return pids;
}

/// Whether the environment that the process was started with has the entry. Processes of other
/// users cannot be read and are none of ours.
bool HasEntry(pid_t pid, std::string_view entry) {
  const auto text = ReadProc("/proc/" + std::to_string(pid) + "/environ", std::size_t{4} << 20);
  if (!text.has_value()) return false;
  for (std::size_t at = 0; at < text->size();) {
    const std::size_t end = std::min(text->find('\0', at), text->size());
    if (std::string_view(*text).substr(at, end - at) == entry) return true;
    at = end + 1;
  }
  return false;
}

}  // namespace

void OwnedFd::Reset(int fd) {
  if (fd_ >= 0) close(fd_);
  fd_ = fd;
}

Status ErrnoStatus(std::string_view what, int error) {
  const std::string message = std::string(what) + ": " + std::strerror(error);
  switch (error) {
    case ENOENT:
      return NotFoundError(message);
    case EEXIST:
      return AlreadyExistsError(message);
    case EACCES:
    case EPERM:
      return PermissionDeniedError(message);
    case ENOSPC:
    case EDQUOT:
    case EMFILE:
    case ENFILE:
      return ResourceExhaustedError(message);
    default:
      return UnavailableError(message);
  }
}

Result<KeeperRecord> IdentityOf(pid_t pid) {
  const auto stat = ReadStat(pid);
  if (!stat.has_value() || IsDead(*stat)) {
    return NotFoundError("there is no process " + std::to_string(pid));
  }
  return KeeperRecord{.pid = pid, .start_ticks = stat->start_ticks, .boot = BootId()};
}

Result<OwnedFd> OpenProcess(const KeeperRecord& identity) {
  const auto pid = static_cast<pid_t>(identity.pid);
  const Status gone = NotFoundError("process " + std::to_string(pid) + " has ended");
  if (identity.boot != BootId()) return gone;
  OwnedFd process(PidfdOpen(pid));
  if (!process.valid()) return errno == ESRCH ? gone : ErrnoStatus("pidfd_open", errno);
  // Compared after the descriptor is there: from then on it means one process for ever.
  const auto now = IdentityOf(pid);
  if (!now.ok() || !(*now == identity)) return gone;
  return process;
}

Status SignalProcess(const OwnedFd& process, int signal) {
  if (PidfdSendSignal(process.get(), signal) == 0 || errno == ESRCH) {
    return Status::Ok();
  }
  return ErrnoStatus("pidfd_send_signal", errno);
}

std::vector<pid_t> ChildrenOf(pid_t parent) {
  std::vector<pid_t> children;
  for (const pid_t pid : AllProcesses()) {
    const auto stat = ReadStat(pid);
    if (stat.has_value() && stat->parent == parent) children.push_back(pid);
  }
  return children;
}

std::vector<pid_t> ProcessesWith(std::string_view variable, std::string_view value) {
  const std::string entry = std::string(variable) + "=" + std::string(value);
  std::vector<pid_t> found;
  for (const pid_t pid : AllProcesses()) {
    const auto stat = ReadStat(pid);
    if (stat.has_value() && !IsDead(*stat) && HasEntry(pid, entry)) found.push_back(pid);
  }
  return found;
}

Status KillByEnvironment(std::string_view variable, std::string_view value) {
  const std::string entry = std::string(variable) + "=" + std::string(value);
  const auto deadline = std::chrono::steady_clock::now() + kKillTimeout;
  for (;;) {
    std::vector<OwnedFd> killed;
    std::string names;
    for (const pid_t pid : ProcessesWith(variable, value)) {
      if (pid == getpid()) continue;
      OwnedFd process(PidfdOpen(pid));
      // Compared again with the descriptor in hand: the pid may have changed its owner meanwhile.
      if (!process.valid() || !HasEntry(pid, entry)) continue;
      RETURN_IF_ERROR(SignalProcess(process, SIGKILL));
      killed.push_back(std::move(process));
      names += " " + std::to_string(pid);
    }
    if (killed.empty()) return Status::Ok();
    for (const OwnedFd& process : killed) {
      pollfd wait = {.fd = process.get(), .events = POLLIN, .revents = 0};
      poll(&wait, 1, 1000);
    }
    if (std::chrono::steady_clock::now() > deadline) {
      return DeadlineExceededError("processes that SIGKILL does not end:" + names);
    }
  }
}

}  // namespace cairn
