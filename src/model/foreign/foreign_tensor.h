#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <cairn/dtype.h>
#include <cairn/status.h>

namespace cairn {

/// A tensor of a foreign file: row-major and little-endian. Its bytes stand in the file's own
/// (borrowed), or, where the file holds them in another order or coding, in `own`.
struct ForeignTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::uint64_t> shape;
  std::span<const std::byte> borrowed;
  std::vector<std::byte> own;

  std::span<const std::byte> Bytes() const { return own.empty() ? borrowed : own; }
};

/// A file that refers to others beside it (ONNX external data) gets them from here: a relative name
/// → the file's bytes, which live as long as what is decoded.
class SideFiles {
 public:
  virtual ~SideFiles() = default;
  virtual Result<std::span<const std::byte>> Open(const std::string& name) = 0;
};

}  // namespace cairn
