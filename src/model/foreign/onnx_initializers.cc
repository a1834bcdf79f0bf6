#include "model/foreign/onnx_initializers.h"

#include <charconv>
#include <cstring>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "base/status_macros.h"
#include "format/json.h"
#include "format/relative_path.h"
#include "format/safetensors.h"
#include "model/foreign/wire_reader.h"

namespace cairn {
namespace {

// Field numbers of onnx.proto.
constexpr std::uint32_t kModelGraph = 7;
constexpr std::uint32_t kGraphInitializer = 5;
constexpr std::uint32_t kTensorDims = 1;
constexpr std::uint32_t kTensorType = 2;
constexpr std::uint32_t kTensorFloats = 4;
constexpr std::uint32_t kTensorInt32s = 5;
constexpr std::uint32_t kTensorInt64s = 7;
constexpr std::uint32_t kTensorName = 8;
constexpr std::uint32_t kTensorRaw = 9;
constexpr std::uint32_t kTensorDoubles = 10;
constexpr std::uint32_t kTensorUint64s = 11;
constexpr std::uint32_t kTensorExternal = 13;
constexpr std::uint32_t kTensorLocation = 14;
constexpr std::size_t kMaxDimensions = 64;

std::optional<DType> FromOnnx(std::uint64_t type) {
  switch (type) {
    case 1:
      return DType::kF32;
    case 2:
      return DType::kU8;
    case 3:
      return DType::kI8;
    case 4:
      return DType::kU16;
    case 5:
      return DType::kI16;
    case 6:
      return DType::kI32;
    case 7:
      return DType::kI64;
    case 9:
      return DType::kBool;
    case 10:
      return DType::kF16;
    case 11:
      return DType::kF64;
    case 12:
      return DType::kU32;
    case 13:
      return DType::kU64;
    case 14:
      return DType::kC64;
    case 16:
      return DType::kBF16;
    case 17:
      return DType::kF8E4M3;
    case 18:
      return DType::kF8E4M3Fnuz;
    case 19:
      return DType::kF8E5M2;
    case 20:
      return DType::kF8E5M2Fnuz;
    default:
      return std::nullopt;
  }
}

/// One TensorProto.
class Initializer {
 public:
  Status Read(std::span<const std::byte> message) {
    WireReader reader(message);
    while (!reader.done()) {
      ASSIGN_OR_RETURN(const WireReader::Field field, reader.Next());
      RETURN_IF_ERROR(Take(field));
    }
    return Status::Ok();
  }

  const std::string& name() const { return tensor_.name; }

  Result<ForeignTensor> Finish(SideFiles* files) {
    const auto dtype = FromOnnx(type_);
    if (!dtype) {
      return UnimplementedError("ONNX's data type " + std::to_string(type_) + " has no place here");
    }
    tensor_.dtype = *dtype;
    const auto bytes = TensorBytes(tensor_.dtype, tensor_.shape);
    if (!bytes.ok()) return CorruptionError(std::string(bytes.status().message()));
    if (external_) {
      RETURN_IF_ERROR(ReadExternal(*bytes, files));
    } else if (raw_) {
      tensor_.borrowed = *raw_;
    } else {
      RETURN_IF_ERROR(ReadNumbers());
    }
    if (tensor_.Bytes().size() != *bytes) {
      return CorruptionError("its elements do not fill its shape");
    }
    return std::move(tensor_);
  }

 private:
  Status Take(const WireReader::Field& field) {
    switch (field.number) {
      case kTensorDims:
        return TakeDims(field);
      case kTensorType:
        type_ = field.number_value;
        return Status::Ok();
      case kTensorName:
        if (!IsValidUtf8(field.text())) return CorruptionError("an initializer's name is no text");
        tensor_.name = field.text();
        return Status::Ok();
      case kTensorRaw:
        raw_ = field.bytes_value;
        return Status::Ok();
      case kTensorLocation:
        external_ = field.number_value == 1;
        return Status::Ok();
      case kTensorExternal:
        return TakeExternal(field.bytes_value);
      case kTensorFloats:
      case kTensorInt32s:
      case kTensorInt64s:
      case kTensorDoubles:
      case kTensorUint64s:
        numbers_.push_back(field);
        return Status::Ok();
      default:
        return Status::Ok();
    }
  }

  Status AddDim(std::uint64_t dim) {
    if (static_cast<std::int64_t>(dim) < 0) return CorruptionError("a dimension is negative");
    if (tensor_.shape.size() == kMaxDimensions) return CorruptionError("too many dimensions");
    tensor_.shape.push_back(dim);
    return Status::Ok();
  }
  Status TakeDims(const WireReader::Field& field) {
    if (field.type == WireReader::Type::kVarint) return AddDim(field.number_value);
    WireReader packed(field.bytes_value);
    while (!packed.done()) {
      ASSIGN_OR_RETURN(const std::uint64_t dim, packed.NextVarint());
      RETURN_IF_ERROR(AddDim(dim));
    }
    return Status::Ok();
  }

