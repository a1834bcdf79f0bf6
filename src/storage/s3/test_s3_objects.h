#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "net/test_http_server.h"
#include "storage/store.h"

// Objects that the tests of the store on S3 write, in one go or in two.

namespace cairn {

/// Ends of multipart uploads and copies made by the server, which S3 may answer with 200 and then
/// with an error in the body.
inline bool SaysSuccessBeforeItKnows(const TestHttpRequest& request) {
  const bool ends =
      request.method == "POST" && request.target.find("uploadId=") != std::string::npos;
  return ends || !request.Header("x-amz-copy-source").empty();
}
inline constexpr std::string_view kLateError =
    "<?xml version=\"1.0\"?>\n\n<Error><Code>InternalError</Code></Error>";

/// The answer to a read of a range with half of its bytes. Its head says no other than that this is
/// all, so only who knows how many there are notices.
inline TestHttpReply Halved(const TestHttpRequest& request, const TestHttpReply& reply) {
  const std::string body = reply.bytes.substr(reply.bytes.find("\r\n\r\n") + 4);
  const std::string range(request.Header("range").substr(std::string_view("bytes=").size()));
  return Answer(206, body.substr(0, body.size() / 2), {{"Content-Range", "bytes " + range + "/*"}});
}

inline constexpr std::uint64_t kNoLimit = ~std::uint64_t{0};  // of Get

inline std::string Pattern(std::size_t bytes, std::uint64_t seed) {
  std::string text(bytes, '\0');
  std::uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
  for (char& c : text) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    c = static_cast<char>(state >> 56);
  }
  return text;
}

/// Writes one object through a session of its own.
inline Status WriteObject(Store* store, const std::string& name, std::string_view bytes) {
  auto session = store->NewWriteSession(WriteMode::kAuto);
  auto object = (*session)->Open(name, {.bytes = bytes.size()});
  if (!object.ok()) return object.status();
  const std::size_t part = (*session)->PartsOf(bytes.size()).part_bytes;
  for (std::size_t at = 0; at < bytes.size(); at += part) {
    const std::string_view piece = bytes.substr(at, part);
    const auto span = std::as_bytes(std::span(piece.data(), piece.size()));
    if (Status status = (*session)->Append(*object, span, false, at); !status.ok()) return status;
  }
  if (Status status = (*session)->Close(*object); !status.ok()) return status;
  return (*session)->Drain();
}

/// Leaves an upload with the first `parts` parts of the object.
inline void LeaveUpload(Store* store, const std::string& name, std::string_view bytes,
                        std::size_t parts) {
  auto session = store->NewWriteSession(WriteMode::kAuto);
  (*session)->LeaveUnfinished(true);
  const auto object = (*session)->Open(name, {.bytes = bytes.size()});
  ASSERT_TRUE(object.ok()) << object.status().ToString();
  const std::size_t part = (*session)->PartsOf(bytes.size()).part_bytes;
  for (std::size_t i = 0; i < parts; ++i) {
    const std::string_view piece = bytes.substr(i * part, part);
    const auto span = std::as_bytes(std::span(piece.data(), piece.size()));
    ASSERT_TRUE((*session)->Append(*object, span, false, i).ok());
    ASSERT_TRUE((*session)->WaitPart().ok());
  }
}

/// Goes on with it; the parts that were kept.
inline Result<int> ResumeUpload(Store* store, const std::string& name, std::string_view bytes) {
  auto session = store->NewWriteSession(WriteMode::kAuto);
  const auto object = (*session)->Open(name, {.bytes = bytes.size(), .resume = true});
  if (!object.ok()) return object.status();
  int kept = 0;
  const std::size_t part = (*session)->PartsOf(bytes.size()).part_bytes;
  for (std::size_t at = 0; at < bytes.size(); at += part) {
    const std::string_view piece = bytes.substr(at, part);
    const auto span = std::as_bytes(std::span(piece.data(), piece.size()));
    const auto taken = (*session)->KeepLeft(*object, span);
    if (!taken.ok()) return taken.status();
    kept += *taken ? 1 : 0;
    if (*taken) continue;
    if (Status status = (*session)->Append(*object, span, false, at); !status.ok()) return status;
  }
  if (Status status = (*session)->Close(*object); !status.ok()) return status;
  if (Status status = (*session)->Drain(); !status.ok()) return status;
  return kept;
}

}  // namespace cairn
