#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>

#include <cairn/status.h>

#include "base/thread_annotations.h"
#include "storage/s3/s3_client.h"
#include "storage/store.h"

namespace cairn {

/// An object of a bucket as it was when it was opened: each read asks for its ETag, so that one
/// that was replaced or deleted is NotFound and never mixed with its successor. May be used from
/// several threads.
class S3Reader final : public ObjectReader {
 public:
  S3Reader(std::shared_ptr<S3Client> client, std::string name, std::string key, std::uint64_t bytes,
           std::string etag)
      : client_(std::move(client)),
        name_(std::move(name)),
        key_(std::move(key)),
        bytes_(bytes),
        etag_(std::move(etag)) {}

  const std::string& name() const override { return name_; }
  std::uint64_t bytes() const override { return bytes_; }
  Status Read(std::uint64_t offset, std::span<std::byte> into) override;

  /// The request for a range that lies inside of the object.
  S3Request RangeRequest(std::uint64_t offset, std::span<std::byte> into) const;
  /// What its answer means. One that is too short, or of another range, is no damage: the object
  /// of this ETag has those bytes, so somebody on the way cut them off, and another try may help.
  Status Judge(std::uint64_t offset, std::size_t bytes, const Result<HttpResponse>& response) const;

 private:
  std::shared_ptr<S3Client> client_;  // shared with the store, which it may outlive
  const std::string name_;
  const std::string key_;
  const std::uint64_t bytes_;
  const std::string etag_;
};

/// Ranged reads in flight, each a request of its own. For one thread at a time.
class S3ReadQueue final : public ReadQueue {
 public:
  S3ReadQueue(std::shared_ptr<S3Client> client, int depth)
      : client_(std::move(client)), depth_(depth) {}
  ~S3ReadQueue() override;

  int depth() const override { return depth_; }
  int in_flight() const override;
  Status Submit(ObjectReader* reader, std::uint64_t offset, std::span<std::byte> into,
                std::uint64_t tag) override;
  Result<Done> Wait() override;

 private:
  std::shared_ptr<S3Client> client_;  // shared with the store, which it may outlive
  const int depth_;
  mutable Mutex mu_;
  CondVar ready_;
  int in_flight_ GUARDED_BY(mu_) = 0;  // submitted and not yet returned by Wait
  std::deque<Done> done_ GUARDED_BY(mu_);
};

}  // namespace cairn
