#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <cairn/status.h>

#include "model/foreign/foreign_tensor.h"

namespace cairn {

/// Files of the local disk, read whole at the first request and kept in one place. For one thread.
class LocalSideFiles final : public SideFiles {
 public:
  /// `directory`: where names are looked for; "": nowhere, and every name is refused.
  explicit LocalSideFiles(std::string directory) : directory_(std::move(directory)) {}

  Result<std::span<const std::byte>> Open(const std::string& name) override;
  /// A file by its path. Errors do not repeat the path.
  Result<std::span<const std::byte>> Read(const std::string& path);

 private:
  const std::string directory_;
  std::map<std::string, std::vector<std::byte>> files_;  // a map: its values do not move
};

}  // namespace cairn
