#include "serving/directory_watch.h"

#include <dirent.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <new>
#include <string_view>
#include <utility>

#include "checkpoint/names.h"

namespace cairn::serving {
namespace {

namespace fs = std::filesystem;

constexpr std::uint32_t kEvents =
    IN_CREATE | IN_MOVED_TO | IN_DELETE | IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR;

/// A look too many does no harm, and neither the clock nor poll take times without end.
constexpr std::chrono::hours kLongestWait{24};

/// Files of rows and variables come and go all the time; only these change what counts.
bool Matters(std::string_view name) {
  return name == names::kManifest || name == names::kRepository || name.ends_with(".seal.json");
}

}  // namespace

Result<std::unique_ptr<DirectoryWatch>> DirectoryWatch::Open(std::string path) {
  const int wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake < 0) {
    return ResourceExhaustedError(std::string("eventfd: ") + std::strerror(errno));
  }
  // Without inotify (a limit of the system, an odd file system) there is still the timeout.
  const int events = path.empty() ? -1 : inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
  path = fs::path(path).lexically_normal().string();
  return std::unique_ptr<DirectoryWatch>(new DirectoryWatch(std::move(path), events, wake));
}

DirectoryWatch::~DirectoryWatch() {
  if (events_ >= 0) close(events_);
  close(wake_);
}

bool DirectoryWatch::Add(const std::string& directory) {
  const int number = inotify_add_watch(events_, directory.c_str(), kEvents);
  if (number < 0) return false;
  watched_[number] = directory;
  return true;
}

bool DirectoryWatch::AddNearest() {
  // Not there yet, or gone: the nearest directory above tells when it, or what leads to it,
  // appears. What appears between a refused watch and that of its parent is told by nobody, so
  // each step up is followed by another look down.
  for (fs::path above = path_; above.has_relative_path();) {
    const fs::path missing = above;
    above = above.parent_path();
    if (above.empty()) above = ".";
    if (!Add(above.string())) continue;
    if (!Add(missing.string())) return false;
    if (missing == path_) return true;
    above = path_;
  }
  return false;
}

void DirectoryWatch::Arm() {
  if (events_ < 0) return;
  if (!Add(path_) && !AddNearest()) return;
  // Not std::filesystem: its iterator ends the process when there is no memory.
  const std::unique_ptr<DIR, void (*)(DIR*)> directory(opendir(path_.c_str()),
                                                       [](DIR* open) { closedir(open); });
  while (const dirent* entry = directory == nullptr ? nullptr : readdir(directory.get())) {
    const std::string_view name = entry->d_name;
    // What is no directory is refused a watch.
    const bool may_be =
        entry->d_type == DT_DIR || entry->d_type == DT_UNKNOWN || entry->d_type == DT_LNK;
    if (may_be && name != "." && name != "..") Add(path_ + "/" + entry->d_name);
  }
}

bool DirectoryWatch::LeadsToRepository(const std::string& directory,
                                       const std::string& name) const {
  const std::string child =
      (directory == "." ? fs::path(name) : fs::path(directory) / name).string();
  return directory.size() < path_.size() && path_.starts_with(child) &&
         (path_.size() == child.size() || path_[child.size()] == '/');
}

bool DirectoryWatch::ReadEvents() {
  bool matters = false;
  alignas(inotify_event) char buffer[16384];
  for (;;) {
    const ssize_t got = read(events_, buffer, sizeof(buffer));
    if (got <= 0) return matters;
    for (ssize_t at = 0; at < got;) {
      inotify_event event;
      std::memcpy(&event, buffer + at, sizeof(event));
      const char* begin = buffer + at + sizeof(event);
      const std::string name(begin, strnlen(begin, event.len));
      at += static_cast<ssize_t>(sizeof(event) + event.len);
      const auto it = watched_.find(event.wd);
      if ((event.mask & IN_Q_OVERFLOW) != 0) matters = true;
      if (it == watched_.end()) continue;
      const std::string directory = it->second;
      if ((event.mask & IN_IGNORED) != 0) {
        watched_.erase(it);
        continue;
      }
      if ((event.mask & (IN_DELETE_SELF | IN_MOVE_SELF)) != 0) {
        matters |= directory == path_;
        if ((event.mask & IN_MOVE_SELF) != 0) inotify_rm_watch(events_, event.wd);
        continue;
      }
      if (directory == path_ && (event.mask & IN_ISDIR) != 0 && (event.mask & IN_DELETE) == 0) {
        // A new checkpoint: it may have been committed before the watch was there.
        std::error_code unknown;
        const std::string made = directory + "/" + name;
        if (Add(made) && fs::exists(made + "/" + std::string(names::kManifest), unknown)) {
          matters = true;
        }
        continue;
      }
      matters |= LeadsToRepository(directory, name) || Matters(name);
    }
  }
}

void DirectoryWatch::Wait(std::chrono::nanoseconds timeout) {
  const auto end =
      std::chrono::steady_clock::now() + std::min<std::chrono::nanoseconds>(timeout, kLongestWait);
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        end - std::chrono::steady_clock::now());
    pollfd fds[2] = {{wake_, POLLIN, 0}, {events_, POLLIN, 0}};
    const int timeout_ms = left.count() < 0 ? 0 : static_cast<int>(left.count()) + 1;
    const int ready = poll(fds, events_ < 0 ? 1 : 2, timeout_ms);
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return;
    if ((fds[0].revents & POLLIN) != 0) {
      std::uint64_t count = 0;
      (void)!read(wake_, &count, sizeof(count));
      return;
    }
    try {
      if (ReadEvents()) return;
    } catch (const std::bad_alloc&) {
      return;  // what was told is lost: there may be something new
    }
  }
}

void DirectoryWatch::Wake() {
  const std::uint64_t one = 1;
  (void)!write(wake_, &one, sizeof(one));
}

}  // namespace cairn::serving
