#include "storage/webhdfs/webhdfs_config.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "base/status_macros.h"
#include "net/url.h"

namespace cairn {
namespace {

constexpr std::string_view kDefaultPort = "9870";
constexpr std::uint64_t kMaxReplication = 512;  // HDFS's own limit
// Of those that follow the size of blocks: two of them are in memory at least.
constexpr std::uint64_t kLargestPart = 256u << 20;

std::string ProcessUser() {
  char buffer[4096];
  passwd entry{};
  passwd* found = nullptr;
  if (getpwuid_r(geteuid(), &entry, buffer, sizeof buffer, &found) == 0 && found != nullptr) {
    return found->pw_name;
  }
  return "uid" + std::to_string(geteuid());
}

Result<std::uint64_t> Bytes(const Variables& variables, const char* name) {
  const auto text = variables(name);
  if (!text) return std::uint64_t{0};
  auto bytes = ParseByteCount(*text);
  if (!bytes.ok()) return bytes.status().WithContext(name);
  return bytes;
}

/// A part is a file until it is joined to the others, so none of its blocks has bytes of the next
/// one: as large as the blocks that are wanted, or several whole ones.
std::size_t PartBytes(const WebHdfsConfig& config) {
  const std::uint64_t block = config.block_bytes;
  if (block == 0 || block % 4096 != 0) return config.part_bytes;
  if (block <= config.part_bytes) return config.part_bytes / block * block;
  const std::uint64_t pieces = (block + kLargestPart - 1) / kLargestPart;
  return block % (pieces * 4096) == 0 ? block / pieces : kLargestPart;
}

bool IsOn(const std::optional<std::string>& value) {
  return value && *value != "0" && *value != "false";
}

}  // namespace

std::string WebHdfsConfig::PathOf(std::string_view name) const {
  std::string path = root;
  if (!name.empty()) path += '/';
  for (const char c : name) {
    if (c == ':') {
      path += "%3A";
    } else if (c == '%') {
      path += "%25";
    } else {
      path += c;
    }
  }
  return path.empty() ? "/" : path;
}

std::string NameOfComponent(std::string_view component) {
  std::string name;
  for (std::size_t i = 0; i < component.size(); ++i) {
    const std::string_view rest = component.substr(i);
    if (rest.starts_with("%3A")) {
      name += ':';
      i += 2;
    } else if (rest.starts_with("%25")) {
      name += '%';
      i += 2;
    } else if (rest.starts_with("%2C")) {
      name += ',';
      i += 2;
    } else {
      name += component[i];
    }
  }
  return name;
}

Result<WebHdfsConfig> MakeWebHdfsConfig(const std::string& url, const StorageOptions& options,
                                        const Variables& variables) {
  ASSIGN_OR_RETURN(const Url parsed, ParseUrl(url));
  if (!parsed.query.empty() || parsed.authority.find('@') != std::string::npos) {
    return InvalidArgumentError("\"" + url.substr(0, 200) +
                                "\": give hdfs://host:port/path, and the rest in CAIRN_HDFS_…");
  }
  WebHdfsConfig config;
  ASSIGN_OR_RETURN(std::string path, PercentDecode(parsed.path));
  while (path.ends_with('/')) path.pop_back();
  if (path.find("//") != std::string::npos || path.find("/./") != std::string::npos ||
      path.find("/../") != std::string::npos || path.ends_with("/..") || path.ends_with("/.")) {
    return InvalidArgumentError("\"" + url.substr(0, 200) +
                                "\": the path has an empty component, \".\" or \"..\"");
  }
  config.root = std::move(path);
  const bool has_port =
      parsed.authority.find_last_of(':') != std::string::npos && !parsed.authority.ends_with(']');
  const std::string host =
      has_port ? parsed.authority : parsed.authority + ":" + std::string(kDefaultPort);
  config.where = "hdfs://" + host + config.root;
  config.api = (IsOn(variables("CAIRN_HDFS_TLS")) ? "https://" : "http://") + host + "/webhdfs/v1";
  config.token = variables("CAIRN_HDFS_TOKEN").value_or("");
  config.user =
      variables("CAIRN_HDFS_USER").value_or(variables("HADOOP_USER_NAME").value_or(ProcessUser()));
  config.ca_bundle = variables("CAIRN_HDFS_CA_BUNDLE").value_or("");
  ASSIGN_OR_RETURN(const std::uint64_t replication, Bytes(variables, "CAIRN_HDFS_REPLICATION"));
  if (replication > kMaxReplication) {
    return InvalidArgumentError("CAIRN_HDFS_REPLICATION: " + std::to_string(replication) +
                                " copies; 1 to 512 are possible");
  }
  config.replication =
      options.hdfs_replication > 0 ? options.hdfs_replication : static_cast<int>(replication);
  ASSIGN_OR_RETURN(config.block_bytes, Bytes(variables, "CAIRN_HDFS_BLOCK_SIZE"));
  if (options.hdfs_block_bytes > 0) config.block_bytes = options.hdfs_block_bytes;
  ASSIGN_OR_RETURN(config.upload_bytes_per_second, Bytes(variables, "CAIRN_UPLOAD_LIMIT"));
  if (options.upload_bytes_per_second > 0) {
    config.upload_bytes_per_second = options.upload_bytes_per_second;
  }
  if (options.connections > 0) config.connections = options.connections;
  ASSIGN_OR_RETURN(const std::uint64_t part_bytes, Bytes(variables, "CAIRN_HDFS_PART_SIZE"));
  config.part_bytes = PartBytes(config);
  if (part_bytes > 0) config.part_bytes = part_bytes;
  if (options.part_bytes > 0) config.part_bytes = options.part_bytes;
  if (config.part_bytes % 4096 != 0) {
    return InvalidArgumentError("part_bytes (CAIRN_HDFS_PART_SIZE) must be a multiple of 4 KiB");
  }
  return config;
}

}  // namespace cairn
