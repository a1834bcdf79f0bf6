#include "storage/s3/s3_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/status_macros.h"

namespace cairn {

S3Request S3Reader::RangeRequest(std::uint64_t offset, std::span<std::byte> into) const {
  S3Request request{.what = "read", .key = key_, .into = into};
  request.headers.push_back(
      {"Range", fmt::format("bytes={}-{}", offset, offset + into.size() - 1)});
  if (!etag_.empty()) request.headers.push_back({"If-Match", etag_});
  return request;
}

Status S3Reader::Judge(std::uint64_t offset, std::size_t bytes,
                       const Result<HttpResponse>& response) const {
  Status status = client_->StatusOf("read", key_, response);
  if (status.Is(Code::kAlreadyExists)) {  // the precondition: our ETag
    return NotFoundError("read \"" + name_ + "\": it was replaced meanwhile");
  }
  if (!status.ok()) return status;
  const bool whole = offset == 0 && bytes == bytes_;
  const std::string expected = fmt::format("bytes {}-", offset);
  if (!whole &&
      (response->status != 206 || !response->Header("content-range").starts_with(expected))) {
    return UnavailableError("read \"" + name_ + "\": the server gave another range than asked for");
  }
  if (response->into_bytes != bytes) {
    return UnavailableError(fmt::format("read \"{}\": short read: {} of {} bytes at {}", name_,
                                        response->into_bytes, bytes, offset));
  }
  return Status::Ok();
}

Status S3Reader::Read(std::uint64_t offset, std::span<std::byte> into) {
  if (into.size() > bytes_ || offset > bytes_ - into.size()) {
    return CorruptionError(fmt::format("read \"{}\": short read: {} bytes at {}, it has {}", name_,
                                       into.size(), offset, bytes_));
  }
  if (into.empty()) return Status::Ok();
  const S3Outcome outcome = client_->Fetch(RangeRequest(offset, into));
  return Judge(offset, into.size(), outcome.response);
}

S3ReadQueue::~S3ReadQueue() {
  MutexLock lock(&mu_);
  while (in_flight_ > static_cast<int>(done_.size())) ready_.Wait(&mu_);
}

int S3ReadQueue::in_flight() const {
  MutexLock lock(&mu_);
  return in_flight_;
}

Status S3ReadQueue::Submit(ObjectReader* reader, std::uint64_t offset, std::span<std::byte> into,
                           std::uint64_t tag) {
  auto* mine = dynamic_cast<S3Reader*>(reader);
  if (mine == nullptr) return InvalidArgumentError("the reader is another store's");
  {
    MutexLock lock(&mu_);
    if (in_flight_ == depth_) return InvalidArgumentError("the read queue is full");
    ++in_flight_;
    const std::uint64_t there = mine->bytes();
    const std::uint64_t left = offset < there ? there - offset : 0;
    into = into.first(std::min<std::uint64_t>(into.size(), left));
    if (into.empty()) {
      done_.push_back({.tag = tag, .status = Status::Ok(), .bytes = 0});
      return Status::Ok();
    }
  }
  client_->Start(mine->RangeRequest(offset, into), [=, this](S3Outcome outcome) {
    Done done{.tag = tag, .status = mine->Judge(offset, into.size(), outcome.response)};
    if (done.status.ok()) done.bytes = into.size();
    MutexLock lock(&mu_);
    done_.push_back(std::move(done));
    ready_.NotifyOne();
  });
  return Status::Ok();
}

Result<ReadQueue::Done> S3ReadQueue::Wait() {
  MutexLock lock(&mu_);
  if (in_flight_ == 0) return InvalidArgumentError("no read is in flight");
  while (done_.empty()) ready_.Wait(&mu_);
  Done done = std::move(done_.front());
  done_.pop_front();
  --in_flight_;
  return done;
}

}  // namespace cairn
