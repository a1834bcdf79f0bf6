#include "model/foreign/torch_zip.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/status_macros.h"
#include "format/json.h"
#include "model/foreign/numpy_pickle.h"
#include "model/foreign/pickled_tree.h"
#include "model/foreign/zip_crc32.h"
#include "model/foreign/zip_directory.h"

namespace cairn {
namespace {

using Kind = PickleValue::Kind;

constexpr std::string_view kPickle = "/data.pkl";

constexpr std::array<std::string_view, 8> kConstructors = {
    "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_tensor_v3",
    "torch._utils._rebuild_tensor",
    "torch._utils._rebuild_parameter",
    "torch._utils._rebuild_parameter_with_state",
    "torch.storage.UntypedStorage",
    "collections.OrderedDict",
    "torch.Size",
};

const std::map<std::string_view, DType>& Types() {
  static const std::map<std::string_view, DType> kTypes = {
      {"torch.FloatStorage", DType::kF32},
      {"torch.DoubleStorage", DType::kF64},
      {"torch.HalfStorage", DType::kF16},
      {"torch.BFloat16Storage", DType::kBF16},
      {"torch.LongStorage", DType::kI64},
      {"torch.IntStorage", DType::kI32},
      {"torch.ShortStorage", DType::kI16},
      {"torch.CharStorage", DType::kI8},
      {"torch.ByteStorage", DType::kU8},
      {"torch.BoolStorage", DType::kBool},
      {"torch.ComplexFloatStorage", DType::kC64},
      {"torch.float32", DType::kF32},
      {"torch.float64", DType::kF64},
      {"torch.float16", DType::kF16},
      {"torch.bfloat16", DType::kBF16},
      {"torch.int64", DType::kI64},
      {"torch.int32", DType::kI32},
      {"torch.int16", DType::kI16},
      {"torch.int8", DType::kI8},
      {"torch.uint8", DType::kU8},
      {"torch.uint16", DType::kU16},
      {"torch.uint32", DType::kU32},
      {"torch.uint64", DType::kU64},
      {"torch.bool", DType::kBool},
      {"torch.complex64", DType::kC64},
      {"torch.float8_e4m3fn", DType::kF8E4M3},
      {"torch.float8_e5m2", DType::kF8E5M2},
      {"torch.float8_e8m0fnu", DType::kF8E8M0},
      {"torch.float8_e4m3fnuz", DType::kF8E4M3Fnuz},
      {"torch.float8_e5m2fnuz", DType::kF8E5M2Fnuz},
  };
  return kTypes;
}

bool Allowed(std::string_view global) {
  return Types().contains(global) || IsNumpyConstructor(global) ||
         std::find(kConstructors.begin(), kConstructors.end(), global) != kConstructors.end();
}

/// Reads the tensors of one archive.
class TorchTensors {
 public:
  TorchTensors(const ZipEntries& files, std::string prefix)
      : files_(files), prefix_(std::move(prefix)) {}

  Result<bool> Leaf(const PickleValue& value, ForeignTensor* tensor) const {
    if (value.kind != Kind::kCall) return false;
    const auto& arguments = value.arguments->items;
    const std::string_view callee = value.callee->text;
    if (callee.starts_with("torch._utils._rebuild_parameter")) {
      if (arguments.empty() || arguments[0]->kind != Kind::kCall ||
          arguments[0]->callee->text.starts_with("torch._utils._rebuild_parameter")) {
        return CorruptionError("a parameter is no tensor");
      }
      return Leaf(*arguments[0], tensor);
    }
    if (!callee.starts_with("torch._utils._rebuild_tensor")) return ReadNumpyArray(value, tensor);
    if (arguments.size() < 4) return CorruptionError("a tensor is not described");
    RETURN_IF_ERROR(ReadTensor(value, tensor));
    return true;
  }

