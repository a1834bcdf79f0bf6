#include "storage/s3/s3_copy.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/status_macros.h"
#include "base/thread_annotations.h"
#include "net/url.h"
#include "storage/s3/s3_errors.h"
#include "storage/s3/s3_replies.h"
#include "storage/s3/s3_uploads.h"
#include "storage/s3/xml.h"

namespace cairn {
namespace {

// A server says nothing while it copies: a part is small enough not to look like a stall, unless
// there would be too many.
constexpr std::uint64_t kPartBytes = 256u << 20;
constexpr int kMaxInFlight = 8;

HttpHeader CopySource(S3Client* client, const S3Copy& copy) {
  return {"x-amz-copy-source", PercentEncode(client->config().bucket + "/" + copy.from, true)};
}

/// The ETag of what was copied.
Result<std::string> Copied(const S3Copy& copy, Result<std::string> etag) {
  if (!etag.ok()) return etag.status().WithContext("copy " + copy.from);
  return etag;
}

Status CopyAtOnce(S3Client* client, const S3Copy& copy) {
  S3Request request{.what = "copy to", .method = "PUT", .key = copy.to};
  request.headers.push_back(CopySource(client, copy));
  request.work_bytes = copy.bytes;
  request.late_errors = true;
  ASSIGN_OR_RETURN(const HttpResponse response, client->Expect(std::move(request)));
  return Copied(copy, DecodeCopied(response.body)).status();
}

Result<std::string> CopyPart(S3Client* client, const S3Copy& copy, const std::string& upload,
                             std::uint64_t number, std::uint64_t begin, std::uint64_t end) {
  S3Request request{.what = "copy a part to", .method = "PUT", .key = copy.to};
  request.query = {{"partNumber", std::to_string(number)}, {"uploadId", upload}};
  request.headers.push_back(CopySource(client, copy));
  request.headers.push_back(
      {"x-amz-copy-source-range", fmt::format("bytes={}-{}", begin, end - 1)});
  request.work_bytes = end - begin;
  request.late_errors = true;
  if (!copy.etag.empty()) request.headers.push_back({"x-amz-copy-source-if-match", copy.etag});
  const auto response = client->Expect(std::move(request));
  // Another object than at the first look: what was to be copied is not there any more.
  if (response.status().Is(Code::kAlreadyExists)) {
    return NotFoundError("\"" + copy.from + "\" was replaced while it was copied");
  }
  if (!response.ok()) return response.status();
  if (response->body.empty()) {  // it took the request for the upload of a part without bytes
    return UnimplementedError("copy a part to \"" + copy.to + "\": the server does not know how");
  }
  return Copied(copy, DecodeCopiedPart(response->body));
}

std::uint64_t PartBytes(const S3Copy& copy) {
  const std::uint64_t least = (copy.bytes + copy.most_parts - 1) / copy.most_parts;
  return std::max(std::min(kPartBytes, copy.most_at_once), least);
}

/// The ETags of all parts, copied by a few threads.
Result<std::vector<std::string>> CopyParts(S3Client* client, const S3Copy& copy,
                                           const std::string& upload) {
  const std::uint64_t size = PartBytes(copy);
  const std::uint64_t count = (copy.bytes + size - 1) / size;
  std::vector<std::string> etags(count);
  std::atomic<std::uint64_t> next = 0;
  Mutex mu;
  Status failed;  // the first error; the others stop at it
  const auto work = [&] {
    while (true) {
      const std::uint64_t part = next++;
      {
        MutexLock lock(&mu);
        if (part >= count || !failed.ok()) return;
      }
      auto etag = CopyPart(client, copy, upload, part + 1, part * size,
                           std::min(copy.bytes, (part + 1) * size));
      MutexLock lock(&mu);
      if (!etag.ok() && failed.ok()) failed = etag.status();
      if (etag.ok()) etags[part] = *std::move(etag);
    }
  };
  {
    std::vector<std::jthread> threads;
    const auto width = std::min<std::uint64_t>(
        count, static_cast<std::uint64_t>(std::min(client->config().connections, kMaxInFlight)));
    for (std::uint64_t i = 0; i < width; ++i) threads.emplace_back(work);
  }
  if (!failed.ok()) return failed;
  return etags;
}

/// Whether the object that a lost answer left behind is the copy.
bool IsThere(S3Client* client, const S3Copy& copy) {
  const auto there = client->Expect({.what = "look up", .method = "HEAD", .key = copy.to});
  return there.ok() && there->Header("content-length") == std::to_string(copy.bytes);
}

Status EndUpload(S3Client* client, const S3Copy& copy, const std::string& upload,
                 const std::vector<std::string>& etags) {
  std::string body = "<CompleteMultipartUpload>";
  for (std::size_t i = 0; i < etags.size(); ++i) {
    body += fmt::format("<Part><PartNumber>{}</PartNumber><ETag>{}</ETag></Part>", i + 1,
                        XmlEscape(etags[i]));
  }
  body += "</CompleteMultipartUpload>";
  S3Request request{.what = "end the copy to", .method = "POST", .key = copy.to};
  request.query = {{"uploadId", upload}};
  if (copy.create_only) request.headers.push_back({"If-None-Match", "*"});
  request.headers.push_back({"Content-Type", "application/xml"});
  request.body = std::as_bytes(std::span(body));
  request.work_bytes = copy.bytes;
  request.late_errors = true;
  const S3Outcome outcome = client->Fetch(std::move(request));
  const Status status = client->StatusOf("end the copy to", copy.to, outcome.response);
  if (status.ok()) return Copied(copy, DecodeCompleted(outcome.response->body)).status();
  // An upload that is gone, or a name that is taken, may be the doing of an earlier attempt.
  const bool mine = status.Is(Code::kAlreadyExists) || IsUploadGone(outcome.response);
  return mine && outcome.uncertain && IsThere(client, copy) ? Status::Ok() : status;
}

Status CopyInParts(S3Client* client, const S3Copy& copy) {
  if (PartBytes(copy) > kS3RequestBytes) {
    return InvalidArgumentError(
        fmt::format("\"{}\" has {} bytes; {}", copy.from, copy.bytes, kS3ObjectLimit));
  }
  S3Request begin{.what = "begin the copy to", .method = "POST", .key = copy.to};
  begin.query = {{"uploads", ""}};
  ASSIGN_OR_RETURN(const HttpResponse response, client->Expect(std::move(begin)));
  ASSIGN_OR_RETURN(const std::string upload, DecodeCreatedUpload(response.body));
  const auto etags = CopyParts(client, copy, upload);
  Status status = etags.status();
  if (status.ok()) status = EndUpload(client, copy, upload, *etags);
  if (status.ok()) return status;
  const Status given_up = GiveUpUpload(client, {.key = copy.to, .id = upload}, 3);
  if (!given_up.ok()) {
    LogWarning("an unfinished copy stays until the repository is next opened for writing: " +
               given_up.ToString());
  }
  return status;
}

}  // namespace

Status CopyInBucket(S3Client* client, const S3Copy& copy) {
  const Status copied =
      copy.bytes <= copy.most_at_once ? CopyAtOnce(client, copy) : CopyInParts(client, copy);
  if (copied.Is(Code::kUnimplemented)) {
    LogWarning(
        fmt::format("{}: the server cannot copy \"{}\" ({} bytes) by itself, so it is sent "
                    "again: {}",
                    client->config().Describe(), copy.from, copy.bytes, copied.ToString()));
  }
  return copied;
}

}  // namespace cairn
