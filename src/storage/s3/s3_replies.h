#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/status.h>

namespace cairn {

// What S3 answers, as structs. Pure decoders: bytes in, structs out. All of them give Corruption
// for bytes that are no such reply.

/// The body of an error: <Error>.
struct S3Error {
  std::string code;
  std::string message;
  std::string region;  // where the bucket is, when that was the mistake
};
Result<S3Error> DecodeS3Error(std::string_view body);

/// One page of ListObjectsV2.
struct S3ListPage {
  struct Object {
    std::string key;
    std::uint64_t bytes = 0;
    std::string etag;
  };
  std::vector<Object> objects;
  std::vector<std::string> prefixes;  // with the trailing delimiter
  std::string next;                   // continuation token; "" after the last page
};
Result<S3ListPage> DecodeListPage(std::string_view body);

/// CreateMultipartUpload: the upload's id.
Result<std::string> DecodeCreatedUpload(std::string_view body);

/// CompleteMultipartUpload: the object's ETag.
Result<std::string> DecodeCompleted(std::string_view body);

/// The same of CopyObject, and of UploadPartCopy.
Result<std::string> DecodeCopied(std::string_view body);
Result<std::string> DecodeCopiedPart(std::string_view body);

/// One page of ListMultipartUploads.
struct S3UploadPage {
  struct Upload {
    std::string key;
    std::string id;
  };
  std::vector<Upload> uploads;
  bool truncated = false;
  std::string next_key;
  std::string next_id;
};
Result<S3UploadPage> DecodeUploadPage(std::string_view body);

/// One page of ListParts.
struct S3PartPage {
  struct Part {
    std::uint64_t number = 0;  // from 1 on
    std::uint64_t bytes = 0;
    std::string etag;
    std::string crc32c;  // as in headers; "": the server has none
  };
  std::vector<Part> parts;
  std::string next;  // the marker of the next page; "" after the last
};
Result<S3PartPage> DecodePartPage(std::string_view body);

}  // namespace cairn
