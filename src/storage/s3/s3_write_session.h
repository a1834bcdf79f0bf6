#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <cairn/status.h>

#include "base/thread_annotations.h"
#include "storage/parted_write_session.h"
#include "storage/s3/s3_client.h"
#include "storage/s3/s3_replies.h"

namespace cairn {

/// Uploads objects to a bucket. For one thread at a time.
///
/// An object of one part is put in one request; a larger one is a multipart upload, whose parts go
/// out in parallel and which is completed, in the background too, when its last part has arrived
/// and it was closed: only then it is visible. Every part carries its CRC-32C, and what puts the
/// object into its place says `If-None-Match: *`.
///
/// An answer that was lost is not taken for a failure: a name that is taken, or an upload that is
/// gone, on a repeated request is looked at, and is ours when size and checksum are.
///
/// An object that is resumed goes on with the upload of that key that has most parts of the right
/// sizes. What is unfinished cannot be read, so a part is kept when its CRC-32C, which the server
/// has, is that of the bytes that belong there.
///
/// Destruction gives up the uploads that are open, unless they are to be left.
class S3WriteSession final : public PartedWriteSession {
 public:
  struct Options {
    bool conditional = true;  // the server heeds `If-None-Match: *`
    std::size_t parts = 0;    // that an upload may have
  };
  S3WriteSession(std::shared_ptr<S3Client> client, const Options& options);
  ~S3WriteSession() override;
  S3WriteSession(const S3WriteSession&) = delete;
  S3WriteSession& operator=(const S3WriteSession&) = delete;

 private:
  struct Part {
    std::uint32_t crc = 0;
    std::string etag;
  };
  /// What the server knows of an object; one for each of objects_.
  struct Upload {
    std::string key;
    std::string id;  // of a multipart upload; "" until the server gave it
    std::vector<Part> parts;
    std::vector<Transfer> waiting;                 // for the id
    std::map<std::size_t, S3PartPage::Part> left;  // of an earlier session, by number of the part
    bool multipart() const { return parts.size() > 1; }
  };

  Status CheckFree(const std::string& name) override;
  Status FindLeft(const Object& object) override;
  void Opened() override REQUIRES(mu_);
  Result<bool> ReadLeftPart(const Transfer& due, std::span<std::byte> into) override;
  Result<bool> HoldsLeftPart(const Transfer& due) override;
  Status Send(const Transfer& transfer) override;
  Status Finish(std::uint32_t id) override;
  void StopAll() override;

  // On either thread.
  void StartCreate(std::uint32_t id) REQUIRES(mu_);
  void StartPart(const Transfer& transfer) REQUIRES(mu_);
  void StartWholePut(const Transfer& transfer) REQUIRES(mu_);
  void StartComplete(std::uint32_t id) REQUIRES(mu_);
  /// Looks whether an object that is in the way is the one that this session wrote; `mine` runs if
  /// it is.
  void StartRecognize(std::uint32_t id, Status otherwise, std::function<void()> mine) REQUIRES(mu_);
  /// Starts the request and counts it until `done` ran, under the lock, on the client's thread.
  void StartCall(S3Request request, std::function<void(S3Outcome&)> done) REQUIRES(mu_);

  // On the client's thread.
  void Created(std::uint32_t id, S3Outcome& outcome) REQUIRES(mu_);
  void PartDone(const Transfer& transfer, S3Outcome& outcome) REQUIRES(mu_);
  void WholePutDone(const Transfer& transfer, S3Outcome& outcome) REQUIRES(mu_);
  void WholeStored(const Transfer& transfer) REQUIRES(mu_);
  void Completed(std::uint32_t id, S3Outcome& outcome) REQUIRES(mu_);
  bool IsMine(std::uint32_t id, const S3Outcome& outcome) REQUIRES(mu_);

  const std::shared_ptr<S3Client> client_;  // shared with the store, which it may outlive
  const bool conditional_;
  std::optional<Upload> found_;  // by FindLeft, for Opened; the caller's thread
  bool stopped_ GUARDED_BY(mu_) = false;
  std::vector<Upload> uploads_ GUARDED_BY(mu_);
  std::set<HttpClient::CallId> calls_ GUARDED_BY(mu_);
  int in_flight_ GUARDED_BY(mu_) = 0;  // requests, callbacks included
};

}  // namespace cairn
