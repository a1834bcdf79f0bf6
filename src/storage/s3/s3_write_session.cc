#include "storage/s3/s3_write_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/status_macros.h"
#include "storage/s3/crc32c.h"
#include "storage/s3/s3_errors.h"
#include "storage/s3/s3_replies.h"
#include "storage/s3/xml.h"

namespace cairn {
namespace {

constexpr std::size_t kMaxParts = 10'000;  // S3's limit
constexpr int kMaxInFlight = 8;
constexpr std::uint64_t kMaxPutBytes = 5ull << 30;  // S3's limit for one request

}  // namespace

S3WriteSession::S3WriteSession(std::shared_ptr<S3Client> client, bool conditional)
    : client_(std::move(client)),
      depth_(std::min(client_->config().connections, kMaxInFlight)),
      conditional_(conditional) {}

S3WriteSession::~S3WriteSession() { StopAll(); }

// ---------------------------------------------------------------- the caller's side

Result<std::uint32_t> S3WriteSession::Open(const std::string& name, const NewObject& object) {
  {
    MutexLock lock(&mu_);
    if (!condemned_.ok()) return condemned_;
  }
  std::uint32_t id = 0;
  const Status opened = OpenUnchecked(name, object, &id);
  if (!opened.ok()) return Condemn(opened);
  return id;
}

Status S3WriteSession::OpenUnchecked(const std::string& name, const NewObject& object,
                                     std::uint32_t* id) {
  RETURN_IF_ERROR(ValidateObjectName(name));
  const std::size_t part = part_bytes();
  const std::uint64_t count = object.bytes / part + (object.bytes % part != 0 ? 1 : 0);
  if (count > kMaxParts || part > kMaxPutBytes) {
    return InvalidArgumentError(
        fmt::format("\"{}\" would have {} parts of {} bytes, at most {} are allowed; raise "
                    "StorageOptions::part_bytes",
                    name, count, part, kMaxParts));
  }
  // What ends the upload replaces nothing either; this is to fail before the bytes are sent.
  const std::string key = client_->config().KeyOf(name);
  const auto there = client_->Expect({.what = "look up", .method = "HEAD", .key = key});
  if (there.ok())
    return AlreadyExistsError("\"s3://" + client_->config().bucket + "/" + key + "\" exists");
  if (!there.status().Is(Code::kNotFound)) return there.status();
  MutexLock lock(&mu_);
  *id = static_cast<std::uint32_t>(objects_.size());
  objects_.push_back({.name = name, .key = key, .bytes = object.bytes, .multipart = count > 1});
  objects_.back().parts.resize(count);
  if (count > 1) StartCreate(*id);
  return condemned_;
}

Status S3WriteSession::CheckObject(std::uint32_t id) {
  if (id >= objects_.size()) return InvalidArgumentError("no such object in this session");
  if (objects_[id].stage != Stage::kOpen) {
    return InvalidArgumentError("\"" + objects_[id].name + "\" is closed");
  }
  return Status::Ok();
}

Status S3WriteSession::Append(std::uint32_t object, std::span<const std::byte> part,
                              bool /*padded*/, std::uint64_t tag) {
  Status status = AppendUnchecked(object, part, tag);
  return status.ok() ? status : Condemn(std::move(status));
}

Status S3WriteSession::AppendUnchecked(std::uint32_t id, std::span<const std::byte> part,
                                       std::uint64_t tag) {
  Transfer transfer{.object = id, .bytes = part, .tag = tag};
  {
    MutexLock lock(&mu_);
    if (!condemned_.ok()) return condemned_;
    RETURN_IF_ERROR(CheckObject(id));
    Object& object = objects_[id];
    const std::uint64_t left = object.bytes - object.appended;
    if (part.empty() || part.size() != std::min<std::uint64_t>(left, part_bytes())) {
      return InvalidArgumentError(fmt::format("a part of \"{}\" has {} bytes, {} are due",
                                              object.name, part.size(),
                                              std::min<std::uint64_t>(left, part_bytes())));
    }
    transfer.part = object.appended / part_bytes();
    object.appended += part.size();
    while (parts_ >= depth_ && condemned_.ok()) changed_.Wait(&mu_);
    if (!condemned_.ok()) return condemned_;
    ++parts_;
  }
  const std::uint32_t crc = Crc32c(part);
  MutexLock lock(&mu_);
  Object& object = objects_[id];
  object.parts[transfer.part].crc = crc;
  if (!object.multipart) {
    StartWholePut(transfer);
  } else if (object.upload.empty()) {
    object.waiting.push_back(transfer);
  } else {
    StartPart(transfer);
  }
  return condemned_;
}

Status S3WriteSession::Close(std::uint32_t object) {
  Status status = CloseUnchecked(object);
  return status.ok() ? status : Condemn(std::move(status));
}

Status S3WriteSession::CloseUnchecked(std::uint32_t id) {
  MutexLock lock(&mu_);
  if (!condemned_.ok()) return condemned_;
  RETURN_IF_ERROR(CheckObject(id));
  Object& object = objects_[id];
  if (object.appended != object.bytes) {
    return InvalidArgumentError(fmt::format("\"{}\" was closed with {} of {} bytes", object.name,
                                            object.appended, object.bytes));
  }
  object.stage = Stage::kClosed;
  ++unfinished_;
  if (object.bytes == 0) {
    object.parts.resize(1);
    StartWholePut({.object = id});
  } else if (object.arrived == object.parts.size()) {
    if (object.multipart) {
      StartComplete(id);
    } else {
      ObjectDone(id);
    }
  }
  return Status::Ok();
}

Result<std::uint64_t> S3WriteSession::WaitPart() {
  Status failed;
  {
    MutexLock lock(&mu_);
    while (condemned_.ok() && tags_.empty() && parts_ > 0) changed_.Wait(&mu_);
    if (condemned_.ok()) {
      if (tags_.empty()) return InvalidArgumentError("no part is outstanding");
      const std::uint64_t tag = tags_.front();
      tags_.pop_front();
      return tag;
    }
    failed = condemned_;
  }
  return Condemn(std::move(failed));
}

Status S3WriteSession::Drain() {
  Status failed;
  {
    MutexLock lock(&mu_);
    // Parts of objects that stay open are waited for too: their memory is given back.
    while (condemned_.ok() && (unfinished_ > 0 || parts_ > 0)) changed_.Wait(&mu_);
    if (condemned_.ok()) {
      tags_.clear();
      return Status::Ok();
    }
    failed = condemned_;
  }
  return Condemn(std::move(failed));
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
  S3Request request{.what = "begin the upload of", .method = "POST", .key = objects_[id].key};
  request.query = {{"uploads", ""}};
  request.headers.push_back({"x-amz-checksum-algorithm", "CRC32C"});
  StartCall(std::move(request),
            [this, id](S3Outcome& outcome) REQUIRES(mu_) { Created(id, outcome); });
}

void S3WriteSession::StartPart(const Transfer& transfer) {
  const Object& object = objects_[transfer.object];
  S3Request request{.what = "upload a part of", .method = "PUT", .key = object.key};
  request.query = {{"partNumber", std::to_string(transfer.part + 1)}, {"uploadId", object.upload}};
  request.headers.push_back({"x-amz-checksum-crc32c", Crc32cText(object.parts[transfer.part].crc)});
  request.body = transfer.bytes;
  request.sign_body = false;
  StartCall(std::move(request),
            [this, transfer](S3Outcome& outcome) REQUIRES(mu_) { PartDone(transfer, outcome); });
}

void S3WriteSession::StartWholePut(const Transfer& transfer) {
  const Object& object = objects_[transfer.object];
  S3Request request{.what = "put", .method = "PUT", .key = object.key};
  if (conditional_) request.headers.push_back({"If-None-Match", "*"});
  request.headers.push_back({"x-amz-checksum-crc32c", Crc32cText(object.parts[0].crc)});
  request.body = transfer.bytes;
  request.sign_body = false;
  StartCall(std::move(request), [this, transfer](S3Outcome& outcome)
                                    REQUIRES(mu_) { WholePutDone(transfer, outcome); });
}

void S3WriteSession::StartComplete(std::uint32_t id) {
  Object& object = objects_[id];
  object.stage = Stage::kCompleting;
  // Kept until the answer came: the request only borrows its body.
  auto body = std::make_shared<std::string>("<CompleteMultipartUpload>");
  for (std::size_t i = 0; i < object.parts.size(); ++i) {
    *body += fmt::format(
        "<Part><PartNumber>{}</PartNumber><ETag>{}</ETag><ChecksumCRC32C>{}</ChecksumCRC32C></"
        "Part>",
        i + 1, XmlEscape(object.parts[i].etag), Crc32cText(object.parts[i].crc));
  }
  *body += "</CompleteMultipartUpload>";
  S3Request request{.what = "end the upload of", .method = "POST", .key = object.key};
  request.query = {{"uploadId", object.upload}};
  if (conditional_) request.headers.push_back({"If-None-Match", "*"});
  request.headers.push_back({"Content-Type", "application/xml"});
  request.body = std::as_bytes(std::span(*body));
  StartCall(std::move(request),
            [this, id, body](S3Outcome& outcome) REQUIRES(mu_) { Completed(id, outcome); });
}

void S3WriteSession::StartRecognize(std::uint32_t id, Status otherwise) {
  S3Request request{.what = "look up", .method = "HEAD", .key = objects_[id].key};
  request.headers.push_back({"x-amz-checksum-mode", "ENABLED"});
  StartCall(std::move(request), [this, id, otherwise = std::move(otherwise)](S3Outcome& outcome)
                                    REQUIRES(mu_) { Recognized(id, otherwise, outcome); });
}

// ---------------------------------------------------------------- answers

void S3WriteSession::Created(std::uint32_t id, S3Outcome& outcome) {
  Object& object = objects_[id];
  const Status status = client_->StatusOf("begin the upload of", object.key, outcome.response);
  if (!status.ok()) return Fail(status);
  auto upload = DecodeCreatedUpload(outcome.response->body);
  if (!upload.ok()) return Fail(upload.status().WithContext("begin the upload of " + object.key));
  object.upload = *std::move(upload);
  const std::vector<Transfer> waiting = std::move(object.waiting);
  object.waiting.clear();
  for (const Transfer& transfer : waiting) StartPart(transfer);
}

void S3WriteSession::PartDone(const Transfer& transfer, S3Outcome& outcome) {
  Object& object = objects_[transfer.object];
  const Status status = client_->StatusOf("upload a part of", object.key, outcome.response);
  if (!status.ok()) return Fail(status);
  object.parts[transfer.part].etag = outcome.response->Header("etag");
  ++object.arrived;
  TagDone(transfer);
  if (object.stage == Stage::kClosed && object.arrived == object.parts.size()) {
    StartComplete(transfer.object);
  }
}

void S3WriteSession::WholePutDone(const Transfer& transfer, S3Outcome& outcome) {
  Object& object = objects_[transfer.object];
  const Status status = client_->StatusOf("put", object.key, outcome.response);
  if (!status.ok() && !(status.Is(Code::kAlreadyExists) && outcome.uncertain)) return Fail(status);
  if (object.bytes > 0) TagDone(transfer);
  if (!status.ok()) return StartRecognize(transfer.object, status);
  ++object.arrived;
  if (object.stage == Stage::kClosed) ObjectDone(transfer.object);
}

void S3WriteSession::Completed(std::uint32_t id, S3Outcome& outcome) {
  Object& object = objects_[id];
  Status status = client_->StatusOf("end the upload of", object.key, outcome.response);
  if (status.ok()) {
    // S3 says 200 before it knows: the body has the last word.
    auto completed = DecodeCompleted(outcome.response->body);
    if (!completed.ok()) {
      status = completed.status().WithContext("end the upload of " + object.key);
    } else if (!completed->error.code.empty()) {
      status = StatusOfS3Error(client_->config(), "end the upload of", object.key, 500,
                               completed->error);
    }
  }
  if (status.ok()) return ObjectDone(id);
  // An upload that is gone, or a name that is taken, may be the doing of an earlier attempt.
  const bool mine = status.Is(Code::kAlreadyExists) || IsUploadGone(outcome.response);
  if (mine && outcome.uncertain) return StartRecognize(id, status);
  Fail(status);
}

void S3WriteSession::Recognized(std::uint32_t id, const Status& otherwise, S3Outcome& outcome) {
  Object& object = objects_[id];
  if (!outcome.response.ok() || !outcome.response->Succeeded()) return Fail(otherwise);
  std::vector<std::uint32_t> crcs;
  for (const Part& part : object.parts) crcs.push_back(part.crc);
  const std::string expected =
      object.multipart ? CompositeCrc32cText(crcs) : Crc32cText(object.parts[0].crc);
  std::string_view stored = outcome.response->Header("x-amz-checksum-crc32c");
  stored = stored.substr(0, stored.find('-'));
  const bool same_bytes =
      outcome.response->Header("content-length") == std::to_string(object.bytes);
  if (stored != expected || !same_bytes) return Fail(otherwise);
  if (!object.multipart) ++object.arrived;
  if (object.stage != Stage::kOpen) ObjectDone(id);
}

// ---------------------------------------------------------------- ends

void S3WriteSession::ObjectDone(std::uint32_t id) {
  objects_[id].stage = Stage::kDone;
  --unfinished_;
  changed_.NotifyAll();
}

void S3WriteSession::TagDone(const Transfer& transfer) {
  --parts_;
  tags_.push_back(transfer.tag);
  changed_.NotifyAll();
}

void S3WriteSession::Fail(Status status) {
  if (condemned_.ok()) condemned_ = std::move(status);
  changed_.NotifyAll();
}

Status S3WriteSession::Condemn(Status status) {
  {
    MutexLock lock(&mu_);
    Fail(std::move(status));
  }
  StopAll();
  MutexLock lock(&mu_);
  return condemned_;
}

void S3WriteSession::StopAll() {
  std::vector<std::pair<std::string, std::string>> uploads;
  {
    MutexLock lock(&mu_);
    if (stopped_) return;
    stopped_ = true;
    for (const HttpClient::CallId id : calls_) client_->Cancel(id);
    while (in_flight_ > 0) changed_.Wait(&mu_);
    for (const Object& object : objects_) {
      // One whose completion was sent may be there by now; giving it up then does nothing.
      if (object.upload.empty() || object.stage == Stage::kDone) continue;
      uploads.emplace_back(object.key, object.upload);
    }
  }
  for (const auto& [key, id] : uploads) {
    const S3Outcome outcome = client_->Fetch({.what = "give up the upload of",
                                              .method = "DELETE",
                                              .key = key,
                                              .query = {{"uploadId", id}},
                                              .max_attempts = 3});
    if (IsUploadGone(outcome.response)) continue;
    const Status given_up = client_->StatusOf("give up the upload of", key, outcome.response);
    if (!given_up.ok()) {
      LogWarning("an unfinished upload stays until the repository is next opened for writing: " +
                 given_up.ToString());
    }
  }
}

}  // namespace cairn
