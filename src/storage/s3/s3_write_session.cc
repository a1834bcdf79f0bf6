#include "storage/s3/s3_write_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/status_macros.h"
#include "storage/s3/crc32c.h"
#include "storage/s3/s3_errors.h"
#include "storage/s3/s3_limits.h"
#include "storage/s3/s3_replies.h"
#include "storage/s3/s3_uploads.h"
#include "storage/s3/xml.h"

namespace cairn {
namespace {

constexpr int kMaxInFlight = 8;

}  // namespace

S3WriteSession::S3WriteSession(std::shared_ptr<S3Client> client, const Options& options)
    : PartedWriteSession({.part_bytes = client->config().part_bytes,
                          .parts = options.parts,
                          .largest_part_bytes = kS3RequestBytes,
                          .in_flight = std::min(client->config().connections, kMaxInFlight),
                          .too_large = kS3ObjectLimit}),
      client_(std::move(client)),
      conditional_(options.conditional) {}

S3WriteSession::~S3WriteSession() { StopAll(); }

// ---------------------------------------------------------------- the caller's side

Status S3WriteSession::CheckFree(const std::string& name) {
  const std::string key = client_->config().KeyOf(name);
  const auto there = client_->Expect({.what = "look up", .method = "HEAD", .key = key});
  if (there.ok()) {
    return AlreadyExistsError("\"s3://" + client_->config().bucket + "/" + key + "\" exists");
  }
  return there.status().Is(Code::kNotFound) ? Status::Ok() : there.status();
}

Status S3WriteSession::FindLeft(const Object& object) {
  found_.reset();
  if (object.parts < 2) return Status::Ok();
  const std::string key = client_->config().KeyOf(object.name);
  ASSIGN_OR_RETURN(const auto uploads, ListUploads(client_.get(), key));
  for (const S3UploadPage::Upload& upload : uploads) {
    if (upload.key != key) continue;
    const auto parts = ListParts(client_.get(), upload);
    if (parts.status().Is(Code::kFailedPrecondition)) continue;  // its writer lives, and ended it
    if (parts.status().Is(Code::kPermissionDenied)) {
      LogWarning("what was uploaded of \"" + key +
                 "\" is sent again: the key may not list it (s3:ListMultipartUploadParts): " +
                 parts.status().ToString());
      return Status::Ok();
    }
    RETURN_IF_ERROR(parts.status());
    Upload left{.id = upload.id};
    for (const S3PartPage::Part& part : *parts) {
      if (part.number == 0 || part.number > object.parts) continue;
      const std::uint64_t begin = (part.number - 1) * object.part_bytes;
      if (part.bytes != std::min<std::uint64_t>(object.part_bytes, object.bytes - begin)) continue;
      left.left.emplace(part.number - 1, part);
    }
    if (left.left.size() > (found_ ? found_->left.size() : 0)) found_ = std::move(left);
  }
  return Status::Ok();
}

void S3WriteSession::Opened() {
  const Object& object = objects_.back();
  Upload& upload = uploads_.emplace_back(std::exchange(found_, {}).value_or(Upload()));
  upload.key = client_->config().KeyOf(object.name);
  upload.parts.resize(std::max<std::size_t>(object.parts, 1));
  if (upload.multipart() && upload.id.empty()) {
    StartCreate(static_cast<std::uint32_t>(uploads_.size() - 1));
  }
}

Result<bool> S3WriteSession::ReadLeftPart(const Transfer& /*due*/, std::span<std::byte> /*into*/) {
  return false;
}

Result<bool> S3WriteSession::HoldsLeftPart(const Transfer& due) {
  S3PartPage::Part part;
  {
    MutexLock lock(&mu_);
    const auto left = uploads_[due.object].left.find(due.part);
    if (left == uploads_[due.object].left.end()) return false;
    part = left->second;
  }
  const std::uint32_t crc = Crc32c(due.bytes);
  if (part.crc32c != Crc32cText(crc)) return false;
  MutexLock lock(&mu_);
  uploads_[due.object].parts[due.part] = {.crc = crc, .etag = std::move(part.etag)};
  return true;
}

Status S3WriteSession::Send(const Transfer& transfer) {
  const std::uint32_t crc = Crc32c(transfer.bytes);
  MutexLock lock(&mu_);
  Upload& upload = uploads_[transfer.object];
  upload.parts[transfer.part].crc = crc;
  if (!upload.multipart()) {
    StartWholePut(transfer);
  } else if (upload.id.empty()) {
    upload.waiting.push_back(transfer);
  } else {
    StartPart(transfer);
  }
  return condemned_;
}

Status S3WriteSession::Finish(std::uint32_t id) {
  MutexLock lock(&mu_);
  if (objects_[id].bytes == 0) {
    StartWholePut({.object = id});
  } else if (uploads_[id].multipart()) {
    StartComplete(id);
  } else {
    ObjectDone(id);
  }
  return Status::Ok();
}

// ---------------------------------------------------------------- requests

void S3WriteSession::StartCall(S3Request request, std::function<void(S3Outcome&)> done) {
  ++in_flight_;
  // The id is known only after the call was started, and it may be over by then.
  auto id = std::make_shared<HttpClient::CallId>(0);
  *id = client_->Start(std::move(request), [this, id, done = std::move(done)](S3Outcome outcome) {
    MutexLock lock(&mu_);
    calls_.erase(*id);
    if (condemned_.ok() && !stopped_) done(outcome);
    --in_flight_;
    changed_.NotifyAll();
  });
  calls_.insert(*id);
}

void S3WriteSession::StartCreate(std::uint32_t id) {
  S3Request request{.what = "begin the upload of", .method = "POST", .key = uploads_[id].key};
  request.query = {{"uploads", ""}};
  request.headers.push_back({"x-amz-checksum-algorithm", "CRC32C"});
  StartCall(std::move(request),
            [this, id](S3Outcome& outcome) REQUIRES(mu_) { Created(id, outcome); });
}

void S3WriteSession::StartPart(const Transfer& transfer) {
  const Upload& upload = uploads_[transfer.object];
  S3Request request{.what = "upload a part of", .method = "PUT", .key = upload.key};
  request.query = {{"partNumber", std::to_string(transfer.part + 1)}, {"uploadId", upload.id}};
  request.headers.push_back({"x-amz-checksum-crc32c", Crc32cText(upload.parts[transfer.part].crc)});
  request.body = transfer.bytes;
  request.sign_body = false;
  StartCall(std::move(request),
            [this, transfer](S3Outcome& outcome) REQUIRES(mu_) { PartDone(transfer, outcome); });
}

void S3WriteSession::StartWholePut(const Transfer& transfer) {
  const Upload& upload = uploads_[transfer.object];
  S3Request request{.what = "put", .method = "PUT", .key = upload.key};
  if (conditional_) request.headers.push_back({"If-None-Match", "*"});
  request.headers.push_back({"x-amz-checksum-crc32c", Crc32cText(upload.parts[0].crc)});
  request.body = transfer.bytes;
  request.sign_body = false;
  StartCall(std::move(request), [this, transfer](S3Outcome& outcome)
                                    REQUIRES(mu_) { WholePutDone(transfer, outcome); });
}

void S3WriteSession::StartComplete(std::uint32_t id) {
  const Upload& upload = uploads_[id];
  // Kept until the answer came: the request only borrows its body.
  auto body = std::make_shared<std::string>("<CompleteMultipartUpload>");
  for (std::size_t i = 0; i < upload.parts.size(); ++i) {
    *body += fmt::format(
        "<Part><PartNumber>{}</PartNumber><ETag>{}</ETag><ChecksumCRC32C>{}</ChecksumCRC32C></"
        "Part>",
        i + 1, XmlEscape(upload.parts[i].etag), Crc32cText(upload.parts[i].crc));
  }
  *body += "</CompleteMultipartUpload>";
  S3Request request{.what = "end the upload of", .method = "POST", .key = upload.key};
  request.query = {{"uploadId", upload.id}};
  if (conditional_) request.headers.push_back({"If-None-Match", "*"});
  request.headers.push_back({"Content-Type", "application/xml"});
  request.body = std::as_bytes(std::span(*body));
  request.work_bytes = objects_[id].bytes;
  request.late_errors = true;
  StartCall(std::move(request),
            [this, id, body](S3Outcome& outcome) REQUIRES(mu_) { Completed(id, outcome); });
}

void S3WriteSession::StartRecognize(std::uint32_t id, Status otherwise,
                                    std::function<void()> mine) {
  S3Request request{.what = "look up", .method = "HEAD", .key = uploads_[id].key};
  request.headers.push_back({"x-amz-checksum-mode", "ENABLED"});
  StartCall(std::move(request), [this, id, otherwise = std::move(otherwise),
                                 mine = std::move(mine)](S3Outcome& outcome) REQUIRES(mu_) {
    if (IsMine(id, outcome)) {
      mine();
    } else {
      Fail(otherwise);
    }
  });
}

// ---------------------------------------------------------------- answers

void S3WriteSession::Created(std::uint32_t id, S3Outcome& outcome) {
  Upload& upload = uploads_[id];
  const Status status = client_->StatusOf("begin the upload of", upload.key, outcome.response);
  if (!status.ok()) return Fail(status);
  auto created = DecodeCreatedUpload(outcome.response->body);
  if (!created.ok()) return Fail(created.status().WithContext("begin the upload of " + upload.key));
  upload.id = *std::move(created);
  const std::vector<Transfer> waiting = std::move(upload.waiting);
  upload.waiting.clear();
  for (const Transfer& transfer : waiting) StartPart(transfer);
}

void S3WriteSession::PartDone(const Transfer& transfer, S3Outcome& outcome) {
  Upload& upload = uploads_[transfer.object];
  const Status status = client_->StatusOf("upload a part of", upload.key, outcome.response);
  if (!status.ok()) return Fail(status);
  upload.parts[transfer.part].etag = outcome.response->Header("etag");
  if (PartArrived(transfer)) StartComplete(transfer.object);
}

void S3WriteSession::WholePutDone(const Transfer& transfer, S3Outcome& outcome) {
  const Status status = client_->StatusOf("put", uploads_[transfer.object].key, outcome.response);
  if (status.ok()) return WholeStored(transfer);
  if (!status.Is(Code::kAlreadyExists) || !outcome.uncertain) return Fail(status);
  StartRecognize(transfer.object, status,
                 [this, transfer]() REQUIRES(mu_) { WholeStored(transfer); });
}

void S3WriteSession::WholeStored(const Transfer& transfer) {
  // An object without bytes has no part that could arrive.
  if (transfer.bytes.empty() || PartArrived(transfer)) ObjectDone(transfer.object);
}

void S3WriteSession::Completed(std::uint32_t id, S3Outcome& outcome) {
  Upload& upload = uploads_[id];
  Status status = client_->StatusOf("end the upload of", upload.key, outcome.response);
  if (status.ok()) {
    status = DecodeCompleted(outcome.response->body)
                 .status()
                 .WithContext("end the upload of " + upload.key);
  }
  if (status.ok()) return ObjectDone(id);
  // An upload that is gone, or a name that is taken, may be the doing of an earlier attempt.
  const bool mine = status.Is(Code::kAlreadyExists) || IsUploadGone(outcome.response);
  if (mine && outcome.uncertain) {
    return StartRecognize(id, status, [this, id]() REQUIRES(mu_) { ObjectDone(id); });
  }
  Fail(status);
}

bool S3WriteSession::IsMine(std::uint32_t id, const S3Outcome& outcome) {
  if (!outcome.response.ok() || !outcome.response->Succeeded()) return false;
  const Upload& upload = uploads_[id];
  std::vector<std::uint32_t> crcs;
  for (const Part& part : upload.parts) crcs.push_back(part.crc);
  const std::string expected =
      upload.multipart() ? CompositeCrc32cText(crcs) : Crc32cText(upload.parts[0].crc);
  std::string_view stored = outcome.response->Header("x-amz-checksum-crc32c");
  stored = stored.substr(0, stored.find('-'));
  return stored == expected &&
         outcome.response->Header("content-length") == std::to_string(objects_[id].bytes);
}

// ---------------------------------------------------------------- ends

void S3WriteSession::StopAll() {
  std::vector<S3UploadPage::Upload> uploads;
  {
    MutexLock lock(&mu_);
    if (stopped_) return;
    stopped_ = true;
    for (const HttpClient::CallId id : calls_) client_->Cancel(id);
    while (in_flight_ > 0) changed_.Wait(&mu_);
    if (LeavesUnfinished()) return;
    for (std::size_t i = 0; i < uploads_.size(); ++i) {
      // One whose completion was sent may be there by now; giving it up then does nothing.
      if (uploads_[i].id.empty() || objects_[i].done) continue;
      uploads.push_back({.key = uploads_[i].key, .id = uploads_[i].id});
    }
  }
  for (const S3UploadPage::Upload& upload : uploads) {
    const Status given_up = GiveUpUpload(client_.get(), upload, /*max_attempts=*/3);
    if (!given_up.ok()) {
      LogWarning("an unfinished upload stays until the repository is next opened for writing: " +
                 given_up.ToString());
    }
  }
}

}  // namespace cairn
