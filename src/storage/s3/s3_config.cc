#include "storage/s3/s3_config.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <limits>
#include <utility>

#include "base/status_macros.h"
#include "net/url.h"
#include "storage/store.h"

namespace cairn {
namespace {

constexpr std::uint64_t kSmallestPart = 5u << 20;  // S3's limit for all parts but the last
constexpr std::uint64_t kLargestPart = 1u << 30;

bool IsBucketName(std::string_view name) {
  if (name.size() < 3 || name.size() > 63) return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '_' ||
           (c >= 'A' && c <= 'Z');
  });
}

/// An address or a name that has no sub-domains to put a bucket into.
bool WantsPathStyle(const std::string& host) {
  if (host == "localhost" || host.find(':') != host.npos) return true;
  if (host.find('.') == host.npos) return true;
  return std::all_of(host.begin(), host.end(),
                     [](unsigned char c) { return std::isdigit(c) != 0 || c == '.'; });
}

Status SplitUrl(const std::string& text, S3Config* config) {
  ASSIGN_OR_RETURN(const Url url, ParseUrl(text));
  config->bucket = url.authority;
  if (!IsBucketName(config->bucket)) {
    return InvalidArgumentError("\"" + text.substr(0, 200) +
                                "\": the name of a bucket has 3 to 63 letters, digits, dots, "
                                "hyphens; write s3://bucket/prefix");
  }
  if (text.find('?') != text.npos || text.find('#') != text.npos) {
    return InvalidArgumentError("\"" + text.substr(0, 200) +
                                "\": a prefix with '?' or '#' is not supported");
  }
  std::string_view prefix = url.path;
  while (prefix.starts_with('/')) prefix.remove_prefix(1);
  while (prefix.ends_with('/')) prefix.remove_suffix(1);
  if (!prefix.empty()) {
    const Status valid = ValidateObjectName(prefix);
    if (!valid.ok()) return valid.WithContext("\"" + text.substr(0, 200) + "\"");
  }
  config->prefix = prefix;
  return Status::Ok();
}

Status ChooseHost(const std::string& endpoint, const std::string& addressing, S3Config* config) {
  auto url = ParseUrl(endpoint);
  if (!url.ok() || (url->scheme != "http" && url->scheme != "https") || !url->query.empty()) {
    return InvalidArgumentError("the S3 endpoint \"" + endpoint.substr(0, 200) +
                                "\" is not http://host:port or https://host:port "
                                "(AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL or endpoint_url)");
  }
  config->endpoint = endpoint;
  config->scheme = url->scheme;
  std::string base = url->path;
  while (base.ends_with('/')) base.pop_back();
  const bool dots = config->bucket.find('.') != config->bucket.npos;
  bool path_style = WantsPathStyle(url->Host()) || dots;
  if (addressing == "path") path_style = true;
  if (addressing == "virtual") path_style = false;
  // The usual port is left out of the Host header, and the signature covers that header.
  const std::string usual = config->scheme == "https" ? ":443" : ":80";
  std::string authority = url->authority;
  if (authority.ends_with(usual)) authority.resize(authority.size() - usual.size());
  config->host = path_style ? authority : config->bucket + "." + authority;
  config->base_path = path_style ? base + "/" + PercentEncode(config->bucket) : base;
  return Status::Ok();
}

Status ApplyOptions(const StorageOptions& options, const Variables& variables, S3Config* config) {
  config->upload_bytes_per_second = options.upload_bytes_per_second;
  if (const auto limit = variables("CAIRN_UPLOAD_LIMIT");
      limit && !config->upload_bytes_per_second) {
    auto parsed = ParseByteCount(*limit);
    if (!parsed.ok()) return parsed.status().WithContext("CAIRN_UPLOAD_LIMIT");
    config->upload_bytes_per_second = *parsed;
  }
  if (options.connections < 0 || options.connections > 256) {
    return InvalidArgumentError("connections is " + std::to_string(options.connections) +
                                ", must be between 1 and 256");
  }
  if (options.connections > 0) config->connections = options.connections;
  if (options.part_bytes > 0) {
    if (options.part_bytes < kSmallestPart || options.part_bytes > kLargestPart ||
        options.part_bytes % 4096 != 0) {
      return InvalidArgumentError("part_bytes is " + std::to_string(options.part_bytes) +
                                  ", must be a multiple of 4096 between 5 MiB and 1 GiB");
    }
    config->part_bytes = options.part_bytes;
  }
  config->single_writer =
      options.single_writer || variables("CAIRN_SINGLE_WRITER").value_or("") == "1";
  return Status::Ok();
}

}  // namespace

std::string S3Config::Describe() const {
  return "s3://" + bucket + (prefix.empty() ? "" : "/" + prefix);
}

std::string S3Config::KeyOf(std::string_view name) const {
  if (prefix.empty()) return std::string(name);
  return name.empty() ? prefix : prefix + "/" + std::string(name);
}

Result<S3Config> MakeS3Config(const std::string& url, const StorageOptions& options,
                              const Variables& variables) {
  S3Config config;
  RETURN_IF_ERROR(SplitUrl(url, &config));
  ASSIGN_OR_RETURN(const AwsProfile profile, ReadAwsProfile(variables));
  const auto first = [&](std::initializer_list<const char*> names, const std::string& setting) {
    for (const char* name : names) {
      if (const auto value = variables(name)) return *value;
    }
    return profile.Get(setting);
  };
  config.region = first({"AWS_REGION", "AWS_DEFAULT_REGION"}, "region");
  if (config.region.empty()) config.region = "us-east-1";
  config.ca_bundle = first({"AWS_CA_BUNDLE"}, "ca_bundle");
  std::string endpoint =
      first({"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"}, "services.s3.endpoint_url");
  if (endpoint.empty()) endpoint = profile.Get("endpoint_url");
  if (endpoint.empty()) {
    const bool china = config.region.starts_with("cn-");
    endpoint = "https://s3." + config.region + (china ? ".amazonaws.com.cn" : ".amazonaws.com");
  }
  const std::string addressing = first({"CAIRN_S3_ADDRESSING"}, "s3.addressing_style");
  if (!addressing.empty() && addressing != "auto" && addressing != "path" &&
      addressing != "virtual") {
    return InvalidArgumentError("CAIRN_S3_ADDRESSING, or addressing_style of the profile, is \"" +
                                addressing.substr(0, 40) + "\", must be auto, path or virtual");
  }
  RETURN_IF_ERROR(ChooseHost(endpoint, addressing, &config));
  RETURN_IF_ERROR(ApplyOptions(options, variables, &config));
  return config;
}

}  // namespace cairn
