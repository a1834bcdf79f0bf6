#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/checksum.h"
#include "checkpoint/layout.h"

namespace cairn {

/// Hashes a planned file in one pass over its bytes: the file, its chunks, and each tensor in it if
/// somebody wants to know. For one thread.
class ContentHasher {
 public:
  /// Borrows `file`. Without `tensors` there are none.
  explicit ContentHasher(const PlannedFile& file, bool tensors = true);

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
  const bool each_;  // tensor is hashed for itself
  FileHasher whole_;
  Xxh3Stream open_;  // the tensor whose begin was seen and whose end was not
  std::uint64_t position_ = 0;
  std::vector<std::uint64_t> tensors_;
};

}  // namespace cairn
