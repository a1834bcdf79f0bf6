#include "base/living_process.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>

namespace cairn {
namespace {

std::string FirstLineOf(const std::string& path) {
  std::string line;
  std::getline(std::ifstream(path), line);
  return line;
}

/// "pid:[4026531836]": which container, as far as pids are concerned.
std::string PidNamespace() {
  char target[PATH_MAX];
  const ssize_t length = readlink("/proc/self/ns/pid", target, sizeof target);
  return length <= 0 ? "" : std::string(target, static_cast<std::size_t>(length));
}

/// The 22nd field of /proc/<pid>/stat; "" for one that has ended, and is perhaps not waited for.
std::string StartTicks(std::int64_t pid) {
  const std::string stat = FirstLineOf("/proc/" + std::to_string(pid) + "/stat");
  // The second field is the program's name in parentheses, which may hold anything.
  const std::size_t name_end = stat.rfind(')');
  if (name_end == stat.npos) return "";
  std::istringstream fields(stat.substr(name_end + 1));
  std::string field;
  for (int number = 3; number <= 22 && fields >> field; ++number) {
    if (number == 3 && (field == "Z" || field == "X")) return "";
    if (number == 22) return field;
  }
  return "";
}

/// What all processes that can be told apart by pid and start have in common; "": not known.
std::string Here() {
  const std::string boot = FirstLineOf("/proc/sys/kernel/random/boot_id");
  const std::string container = PidNamespace();
  return boot.empty() || container.empty() ? "" : boot + " " + container + " ";
}

}  // namespace

std::string ProcessIdentity(std::int64_t pid) {
  const std::string here = Here();
  const std::string start = StartTicks(pid);
  return here.empty() || start.empty() ? "" : here + start;
}

ProcessLife LifeOf(std::int64_t pid, std::string_view identity) {
  if (pid <= 0 || pid > std::numeric_limits<pid_t>::max()) return ProcessLife::kUnknown;
  if (identity.empty()) {
    const bool none = kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH;
    return none ? ProcessLife::kEnded : ProcessLife::kLives;
  }
  const std::string here = Here();
  if (here.empty() || !identity.starts_with(here)) return ProcessLife::kUnknown;
  return identity.substr(here.size()) == StartTicks(pid) ? ProcessLife::kLives
                                                         : ProcessLife::kEnded;
}

}  // namespace cairn
