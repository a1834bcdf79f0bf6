#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <cairn/status.h>

#include "base/thread_annotations.h"
#include "storage/store.h"
#include "storage/webhdfs/webhdfs_client.h"

namespace cairn {

/// A file of HDFS as it was when it was opened: it is read by its inode, so that one that was
/// replaced or deleted is NotFound and never mixed with its successor. May be used from several
/// threads.
class WebHdfsReader final : public ObjectReader {
 public:
  WebHdfsReader(std::shared_ptr<WebHdfsClient> client, std::string name,
                const HdfsFileStatus& status)
      : client_(std::move(client)),
        name_(std::move(name)),
        bytes_(status.bytes),
        path_("/.reserved/.inodes/" + std::to_string(status.file_id)) {}

  const std::string& name() const override { return name_; }
  std::uint64_t bytes() const override { return bytes_; }
  Status Read(std::uint64_t offset, std::span<std::byte> into) override;

 private:
  std::shared_ptr<WebHdfsClient> client_;  // shared with the store, which it may outlive
  const std::string name_;
  const std::uint64_t bytes_;
  const std::string path_;
};

/// Ranged reads in flight, on threads that start with the first of them. For one thread at a time.
class WebHdfsReadQueue final : public ReadQueue {
 public:
  WebHdfsReadQueue(int depth, int threads);
  ~WebHdfsReadQueue() override;

  int depth() const override { return depth_; }
  int in_flight() const override;
  Status Submit(ObjectReader* reader, std::uint64_t offset, std::span<std::byte> into,
                std::uint64_t tag) override;
  Result<Done> Wait() override;

 private:
  struct Task {
    WebHdfsReader* reader = nullptr;
    std::uint64_t offset = 0;
    std::span<std::byte> into;
    std::uint64_t tag = 0;
  };
  void Work();

  const int depth_;
  const std::size_t max_threads_;
  mutable Mutex mu_;
  CondVar changed_;
  bool stopping_ GUARDED_BY(mu_) = false;
  std::deque<Task> tasks_ GUARDED_BY(mu_);
  int in_flight_ GUARDED_BY(mu_) = 0;  // submitted and not yet returned by Wait
  std::deque<Done> done_ GUARDED_BY(mu_);
  std::vector<std::jthread> threads_;  // the caller's thread starts them
};

}  // namespace cairn
