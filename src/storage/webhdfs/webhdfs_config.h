#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <cairn/status.h>
#include <cairn/storage_options.h>

#include "base/variables.h"

namespace cairn {

/// Where a directory of HDFS is and how it is spoken to.
struct WebHdfsConfig {
  std::string where;  // as people know it: hdfs://host:port/path
  std::string api;    // http://host:port/webhdfs/v1
  std::string root;   // the directory: "" (all of HDFS) or "/path", without a slash at the end
  std::string user;   // whom requests come from (simple authentication) …
  std::string token;  // … unless there is a delegation token
  std::string ca_bundle;
  int replication = 0;            // 0: the cluster's default
  std::uint64_t block_bytes = 0;  // 0: the cluster's default
  std::uint64_t upload_bytes_per_second = 0;
  int connections = 16;
  std::size_t part_bytes = 16u << 20;  // 256 MiB at most where it follows block_bytes

  /// The path in HDFS of an object; "" is the directory itself. HDFS has no ':' in names, so it is
  /// written %3A, and % as %25.
  std::string PathOf(std::string_view name) const;
};

/// One component of a path as an object's name has it; undoes what PathOf and PartsBelow did.
std::string NameOfComponent(std::string_view component);

/// Puts the settings together: the URL says host, port (of WebHDFS; 9870 when left out) and
/// directory; CAIRN_HDFS_USER (or HADOOP_USER_NAME, or this process's user), CAIRN_HDFS_TOKEN,
/// CAIRN_HDFS_TLS, CAIRN_HDFS_CA_BUNDLE, CAIRN_HDFS_REPLICATION, CAIRN_HDFS_BLOCK_SIZE,
/// CAIRN_HDFS_PART_SIZE, CAIRN_UPLOAD_LIMIT and the options say how.
Result<WebHdfsConfig> MakeWebHdfsConfig(const std::string& url, const StorageOptions& options,
                                        const Variables& variables);

}  // namespace cairn
