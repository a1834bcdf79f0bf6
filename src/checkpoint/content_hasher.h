#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/checksum.h"
#include "checkpoint/layout.h"

namespace cairn {

/// Hashes a planned file in one pass over its bytes: the file, its chunks, and each tensor in it.
/// For one thread.
class ContentHasher {
 public:
  /// Borrows `file`.
  explicit ContentHasher(const PlannedFile& file);

  /// The next bytes of the file.
  void Update(std::span<const std::byte> bytes);
  /// After all bytes.
  FileHash Finish();
  /// After Finish: a hash of each tensor's bytes, in the order of the file. The one tensor of a
  /// file of its own has the file's.
  const std::vector<std::uint64_t>& tensors() const { return tensors_; }

 private:
  void UpdateTensors(std::span<const std::byte> bytes);

  const PlannedFile& file_;
  FileHasher whole_;
  Xxh3Stream open_;  // the tensor whose begin was seen and whose end was not
  std::uint64_t position_ = 0;
  std::vector<std::uint64_t> tensors_;
};

}  // namespace cairn
