#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <cairn/status.h>

#include "base/thread_annotations.h"
#include "storage/store.h"
#include "storage/webhdfs/webhdfs_client.h"

namespace cairn {

/// Writes files to HDFS. For one thread at a time.
///
/// Each part is a file of its own under `.cairn-tmp/<session>/<name>/`, written and synced beside
/// the others by a few threads, straight from the caller's memory, and written again when a
/// DataNode fails. When an object was closed and all parts are there, the NameNode joins them
/// (CONCAT, which moves blocks and no bytes) and gives the file its name, which must be free.
///
/// After an error nothing is in flight any more, every call returns that error, and the parts have
/// been deleted, as far as the server could be reached. Destruction deletes what is not finished.
class WebHdfsWriteSession final : public WriteSession {
 public:
  WebHdfsWriteSession(std::shared_ptr<WebHdfsClient> client, std::string id);
  ~WebHdfsWriteSession() override;

  std::size_t part_bytes() const override { return client_->config().part_bytes; }
  Result<std::uint32_t> Open(const std::string& name, const NewObject& object) override;
  Status Append(std::uint32_t object, std::span<const std::byte> part, bool padded,
                std::uint64_t tag) override;
  Status Close(std::uint32_t object) override;
  Result<std::uint64_t> WaitPart() override;
  Status Drain() override;

 private:
  struct Object {
    std::string name;
    std::string path;
    std::string parts_path;  // the directory of its parts
    std::uint64_t bytes = 0;
    std::uint64_t appended = 0;
    std::size_t parts = 0;
    std::size_t arrived = 0;
    bool closed = false;
    bool done = false;
  };
  /// Work for a thread: write a part, or (no part) put an object together.
  struct Task {
    std::uint32_t object = 0;
    std::optional<std::size_t> part;
    std::span<const std::byte> bytes;
    std::uint64_t tag = 0;
  };

  Status OpenUnchecked(const std::string& name, const NewObject& object, std::uint32_t* id);
  Status AppendUnchecked(std::uint32_t id, std::span<const std::byte> part, std::uint64_t tag);
  Status CloseUnchecked(std::uint32_t id);
  Status CheckObject(std::uint32_t id) REQUIRES(mu_);
  /// Queues the task, on the caller's thread.
  Status Add(Task task) EXCLUDES(mu_);

  void Work();
  Status Do(const Task& task, const Object& object);
  Status Finish(const Object& object);
  void Done(const Task& task, Status status) REQUIRES(mu_);

  std::string PartPath(const Object& object, std::size_t part) const;
  /// Ends what is in flight, deletes what is not finished, returns the error. On the caller's
  /// thread.
  Status Condemn(Status status) EXCLUDES(mu_);
  void Stop() EXCLUDES(mu_);

  const std::shared_ptr<WebHdfsClient> client_;  // shared with the store, which it may outlive
  const std::string id_;
  const int depth_;

  Mutex mu_;
  CondVar changed_;
  Status condemned_ GUARDED_BY(mu_);
  bool stopping_ GUARDED_BY(mu_) = false;
  std::vector<Object> objects_ GUARDED_BY(mu_);
  std::deque<Task> tasks_ GUARDED_BY(mu_);
  int parts_ GUARDED_BY(mu_) = 0;               // borrowed
  std::size_t unfinished_ GUARDED_BY(mu_) = 0;  // closed and not done
  std::deque<std::uint64_t> tags_ GUARDED_BY(mu_);
  std::vector<std::jthread> threads_;  // the caller's thread starts and ends them
};

}  // namespace cairn
