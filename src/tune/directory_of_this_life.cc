#include "tune/directory_of_this_life.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <string_view>
#include <vector>

namespace cairn::tune {
namespace {

namespace fs = std::filesystem;

/// The directory, locked; none when a living process holds it.
OwnedFd Hold(const std::string& path) {
  OwnedFd directory(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (directory.get() < 0 || flock(directory.get(), LOCK_EX | LOCK_NB) != 0) return OwnedFd();
  return directory;
}

void RemoveThoseOfTheDead(const fs::path& parent, std::string_view prefix,
                          std::chrono::seconds unlocked_for) {
  std::vector<std::string> found;
  std::error_code error;
  for (fs::directory_iterator it(parent, error), end; !error && it != end; it.increment(error)) {
    if (it->path().filename().string().starts_with(prefix)) found.push_back(it->path().string());
  }
  for (const std::string& path : found) {
    const OwnedFd held = Hold(path);
    struct stat stat = {};
    if (held.get() < 0 || fstat(held.get(), &stat) != 0) continue;
    const bool old = stat.st_mtime + unlocked_for.count() <= std::time(nullptr);
    if (stat.st_uid == geteuid() && old) fs::remove_all(path, error);
  }
}

}  // namespace

DirectoryOfThisLife::~DirectoryOfThisLife() { Remove(); }

void DirectoryOfThisLife::Remove() {
  std::error_code error;
  if (!path_.empty()) fs::remove_all(path_, error);
  path_.clear();
  held_ = OwnedFd();
}

Status DirectoryOfThisLife::Make(const std::string& parent, std::chrono::seconds unlocked_for) {
  std::error_code error;
  fs::path where = parent.empty() ? fs::temp_directory_path(error) : fs::path(parent);
  if (error) where = "/tmp";
  RemoveThoseOfTheDead(where, prefix_, unlocked_for);
  std::string made = (where / prefix_).string() + "XXXXXX";
  if (mkdtemp(made.data()) == nullptr) {
    return UnavailableError("no directory can be made in " + where.string() + ": " +
                            std::strerror(errno));
  }
  path_ = made;
  held_ = Hold(path_);
  return Status::Ok();
}

}  // namespace cairn::tune
