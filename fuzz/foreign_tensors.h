#pragma once

#include <vector>

#include "format/safetensors.h"
#include "fuzz/require.h"
#include "model/foreign/foreign_tensor.h"

namespace cairn {

/// What holds for the tensors of every foreign format: each has exactly the bytes of its shape, and
/// every one of them can be read.
inline void RequireWholeTensors(const std::vector<ForeignTensor>& tensors) {
  unsigned sum = 0;
  for (const ForeignTensor& tensor : tensors) {
    const auto bytes = TensorBytes(tensor.dtype, tensor.shape);
    Require(bytes.ok() && *bytes == tensor.Bytes().size(), "a tensor has the bytes of its shape");
    for (const std::byte byte : tensor.Bytes()) sum += static_cast<unsigned>(byte);
  }
  Require(sum + 1 != 0 || !tensors.empty(), "the bytes are read, not optimised away");
}

/// Files beside a model: there are none, except one with a few bytes.
class OneSideFile final : public SideFiles {
 public:
  Result<std::span<const std::byte>> Open(const std::string& name) override {
    if (name != "external.data") return NotFoundError(name);
    return std::span<const std::byte>(bytes_);
  }

 private:
  std::vector<std::byte> bytes_ = std::vector<std::byte>(4096);
};

}  // namespace cairn
