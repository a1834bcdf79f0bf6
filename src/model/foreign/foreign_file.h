#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <cairn/io.h>

#include "model/foreign/foreign_tensor.h"
#include "model/foreign/side_files.h"

namespace cairn {

/// The tensors of a foreign file (or directory) in memory, sorted by name. Movable; immutable, so
/// any thread may read.
class ForeignFile {
 public:
  static Result<ForeignFile> Open(const ForeignSource& source);

  ForeignFile(ForeignFile&&) = default;
  ForeignFile& operator=(ForeignFile&&) = default;

  const std::vector<ForeignTensor>& tensors() const { return tensors_; }
  /// Of the files that were read.
  std::uint64_t file_bytes() const { return files_->bytes(); }

 private:
  ForeignFile() = default;
  Status OpenFile(const ForeignSource& source, const std::string& name, const std::string& path);
  Status OpenDirectory(const ForeignSource& source, ImportPlace* place);
  Status Decode(const ForeignSource& source, const std::string& name, ForeignFormat format,
                std::span<const std::byte> bytes);

  std::unique_ptr<PlacedFiles> files_;  // what the tensors point into; moved along with them
  std::vector<ForeignTensor> tensors_;
};

/// What wrote a file, by its name and its bytes; InvalidArgument when neither says.
Result<ForeignFormat> GuessForeignFormat(const std::string& path, std::span<const std::byte> bytes);

}  // namespace cairn
