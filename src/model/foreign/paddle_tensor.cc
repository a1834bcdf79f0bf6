#include "model/foreign/paddle_tensor.h"

#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <set>

#include "base/status_macros.h"
#include "format/json.h"
#include "format/safetensors.h"
#include "model/foreign/wire_reader.h"

namespace cairn {
namespace {

constexpr std::uint64_t kMaxLevels = 64;
constexpr std::int32_t kMaxDescription = 1 << 16;
constexpr std::size_t kMaxDimensions = 64;

std::optional<DType> FromPaddle(std::uint64_t type) {
  switch (type) {
    case 0:
      return DType::kBool;
    case 1:
      return DType::kI16;
    case 2:
      return DType::kI32;
    case 3:
      return DType::kI64;
    case 4:
      return DType::kF16;
    case 5:
      return DType::kF32;
    case 6:
      return DType::kF64;
    case 20:
      return DType::kU8;
    case 21:
      return DType::kI8;
    case 22:
      return DType::kBF16;
    case 23:
      return DType::kC64;
    case 32:
      return DType::kF8E4M3;
    case 33:
      return DType::kF8E5M2;
    default:
      return std::nullopt;
  }
}

/// Takes values off the front of the file.
class Bytes {
 public:
  explicit Bytes(std::span<const std::byte> bytes) : left_(bytes) {}

  template <typename T>
  Status Take(T* value, std::string_view what) {
    if (left_.size() < sizeof(T)) return Short(what);
    std::memcpy(value, left_.data(), sizeof(T));
    left_ = left_.subspan(sizeof(T));
    return Status::Ok();
  }
  Status Take(std::uint64_t size, std::string_view what, std::span<const std::byte>* out) {
    if (size > left_.size()) return Short(what);
    *out = left_.first(size);
    left_ = left_.subspan(size);
    return Status::Ok();
  }
  bool empty() const { return left_.empty(); }

 private:
  static Status Short(std::string_view what) {
    return CorruptionError(fmt::format("the file ends within the tensor's {}", what));
  }
  std::span<const std::byte> left_;
};

Status AddDimension(std::uint64_t raw, std::vector<std::uint64_t>* shape) {
  if (static_cast<std::int64_t>(raw) < 0) return CorruptionError("a dimension is negative");
  if (shape->size() == kMaxDimensions) return CorruptionError("too many dimensions");
  shape->push_back(raw);
  return Status::Ok();
}

Status ReadDescription(std::span<const std::byte> bytes, ForeignTensor* tensor) {
  WireReader reader(bytes);
  std::optional<std::uint64_t> type;
  while (!reader.done()) {
    ASSIGN_OR_RETURN(const WireReader::Field field, reader.Next());
    if (field.number == 1 && field.type == WireReader::Type::kVarint) {
      type = field.number_value;
    } else if (field.number == 2 && field.type == WireReader::Type::kVarint) {
      RETURN_IF_ERROR(AddDimension(field.number_value, &tensor->shape));
    } else if (field.number == 2 && field.type == WireReader::Type::kBytes) {
      WireReader packed(field.bytes_value);
      while (!packed.done()) {
        ASSIGN_OR_RETURN(const std::uint64_t dimension, packed.NextVarint());
        RETURN_IF_ERROR(AddDimension(dimension, &tensor->shape));
      }
    }
  }
  if (!type) return CorruptionError("the tensor's description has no data type");
  const auto dtype = FromPaddle(*type);
  if (!dtype) {
    return UnimplementedError(fmt::format("Paddle's data type {} has no place here", *type));
  }
  tensor->dtype = *dtype;
  return Status::Ok();
}

Status SkipLevels(Bytes* bytes) {
  std::uint64_t levels = 0;
  RETURN_IF_ERROR(bytes->Take(&levels, "levels of detail"));
  if (levels > kMaxLevels) return CorruptionError(fmt::format("{} levels of detail", levels));
  for (std::uint64_t level = 0; level < levels; ++level) {
    std::uint64_t size = 0;
    std::span<const std::byte> offsets;
    RETURN_IF_ERROR(bytes->Take(&size, "levels of detail"));
    RETURN_IF_ERROR(bytes->Take(size, "levels of detail", &offsets));
  }
  return Status::Ok();
}

Status CheckVersion(Bytes* bytes) {
  std::uint32_t version = 0;
  RETURN_IF_ERROR(bytes->Take(&version, "version"));
  if (version == 0) return Status::Ok();
  return UnimplementedError(
      fmt::format("version {} of a tensor; 0 is what Paddle writes. It may be no Paddle file, or "
                  "one of another kind",
                  version));
}

Status ReadTensor(Bytes* bytes, ForeignTensor* tensor) {
  RETURN_IF_ERROR(CheckVersion(bytes));
  RETURN_IF_ERROR(SkipLevels(bytes));
  RETURN_IF_ERROR(CheckVersion(bytes));
  std::int32_t size = 0;
  RETURN_IF_ERROR(bytes->Take(&size, "description"));
  if (size < 0 || size > kMaxDescription) {
    return CorruptionError(fmt::format("the tensor's description has {} bytes", size));
  }
  std::span<const std::byte> description;
  RETURN_IF_ERROR(bytes->Take(static_cast<std::uint64_t>(size), "description", &description));
  RETURN_IF_ERROR(ReadDescription(description, tensor));
  const auto data = TensorBytes(tensor->dtype, tensor->shape);
  if (!data.ok()) return CorruptionError(std::string(data.status().message()));
  return bytes->Take(*data, "elements", &tensor->borrowed);
}

}  // namespace

Result<std::vector<ForeignTensor>> DecodePaddleTensors(std::span<const std::byte> file) {
  Bytes bytes(file);
  std::vector<ForeignTensor> tensors;
  if (bytes.empty()) return CorruptionError("the file is empty");
  while (!bytes.empty()) {
    ForeignTensor tensor;
    const Status read = ReadTensor(&bytes, &tensor);
    if (!read.ok()) return read.WithContext(fmt::format("tensor {}", tensors.size()));
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

Result<std::vector<ForeignTensor>> DecodePaddleTensors(std::span<const std::byte> file,
                                                       const std::vector<std::string>& names) {
  ASSIGN_OR_RETURN(std::vector<ForeignTensor> tensors, DecodePaddleTensors(file));
  if (tensors.size() != names.size()) {
    const std::string given =
        names.size() > 1 ? fmt::format(", and {} names were given", names.size()) : std::string();
    return InvalidArgumentError(fmt::format(
        "the file holds {} tensors without names{}; give the names of all of them (names=…), in "
        "the order of the file (Paddle writes them sorted by name)",
        tensors.size(), given));
  }
  std::set<std::string_view> seen;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i].empty() || !IsValidUtf8(names[i]) || !seen.insert(names[i]).second) {
      return InvalidArgumentError("names: " + QuoteForMessage(names[i]) +
                                  " is no name, or is there twice");
    }
    tensors[i].name = names[i];
  }
  return tensors;
}

bool LooksLikePaddleTensor(std::span<const std::byte> bytes) {
  // Both versions and the levels are 0 in what Paddle writes of parameters.
  constexpr std::size_t kZeros = 16;
  if (bytes.size() < kZeros + 4) return false;
  for (std::size_t i = 0; i < kZeros; ++i) {
    if (bytes[i] != std::byte{0}) return false;
  }
  return true;
}

}  // namespace cairn
