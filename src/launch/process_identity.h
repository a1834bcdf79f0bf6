#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <cairn/status.h>

#include "launch/launch_records.h"

namespace cairn {

/// A file descriptor that is closed with its owner.
class OwnedFd {
 public:
  OwnedFd() = default;
  explicit OwnedFd(int fd) : fd_(fd) {}
  ~OwnedFd() { Reset(); }
  OwnedFd(OwnedFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  OwnedFd& operator=(OwnedFd&& other) noexcept {
    if (this != &other) Reset(std::exchange(other.fd_, -1));
    return *this;
  }
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void Reset(int fd = -1);

 private:
  int fd_ = -1;
};

/// Who a process is for ever: its pid together with when it began and the machine's boot. NotFound
/// when there is no such process (or only its zombie).
Result<KeeperRecord> IdentityOf(pid_t pid);

/// A descriptor of exactly that process (pidfd_open): readable when it has ended, and safe to
/// signal through, because it never means another process that got the same pid. NotFound when it
/// has ended.
Result<OwnedFd> OpenProcess(const KeeperRecord& identity);

/// Sends a signal through OpenProcess's descriptor. OK when the process has ended.
Status SignalProcess(const OwnedFd& process, int signal);

/// The children of a process, zombies included.
std::vector<pid_t> ChildrenOf(pid_t parent);

/// The living processes of this user whose environment, as they were started with it, says
/// `variable`=`value`.
std::vector<pid_t> ProcessesWith(std::string_view variable, std::string_view value);

/// Kills all processes of this user whose environment says `variable`=`value`, and what they start
/// meanwhile, until none is left; the caller itself is left alone. DeadlineExceeded naming pids
/// when some do not go away (a process in uninterruptible sleep).
Status KillByEnvironment(std::string_view variable, std::string_view value);

/// Text of an errno: "open x: No such file or directory".
Status ErrnoStatus(std::string_view what, int error);

}  // namespace cairn
