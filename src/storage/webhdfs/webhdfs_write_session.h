#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <cairn/status.h>

#include "base/thread_annotations.h"
#include "storage/parted_write_session.h"
#include "storage/webhdfs/webhdfs_client.h"

namespace cairn {

/// Writes files to HDFS. For one thread at a time.
///
/// Each part is a file of its own under `.cairn-tmp/<session>/<name>/`, written and synced beside
/// the others by a few threads, straight from the caller's memory, and written again when a
/// DataNode fails. When an object was closed and all parts are there, the NameNode joins them
/// (CONCAT, which moves blocks and no bytes) and gives the file its name, which must be free.
///
/// An object that is resumed takes the directory of its parts away from the session that left it,
/// by a rename, so that one that is still alive writes elsewhere. A part that has its size is read
/// back; one that was being written is written again.
///
/// Destruction deletes what is not finished, unless it is to be left.
class WebHdfsWriteSession final : public PartedWriteSession {
 public:
  WebHdfsWriteSession(std::shared_ptr<WebHdfsClient> client, std::string id);
  ~WebHdfsWriteSession() override;
  WebHdfsWriteSession(const WebHdfsWriteSession&) = delete;
  WebHdfsWriteSession& operator=(const WebHdfsWriteSession&) = delete;

 private:
  /// Work for a thread: write a part, or (no part) put an object together.
  struct Task {
    std::uint32_t object = 0;
    std::optional<Transfer> part;
  };

  Status CheckFree(const std::string& name) override;
  Status FindLeft(const Object& object) override;
  void Opened() override REQUIRES(mu_);
  Result<bool> ReadLeftPart(const Transfer& due, std::span<std::byte> into) override;
  Result<bool> HoldsLeftPart(const Transfer& due) override;
  Status Send(const Transfer& transfer) override;
  Status Finish(std::uint32_t id) override;
  void StopAll() override;
  /// Queues the task, on the caller's thread.
  Status Add(Task task) EXCLUDES(mu_);

  void Work();
  Status PutTogether(const Object& object);
  void Done(const Task& task, Status status) REQUIRES(mu_);

  /// The directory of an object's parts, and one of them.
  std::string PartsPath(const Object& object) const;
  std::string PartPath(const Object& object, std::size_t part) const;

  const std::shared_ptr<WebHdfsClient> client_;  // shared with the store, which it may outlive
  const std::string id_;
  const int depth_;
  // The caller's thread's alone.
  std::set<std::size_t> found_;              // parts that were left, for Opened
  std::vector<std::set<std::size_t>> left_;  // the same, by object
  std::optional<std::pair<std::uint32_t, std::size_t>> read_back_;  // the last object and part

  bool stopping_ GUARDED_BY(mu_) = false;
  std::deque<Task> tasks_ GUARDED_BY(mu_);
  std::vector<std::jthread> threads_;  // the caller's thread starts and ends them
};

}  // namespace cairn
