#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>

#include <cairn/status.h>

namespace cairn::serving {

/// Wakes a follower: when something is committed or sealed in a repository on a local disk
/// (inotify), when somebody says so, or when time is up. What it tells is a hint: whoever is woken
/// looks for himself, and without any hint he looks when time is up.
class DirectoryWatch {
 public:
  /// `path`: of the repository, which need not be there yet; "" for one on a bucket or a cluster.
  static Result<std::unique_ptr<DirectoryWatch>> Open(std::string path);
  ~DirectoryWatch();
  DirectoryWatch(const DirectoryWatch&) = delete;
  DirectoryWatch& operator=(const DirectoryWatch&) = delete;

  /// Looks which directories there are. Called before the repository is read, so that nothing that
  /// happens afterwards is missed. One thread, like Wait.
  void Arm();
  /// Returns when there may be something new, or after `timeout`.
  void Wait(std::chrono::nanoseconds timeout);
  /// Ends the Wait that is under way, or the next one. Any thread.
  void Wake();

 private:
  DirectoryWatch(std::string path, int events, int wake)
      : path_(std::move(path)), events_(events), wake_(wake) {}
  bool Add(const std::string& directory);
  bool AddNearest();
  bool LeadsToRepository(const std::string& directory, const std::string& name) const;
  bool ReadEvents();

  const std::string path_;
  const int events_;                    // inotify; -1 without
  const int wake_;                      // eventfd
  std::map<int, std::string> watched_;  // by inotify's number: path
};

}  // namespace cairn::serving
