#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <cairn/status.h>
#include <cairn/storage_options.h>

#include "storage/store.h"

namespace cairn {

/// Where things are is written as a path, file:///path, s3://bucket/prefix or
/// hdfs://host:port/path; these functions are the only ones that tell them apart.

struct OpenStoreOptions {
  /// The place will be written to: a local directory is made when missing. Otherwise a missing one
  /// is NotFound.
  bool create = true;
  StorageOptions storage;
};

/// InvalidArgument for a scheme that nobody knows, and for a place that cannot be.
Result<std::unique_ptr<Store>> OpenStore(const std::string& where,
                                         const OpenStoreOptions& options = {});

/// Has a scheme: not a path, or file://.
bool IsUrl(std::string_view where);
/// Lies on a bucket or a cluster: nothing there can be reached as a file.
bool IsRemote(std::string_view where);

/// The path of a local place: the argument itself, or what follows file://. InvalidArgument for
/// what was a URL until a function for paths took one of its slashes.
Result<std::string> LocalPath(const std::string& where);

/// `where` and the name of something directly in it.
struct Place {
  std::string where;
  std::string name;
};
/// Splits a remote place into the one above it and its last component. InvalidArgument when nothing
/// is above it.
Result<Place> SplitRemote(const std::string& where);

}  // namespace cairn
