#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <cairn/status.h>

#include "checkpoint/import_place.h"
#include "model/foreign/foreign_tensor.h"

namespace cairn {

/// Files of a directory on a disk, a bucket or a cluster, read whole at the first request and kept
/// in one place. For one thread.
class PlacedFiles final : public SideFiles {
 public:
  /// `place`: where names are looked for; null: nowhere, and every name is refused.
  explicit PlacedFiles(std::unique_ptr<ImportPlace> place) : place_(std::move(place)) {}

  /// A file that the one read last refers to; see ImportPlace::CheckBeside.
  Result<std::span<const std::byte>> Open(const std::string& name) override;
  /// A file that the caller named. Errors do not repeat the name.
  Result<std::span<const std::byte>> Read(const std::string& name);
  /// Of all that were read.
  std::uint64_t bytes() const;

 private:
  Result<std::span<const std::byte>> Bytes(const std::string& name);

  const std::unique_ptr<ImportPlace> place_;
  std::string read_;                                     // last
  std::map<std::string, std::vector<std::byte>> files_;  // a map: its values do not move
};

}  // namespace cairn
