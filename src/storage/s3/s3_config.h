#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <cairn/status.h>
#include <cairn/storage_options.h>

#include "storage/s3/aws_profile.h"

namespace cairn {

/// Where a bucket is and how it is addressed.
struct S3Config {
  std::string bucket;
  std::string prefix;     // of all keys: "" or "runs/a", without slashes at the ends
  std::string scheme;     // http or https
  std::string host;       // that requests go to, with a port unless it is the usual one
  std::string base_path;  // before the key: "" or "/bucket", percent-encoded
  std::string region;
  std::string ca_bundle;
  std::string endpoint;  // as people know it, for messages
  std::uint64_t upload_bytes_per_second = 0;
  int connections = 16;
  std::size_t part_bytes = 8u << 20;
  bool single_writer = false;

  /// "s3://bucket/prefix"
  std::string Describe() const;
  std::string KeyOf(std::string_view name) const;
};

/// Puts the settings together: the URL says bucket and prefix; AWS_ENDPOINT_URL_S3,
/// AWS_ENDPOINT_URL, AWS_REGION, AWS_DEFAULT_REGION, AWS_CA_BUNDLE and the profile's endpoint_url,
/// region and ca_bundle say where; CAIRN_S3_ADDRESSING (path, virtual, auto), CAIRN_UPLOAD_LIMIT
/// and CAIRN_SINGLE_WRITER and the options say how. The bucket's name goes into the path for IP
/// addresses, localhost and names with dots, otherwise in front of the host.
Result<S3Config> MakeS3Config(const std::string& url, const StorageOptions& options,
                              const Variables& variables);

}  // namespace cairn
