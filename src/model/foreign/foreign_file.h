#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <cairn/io.h>

#include "model/foreign/foreign_tensor.h"

namespace cairn {

/// The tensors of a foreign file (or directory) in memory, sorted by name. Movable; immutable, so
/// any thread may read.
class ForeignFile {
 public:
  static Result<ForeignFile> Open(const ForeignSource& source);

  ForeignFile(ForeignFile&&) = default;
  ForeignFile& operator=(ForeignFile&&) = default;

  const std::vector<ForeignTensor>& tensors() const { return tensors_; }

 private:
  class Files;

  ForeignFile() = default;
  Status OpenFile(const ForeignSource& source, const std::string& path);
  Status OpenDirectory(const ForeignSource& source);
  Status Decode(const ForeignSource& source, const std::string& path, ForeignFormat format,
                std::span<const std::byte> bytes);

  std::shared_ptr<Files> files_;  // shared: moved along with the tensors that point into it
  std::vector<ForeignTensor> tensors_;
};

/// What wrote a file, by its name and its bytes; InvalidArgument when neither says.
Result<ForeignFormat> GuessForeignFormat(const std::string& path, std::span<const std::byte> bytes);

}  // namespace cairn