 private:
  Status ReadTensor(const PickleValue& value, ForeignTensor* tensor) const {
    const auto& arguments = value.arguments->items;
    std::span<const std::byte> storage;
    std::optional<DType> dtype;
    RETURN_IF_ERROR(ReadStorage(*arguments[0], &storage, &dtype));
    if (value.Calls("torch._utils._rebuild_tensor_v3")) {
      if (arguments.size() < 7 || arguments[6]->kind != Kind::kGlobal) {
        return CorruptionError("a tensor has no dtype");
      }
      dtype = TypeOf(arguments[6]->text);
    }
    if (!dtype) return CorruptionError("a tensor has no dtype");
    if (arguments[1]->kind != Kind::kInt || arguments[1]->integer < 0) {
      return CorruptionError("a tensor's place in its storage is no number");
    }
    tensor->dtype = *dtype;
    ASSIGN_OR_RETURN(tensor->shape, PickledDims(*arguments[2]));
    ASSIGN_OR_RETURN(const std::vector<std::uint64_t> strides, PickledDims(*arguments[3]));
    return GatherStrided(storage, static_cast<std::uint64_t>(arguments[1]->integer), strides,
                         tensor);
  }

  /// ("storage", type, key, device, elements)
  Status ReadStorage(const PickleValue& reference, std::span<const std::byte>* bytes,
                     std::optional<DType>* dtype) const {
    const auto fields = reference.kind == Kind::kPersistent ? reference.arguments->Sequence()
                                                            : std::span<const PickleValue* const>();
    if (fields.size() < 5 || fields[1]->kind != Kind::kGlobal || fields[2]->kind != Kind::kText) {
      return CorruptionError("a tensor's storage is not described");
    }
    *dtype = TypeOf(fields[1]->text);
    const std::string name = prefix_ + "/data/" + std::string(fields[2]->text);
    const auto file = files_.find(name);
    if (file == files_.end()) {
      return CorruptionError("the storage " + QuoteForMessage(name) + " is missing");
    }
    *bytes = file->second.content;
    return Status::Ok();
  }

  static std::optional<DType> TypeOf(std::string_view global) {
    const auto it = Types().find(global);
    return it == Types().end() ? std::nullopt : std::optional(it->second);
  }

  const ZipEntries& files_;
  const std::string prefix_;
};

Status Verify(const ZipEntries& files) {
  for (const auto& [name, entry] : files) {
    if (entry.crc32 == 0 || ZipCrc32(entry.content) == entry.crc32) continue;
    return CorruptionError(
        "the entry " + QuoteForMessage(name) +
        " does not have the bytes of its checksum (CRC-32): the file is damaged");
  }
  return Status::Ok();
}

Result<std::vector<ForeignTensor>> Decode(const ZipEntries& files, std::uint64_t file_bytes) {
  for (const auto& [name, entry] : files) {
    if (!name.ends_with(kPickle)) continue;
    const std::string prefix = name.substr(0, name.size() - kPickle.size());
    const auto order = files.find(prefix + "/byteorder");
    if (order != files.end() && !order->second.content.empty() &&
        order->second.content[0] == std::byte{'b'}) {
      return UnimplementedError("the file was written on a big-endian machine");
    }
    ASSIGN_OR_RETURN(const Pickle pickle, DecodePickle(entry.content, Allowed));
    const TorchTensors tensors(files, prefix);
    return CollectPickled(
        pickle.root(),
        [&](const PickleValue& value, ForeignTensor* tensor) -> Result<bool> {
          return tensors.Leaf(value, tensor);
        },
        file_bytes);
  }
  return InvalidArgumentError(
      "the zip archive has no data.pkl, so torch.save did not write it (a TorchScript archive, or "
      "something else)");
}

}  // namespace

Result<std::vector<ForeignTensor>> DecodeTorchZip(std::span<const std::byte> bytes) {
  ASSIGN_OR_RETURN(const ZipEntries files, DecodeZipDirectory(bytes));
  RETURN_IF_ERROR(Verify(files));
  return Decode(files, bytes.size());
}

Result<std::vector<ForeignTensor>> DecodeTorchZipUnverified(std::span<const std::byte> bytes) {
  ASSIGN_OR_RETURN(const ZipEntries files, DecodeZipDirectory(bytes));
  return Decode(files, bytes.size());
}

}  // namespace cairn
