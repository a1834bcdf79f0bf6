#pragma once

#include <cstdint>

namespace cairn {

/// How a repository on a bucket or a cluster (s3://, hdfs://) is spoken to; a local directory takes
/// no notice. Where it is, and the keys, come from the environment: docs/guides/object_stores.md.
struct StorageOptions {
  /// Bound of all uploads of this store together; 0: CAIRN_UPLOAD_LIMIT, or none. For jobs that
  /// share a network with their own data.
  std::uint64_t upload_bytes_per_second = 0;
  /// Requests under way at once; 0: 16. More help over long distances, and cost memory: as many
  /// parts of uploads may be in flight, up to eight.
  int connections = 0;
  /// Size of the parts of uploads, a multiple of 4 KiB; 0: 8 MiB on S3 (where 5 are the least), and
  /// see docs/guides/hdfs.md. Files that would have more than 10,000 parts get larger ones.
  std::uint64_t part_bytes = 0;
  /// Write although the server has no create-only puts: the caller promises that only one process
  /// ever writes to the repository, also after a restart elsewhere. Or CAIRN_SINGLE_WRITER=1.
  bool single_writer = false;
  /// Copies that HDFS keeps of each block; 0: CAIRN_HDFS_REPLICATION, or the cluster's default.
  int hdfs_replication = 0;
  /// 0: CAIRN_HDFS_BLOCK_SIZE, or the cluster's default.
  std::uint64_t hdfs_block_bytes = 0;
};

}  // namespace cairn
