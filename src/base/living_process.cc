#include "base/living_process.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <fstream>
#include <limits>
#include <optional>
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

/// The 22nd field of <proc>/<pid>/stat; "" for one that has ended, and is perhaps not waited for.
/// Nothing when there is no such file.
std::optional<std::string> StartTicks(std::int64_t pid, const std::string& proc) {
  const std::string stat = FirstLineOf(proc + "/" + std::to_string(pid) + "/stat");
  // The second field is the program's name in parentheses, which may hold anything.
  const std::size_t name_end = stat.rfind(')');
  if (name_end == stat.npos) return std::nullopt;
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
  const std::string start = StartTicks(pid, "/proc").value_or("");
  return here.empty() || start.empty() ? "" : here + start;
}

ProcessLife LifeOf(std::int64_t pid, std::string_view identity, const std::string& proc) {
  if (pid <= 0 || pid > std::numeric_limits<pid_t>::max()) return ProcessLife::kUnknown;
  const auto has_pid = [&] { return kill(static_cast<pid_t>(pid), 0) == 0 || errno != ESRCH; };
  if (identity.empty()) return has_pid() ? ProcessLife::kLives : ProcessLife::kEnded;
  const std::string here = Here();
  if (here.empty() || !identity.starts_with(here)) return ProcessLife::kUnknown;
  const std::optional<std::string> start = StartTicks(pid, proc);
  // A proc that is mounted with hidepid shows nobody the processes of others.
  if (!start) return has_pid() ? ProcessLife::kUnknown : ProcessLife::kEnded;
  return identity.substr(here.size()) == *start ? ProcessLife::kLives : ProcessLife::kEnded;
}

}  // namespace cairn