  Status TakeExternal(std::span<const std::byte> entry) {
    WireReader reader(entry);
    std::string_view key;
    std::string_view value;
    while (!reader.done()) {
      ASSIGN_OR_RETURN(const WireReader::Field field, reader.Next());
      if (field.number == 1) key = field.text();
      if (field.number == 2) value = field.text();
    }
    if (key == "location") location_ = value;
    if (key == "offset") return Parse(value, &offset_);
    if (key == "length") {
      length_.emplace();
      return Parse(value, &*length_);
    }
    return Status::Ok();
  }
  static Status Parse(std::string_view text, std::uint64_t* out) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
    if (error == std::errc() && end == text.data() + text.size()) return Status::Ok();
    return CorruptionError("the place of its external data is no number");
  }

  Status ReadExternal(std::uint64_t bytes, SideFiles* files) {
    // The name comes out of the file: it must not lead outside of the model's directory.
    const Status inside = ValidateRelativePath(location_);
    if (!inside.ok()) {
      return InvalidArgumentError("its external data " + QuoteForMessage(location_) +
                                  " is not beside the model");
    }
    ASSIGN_OR_RETURN(const std::span<const std::byte> file, files->Open(location_));
    const std::uint64_t length = length_.value_or(bytes);
    if (length != bytes || offset_ > file.size() || length > file.size() - offset_) {
      return CorruptionError("its external data is not all in " + QuoteForMessage(location_));
    }
    tensor_.borrowed = file.subspan(offset_, length);
    return Status::Ok();
  }

  /// The typed lists: fixed-width ones hold the elements' own bytes, varints one element each.
  Status ReadNumbers() {
    const std::size_t element = static_cast<std::size_t>(DTypeBits(tensor_.dtype)) / 8;
    for (const WireReader::Field& field : numbers_) {
      const bool floats = field.number == kTensorFloats || field.number == kTensorDoubles;
      if (floats && field.type == WireReader::Type::kBytes) {
        tensor_.own.insert(tensor_.own.end(), field.bytes_value.begin(), field.bytes_value.end());
      } else if (field.type != WireReader::Type::kBytes) {
        Append(field.number_value, floats ? (field.number == kTensorFloats ? 4 : 8) : element);
      } else {
        WireReader packed(field.bytes_value);
        while (!packed.done()) {
          ASSIGN_OR_RETURN(const std::uint64_t value, packed.NextVarint());
          Append(value, element);
        }
      }
    }
    return Status::Ok();
  }
  void Append(std::uint64_t value, std::size_t bytes) {
    const auto* begin = reinterpret_cast<const std::byte*>(&value);  // little-endian
    tensor_.own.insert(tensor_.own.end(), begin, begin + std::min<std::size_t>(bytes, 8));
  }

  ForeignTensor tensor_;
  std::uint64_t type_ = 0;
  std::optional<std::span<const std::byte>> raw_;
  bool external_ = false;
  std::string location_;
  std::uint64_t offset_ = 0;
  std::optional<std::uint64_t> length_;
  std::vector<WireReader::Field> numbers_;
};

Status ReadGraph(std::span<const std::byte> graph, SideFiles* files,
                 std::vector<ForeignTensor>* tensors) {
  std::set<std::string> seen;
  WireReader reader(graph);
  while (!reader.done()) {
    ASSIGN_OR_RETURN(const WireReader::Field field, reader.Next());
    if (field.number != kGraphInitializer || field.type != WireReader::Type::kBytes) continue;
    Initializer initializer;
    RETURN_IF_ERROR(initializer.Read(field.bytes_value));
    const std::string name = initializer.name();
    if (name.empty() || !seen.insert(name).second) {
      return CorruptionError("the initializer " + QuoteForMessage(name) +
                             " is there twice, or has no name");
    }
    auto tensor = initializer.Finish(files);
    if (!tensor.ok()) return tensor.status().WithContext("initializer " + QuoteForMessage(name));
    tensors->push_back(*std::move(tensor));
  }
  return Status::Ok();
}

}  // namespace

Result<std::vector<ForeignTensor>> DecodeOnnxInitializers(std::span<const std::byte> bytes,
                                                          SideFiles* files) {
  std::vector<ForeignTensor> tensors;
  WireReader reader(bytes);
  bool any = false;
  while (!reader.done()) {
    auto field = reader.Next();
    if (!field.ok()) return field.status().WithContext("is no ONNX model");
    if (field->number != kModelGraph || field->type != WireReader::Type::kBytes) continue;
    if (std::exchange(any, true)) return CorruptionError("the model has two graphs");
    RETURN_IF_ERROR(ReadGraph(field->bytes_value, files, &tensors));
  }
  if (!any) return CorruptionError("is no ONNX model: it has no graph");
  return tensors;
}

}  // namespace cairn
