#include "launch/spawn_shim.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

#include "launch/launch_directory.h"

extern char** environ;

namespace cairn {
namespace {

constexpr char kShimName[] = "cairn-shim";
constexpr int kOwnerFd = 3;

bool IsProgram(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error) && access(path.c_str(), X_OK) == 0;
}

/// Directories in which the shim may lie, the likeliest first.
std::vector<std::filesystem::path> ShimDirectories() {
  std::vector<std::filesystem::path> directories;
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) directories.push_back(program.parent_path());
  Dl_info library = {};
  if (dladdr(reinterpret_cast<const void*>(&FindShim), &library) != 0 &&
      library.dli_fname != nullptr) {
    directories.push_back(std::filesystem::path(library.dli_fname).parent_path());
  }
  const char* path = std::getenv("PATH");
  std::string_view rest(path == nullptr ? "" : path);
  while (!rest.empty()) {
    const std::size_t colon = rest.find(':');
    if (colon != 0) directories.emplace_back(rest.substr(0, colon));
    rest.remove_prefix(colon == std::string_view::npos ? rest.size() : colon + 1);
  }
  return directories;
}

}  // namespace

std::vector<std::string> LaunchEnvironment(const std::string& key, const LaunchSpec& spec) {
  std::map<std::string, std::string> merged;
  if (spec.inherit_env) {
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string_view text(*entry);
      const std::size_t equals = text.find('=');
      if (equals == std::string_view::npos) continue;
      merged.emplace(text.substr(0, equals), text.substr(equals + 1));
    }
  }
  for (const auto& [name, value] : spec.env) merged[name] = value;
  merged[kLaunchKeyVariable] = key;
  std::vector<std::string> entries;
  for (const auto& [name, value] : merged) entries.push_back(name + "=" + value);
  return entries;
}

Result<std::string> FindShim(const std::string& asked) {
  const char* named = std::getenv("CAIRN_SHIM");
  const std::string given = !asked.empty() ? asked : named != nullptr ? named : "";
  if (!given.empty()) {
    if (IsProgram(given)) return given;
    return NotFoundError("there is no program " + given + " to keep launches");
  }
  for (const auto& directory : ShimDirectories()) {
    if (IsProgram(directory / kShimName)) return (directory / kShimName).string();
  }
  return NotFoundError(
      "cairn-shim, which keeps launches, is neither beside this program nor on the PATH; set "
      "CAIRN_SHIM to its path");
}

Result<SpawnedShim> SpawnShim(const std::string& shim, const std::string& directory,
                              const std::string& key, const LaunchSpec& spec) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
    return ErrnoStatus("socketpair", errno);
  }
  SpawnedShim spawned;
  spawned.socket = OwnedFd(ends[0]);
  const OwnedFd theirs(ends[1]);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, theirs.get(), kOwnerFd);
  for (const int fd : {0, 1, 2}) {
    posix_spawn_file_actions_addopen(&actions, fd, "/dev/null", O_RDWR, 0);
  }
  posix_spawn_file_actions_addclosefrom_np(&actions, kOwnerFd + 1);

  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t all;
  sigset_t none;
  sigfillset(&all);
  sigemptyset(&none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);

  std::vector<std::string> entries = LaunchEnvironment(key, spec);
  std::vector<char*> env;
  for (std::string& entry : entries) env.push_back(entry.data());
  env.push_back(nullptr);
  std::string name = shim;
  std::string where = directory;
  std::string owner = std::to_string(kOwnerFd);
  char* const argv[] = {name.data(), where.data(), owner.data(), nullptr};
  const int error =
      posix_spawn(&spawned.pid, shim.c_str(), &actions, &attributes, argv, env.data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) return ErrnoStatus("start " + shim, error);
  return spawned;
}

}  // namespace cairn
