#include "storage/open_store.h"

#include <utility>

#include "base/status_macros.h"
#include "net/url.h"
#include "storage/interruptible_store.h"
#include "storage/local/local_store.h"
#include "storage/s3/s3_store.h"
#include "storage/webhdfs/webhdfs_store.h"

namespace cairn {
namespace {

constexpr std::string_view kFile = "file";
constexpr std::string_view kS3 = "s3";
constexpr std::string_view kHdfs = "hdfs";

Status UnknownScheme(const std::string& where) {
  return InvalidArgumentError("\"" + where.substr(0, 200) + "\": \"" +
                              std::string(UrlScheme(where).substr(0, 40)) +
                              "://\" is not known; use a path, file:///path, s3://bucket/prefix or "
                              "hdfs://host:port/path");
}

/// What is left of a URL when a function for paths took one of its slashes.
bool IsBrokenUrl(std::string_view where) {
  for (const std::string_view scheme : {kFile, kS3, kHdfs}) {
    if (!where.starts_with(scheme)) continue;
    const std::string_view rest = where.substr(scheme.size());
    if (rest.starts_with(":/") && !rest.starts_with("://")) return true;
  }
  return false;
}

}  // namespace

bool IsUrl(std::string_view where) { return !UrlScheme(where).empty(); }

bool IsRemote(std::string_view where) { return IsUrl(where) && UrlScheme(where) != kFile; }

Result<std::string> LocalPath(const std::string& where) {
  if (IsBrokenUrl(where)) {
    return InvalidArgumentError("\"" + where.substr(0, 200) +
                                "\" is a URL with one slash too few: write " +
                                where.substr(0, where.find('/')) +
                                "//… (a directory of this name is ./" + where.substr(0, 40) + ")");
  }
  if (!IsUrl(where)) return where;
  if (IsRemote(where)) {
    return InvalidArgumentError("\"" + where.substr(0, 200) + "\" is not a local path");
  }
  std::string_view rest = std::string_view(where).substr(kFile.size() + 3);
  if (rest.starts_with("localhost/")) rest.remove_prefix(std::string_view("localhost").size());
  if (!rest.starts_with('/')) {
    return InvalidArgumentError("\"" + where.substr(0, 200) +
                                "\": a file URL is file:///path, with three slashes");
  }
  return PercentDecode(rest);
}

Result<Place> SplitRemote(const std::string& where) {
  if (!IsRemote(where)) {
    return InvalidArgumentError("\"" + where.substr(0, 200) + "\" is not the URL of a bucket");
  }
  std::string_view clean = where;
  while (clean.ends_with('/')) clean.remove_suffix(1);
  const std::size_t host = UrlScheme(where).size() + 3;
  const std::size_t slash = clean.rfind('/');
  if (slash == clean.npos || slash < host) {
    return InvalidArgumentError("\"" + where.substr(0, 200) +
                                "\" is the top of its store, not something in it");
  }
  return Place{std::string(clean.substr(0, slash)), std::string(clean.substr(slash + 1))};
}

Result<std::unique_ptr<Store>> OpenStore(const std::string& where,
                                         const OpenStoreOptions& options) {
  const std::string_view scheme = UrlScheme(where);
  if (scheme == kS3) return OpenS3Store(where, options.storage);
  if (scheme == kHdfs) {
    return OpenHdfsStore({.url = where, .create = options.create, .storage = options.storage});
  }
  if (!scheme.empty() && scheme != kFile) return UnknownScheme(where);
  ASSIGN_OR_RETURN(const std::string path, LocalPath(where));
  return OpenLocalStore(path, options.create);
}

Result<std::unique_ptr<Store>> OpenUnasked(const std::string& where,
                                           const StorageOptions& storage) {
  if (UrlScheme(where) != kHdfs) return OpenStore(where, {.create = false, .storage = storage});
  return OpenHdfsStore({.url = where, .create = false, .look = false, .storage = storage});
}

}  // namespace cairn
