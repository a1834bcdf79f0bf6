#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <cairn/status.h>

#include "base/thread_annotations.h"
#include "storage/s3/s3_client.h"
#include "storage/store.h"

namespace cairn {

/// Uploads objects to a bucket. For one thread at a time.
///
/// An object of one part is put in one request; a larger one is a multipart upload, whose parts go
/// out in parallel and which is completed, in the background too, when its last part has arrived
/// and it was closed: only then it is visible. Parts are sent straight from the caller's memory;
/// parts_in_flight() bounds how much is borrowed. Every part carries its CRC-32C, and what puts the
/// object into its place says `If-None-Match: *`.
///
/// An answer that was lost is not taken for a failure: a name that is taken, or an upload that is
/// gone, on a repeated request is looked at, and is ours when size and checksum are.
///
/// After an error nothing is in flight any more, every call returns that error, and the uploads
/// have been given up, as far as the server could be reached. Destruction gives up what is open.
class S3WriteSession final : public WriteSession {
 public:
  /// `conditional`: the server heeds `If-None-Match: *`.
  S3WriteSession(std::shared_ptr<S3Client> client, bool conditional);
  ~S3WriteSession() override;
  S3WriteSession(const S3WriteSession&) = delete;
  S3WriteSession& operator=(const S3WriteSession&) = delete;

  std::size_t part_bytes() const override { return client_->config().part_bytes; }
  int parts_in_flight() const { return depth_; }
  Result<std::uint32_t> Open(const std::string& name, const NewObject& object) override;
  Status Append(std::uint32_t object, std::span<const std::byte> part, bool padded,
                std::uint64_t tag) override;
  Status Close(std::uint32_t object) override;
  Result<std::uint64_t> WaitPart() override;
  Status Drain() override;

 private:
  struct Part {
    std::uint32_t crc = 0;
    std::string etag;
  };
  /// A part on its way, or waiting for the upload's id.
  struct Transfer {
    std::uint32_t object = 0;
    std::size_t part = 0;
    std::span<const std::byte> bytes;
    std::uint64_t tag = 0;
  };
  enum class Stage : std::uint8_t { kOpen, kClosed, kCompleting, kDone };
  struct Object {
    std::string name;
    std::string key;
    std::uint64_t bytes = 0;
    std::uint64_t appended = 0;
    Stage stage = Stage::kOpen;
    std::string upload;  // the id; "" until the server gave it
    bool multipart = false;
    std::vector<Part> parts;
    std::size_t arrived = 0;        // of the parts
    std::vector<Transfer> waiting;  // for the id
  };

  Status OpenUnchecked(const std::string& name, const NewObject& object, std::uint32_t* id);
  Status AppendUnchecked(std::uint32_t id, std::span<const std::byte> part, std::uint64_t tag);
  Status CloseUnchecked(std::uint32_t id);

  // On either thread.
  void StartCreate(std::uint32_t id) REQUIRES(mu_);
  void StartPart(const Transfer& transfer) REQUIRES(mu_);
  void StartWholePut(const Transfer& transfer) REQUIRES(mu_);
  void StartComplete(std::uint32_t id) REQUIRES(mu_);
  /// Looks whether an object that is in the way is the one that this session wrote.
  void StartRecognize(std::uint32_t id, Status otherwise) REQUIRES(mu_);
  /// Starts the request and counts it until `done` ran, under the lock, on the client's thread.
  void StartCall(S3Request request, std::function<void(S3Outcome&)> done) REQUIRES(mu_);

  // On the client's thread.
  void Created(std::uint32_t id, S3Outcome& outcome) REQUIRES(mu_);
  void PartDone(const Transfer& transfer, S3Outcome& outcome) REQUIRES(mu_);
  void WholePutDone(const Transfer& transfer, S3Outcome& outcome) REQUIRES(mu_);
  void Completed(std::uint32_t id, S3Outcome& outcome) REQUIRES(mu_);
  void Recognized(std::uint32_t id, const Status& otherwise, S3Outcome& outcome) REQUIRES(mu_);

  void ObjectDone(std::uint32_t id) REQUIRES(mu_);
  void TagDone(const Transfer& transfer) REQUIRES(mu_);
  void Fail(Status status) REQUIRES(mu_);
  /// Ends what is in flight and gives up the uploads; then returns the error. On the caller's
  /// thread.
  Status Condemn(Status status) EXCLUDES(mu_);
  void StopAll() EXCLUDES(mu_);
  Status CheckObject(std::uint32_t id) REQUIRES(mu_);

  const std::shared_ptr<S3Client> client_;  // shared with the store, which it may outlive
  const int depth_;
  const bool conditional_;

  Mutex mu_;
  CondVar changed_;
  Status condemned_ GUARDED_BY(mu_);
  bool stopped_ GUARDED_BY(mu_) = false;
  std::vector<Object> objects_ GUARDED_BY(mu_);
  std::size_t unfinished_ GUARDED_BY(mu_) = 0;      // closed and not done
  int parts_ GUARDED_BY(mu_) = 0;                   // borrowed
  std::deque<std::uint64_t> tags_ GUARDED_BY(mu_);  // to be given back by WaitPart
  std::set<HttpClient::CallId> calls_ GUARDED_BY(mu_);
  int in_flight_ GUARDED_BY(mu_) = 0;  // requests, callbacks included
};

}  // namespace cairn
