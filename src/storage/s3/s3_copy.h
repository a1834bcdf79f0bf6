#pragma once

#include <cstdint>
#include <string>

#include <cairn/status.h>

#include "storage/s3/s3_client.h"
#include "storage/s3/s3_limits.h"

namespace cairn {

/// One copy inside a bucket, made by the server.
struct S3Copy {
  std::string from;  // keys
  std::string to;
  std::uint64_t bytes = 0;
  std::string etag;  // what `from` must be all the time; "": not compared
  /// A larger object is copied in parts of at most this size.
  std::uint64_t most_at_once = kS3RequestBytes;
  std::uint64_t most_parts = kS3Parts;
  bool create_only = true;  // the server heeds `If-None-Match: *`
};

/// Makes `to` an object with the bytes of `from`. An object over the limit becomes a multipart
/// upload whose parts the server copies, several at a time; it is visible when all are there, and
/// given up after an error. Unimplemented: the server does not copy (in parts), and the object has
/// to be moved through the caller after all. NotFound: there is no `from`, or it was replaced.
Status CopyInBucket(S3Client* client, const S3Copy& copy);

}  // namespace cairn
