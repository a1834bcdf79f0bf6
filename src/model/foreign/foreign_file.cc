#include "model/foreign/foreign_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <optional>
#include <string_view>
#include <utility>

#include "base/status_macros.h"
#include "checkpoint/import_place.h"
#include "format/json.h"
#include "format/safetensors.h"
#include "model/foreign/copy_limit.h"
#include "model/foreign/onnx_initializers.h"
#include "model/foreign/paddle_pickle.h"
#include "model/foreign/paddle_tensor.h"
#include "model/foreign/side_files.h"
#include "model/foreign/torch_zip.h"

namespace cairn {
namespace {

struct FormatName {
  ForeignFormat format;
  std::string_view name;
};
constexpr std::array<FormatName, 6> kFormats = {{{ForeignFormat::kGuess, "guess"},
                                                 {ForeignFormat::kPaddleTensors, "paddle"},
                                                 {ForeignFormat::kPaddlePickle, "pdparams"},
                                                 {ForeignFormat::kTorch, "torch"},
                                                 {ForeignFormat::kSafetensors, "safetensors"},
                                                 {ForeignFormat::kOnnx, "onnx"}}};

bool StartsWith(std::span<const std::byte> bytes, std::string_view start) {
  return bytes.size() >= start.size() && std::memcmp(bytes.data(), start.data(), start.size()) == 0;
}

Result<std::vector<ForeignTensor>> DecodeSafetensors(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.size() < 8) return CorruptionError("is too short for a safetensors file");
  ASSIGN_OR_RETURN(const std::uint64_t head,
                   SafetensorsHeaderBytes(text.substr(0, 8), text.size()));
  ASSIGN_OR_RETURN(SafetensorsHeader header,
                   DecodeSafetensorsHeader(text.substr(0, head), text.size()));
  std::vector<ForeignTensor> tensors;
  for (TensorEntry& entry : header.tensors) {
    ForeignTensor tensor;
    tensor.name = std::move(entry.name);
    tensor.dtype = entry.dtype;
    tensor.shape = std::move(entry.shape);
    tensor.borrowed = bytes.subspan(header.data_offset + entry.begin, entry.end - entry.begin);
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

}  // namespace

std::string_view ForeignFormatName(ForeignFormat format) {
  for (const FormatName& known : kFormats) {
    if (known.format == format) return known.name;
  }
  return "?";
}

std::optional<ForeignFormat> ForeignFormatFromName(std::string_view name) {
  for (const FormatName& known : kFormats) {
    if (known.name == name) return known.format;
  }
  return std::nullopt;
}

Result<ForeignFormat> GuessForeignFormat(const std::string& path,
                                         std::span<const std::byte> bytes) {
  const auto ends = [&](std::string_view suffix) { return path.ends_with(suffix); };
  if (ends(".safetensors")) return ForeignFormat::kSafetensors;
  if (ends(".onnx")) return ForeignFormat::kOnnx;
  if (ends(".pdparams") || ends(".pdopt")) return ForeignFormat::kPaddlePickle;
  if (ends(".pdiparams")) return ForeignFormat::kPaddleTensors;
  if (StartsWith(bytes, "PK\x03\x04")) return ForeignFormat::kTorch;
  if (ends(".pt") || ends(".pth") || ends(".bin") || ends(".ckpt")) {
    return UnimplementedError(
        "is no zip archive: torch before 1.6 wrote it, or something else; load it with torch and "
        "save it again");
  }
  if (LooksLikePaddleTensor(bytes)) return ForeignFormat::kPaddleTensors;
  return InvalidArgumentError(
      "neither its name nor its bytes say what it is; name the format: paddle, pdparams, torch, "
      "safetensors or onnx");
}

Result<ForeignFile> ForeignFile::Open(const ForeignSource& source) {
  ASSIGN_OR_RETURN(ImportTarget found, FindImport(source.path));
  ImportPlace* place = found.place.get();  // the files' below
  ForeignFile out;
  out.files_ = std::make_unique<PlacedFiles>(std::move(found.place));
  RETURN_IF_ERROR(found.name.empty() ? out.OpenDirectory(source, place)
                                     : out.OpenFile(source, found.name, source.path));
  std::sort(out.tensors_.begin(), out.tensors_.end(),
            [](const ForeignTensor& a, const ForeignTensor& b) { return a.name < b.name; });
  for (std::size_t i = 1; i < out.tensors_.size(); ++i) {
    if (out.tensors_[i].name != out.tensors_[i - 1].name) continue;
    return InvalidArgumentError("two files hold a tensor " + QuoteForMessage(out.tensors_[i].name) +
                                "; load one of them by its name");
  }
  return out;
}

Status ForeignFile::OpenFile(const ForeignSource& source, const std::string& name,
                             const std::string& path) {
  const auto read = [&]() -> Status {
    ASSIGN_OR_RETURN(const std::span<const std::byte> bytes, files_->Read(name));
    ForeignFormat format = source.format;
    if (format == ForeignFormat::kGuess) {
      ASSIGN_OR_RETURN(format, GuessForeignFormat(name, bytes));
    }
    return Decode(source, name, format, bytes);
  };
  const Status status = read();
  return status.ok() ? status : status.WithContext("\"" + path + "\"");
}

Status ForeignFile::Decode(const ForeignSource& source, const std::string& name,
                           ForeignFormat format, std::span<const std::byte> bytes) {
  std::vector<ForeignTensor> tensors;
  switch (format) {
    case ForeignFormat::kGuess:
      return InternalError("a format that was not guessed");
    case ForeignFormat::kPaddleTensors: {
      std::vector<std::string> names = source.names;
      // A file of one tensor is called as its variable.
      if (names.empty()) names = {name};
      ASSIGN_OR_RETURN(tensors, DecodePaddleTensors(bytes, names));
      break;
    }
    case ForeignFormat::kPaddlePickle: {
      ASSIGN_OR_RETURN(tensors, DecodePaddlePickle(bytes));
      break;
    }
    case ForeignFormat::kTorch: {
      ASSIGN_OR_RETURN(tensors, DecodeTorchZip(bytes));
      break;
    }
    case ForeignFormat::kSafetensors: {
      ASSIGN_OR_RETURN(tensors, DecodeSafetensors(bytes));
      break;
    }
    case ForeignFormat::kOnnx: {
      ASSIGN_OR_RETURN(tensors, DecodeOnnxInitializers(bytes, files_.get()));
      break;
    }
  }
  std::move(tensors.begin(), tensors.end(), std::back_inserter(tensors_));
  return Status::Ok();
}

Status ForeignFile::OpenDirectory(const ForeignSource& source, ImportPlace* place) {
  // Safetensors directories have other files beside them; in a directory of Paddle's every file is
  // a variable.
  const auto is_safetensors = [](const std::string& name) {
    return name.ends_with(".safetensors");
  };
  ASSIGN_OR_RETURN(std::vector<std::string> names, place->FilesDirectly());
  bool safetensors = source.format == ForeignFormat::kSafetensors ||
                     (source.format == ForeignFormat::kGuess &&
                      std::any_of(names.begin(), names.end(), is_safetensors));
  if (!safetensors) {
    ASSIGN_OR_RETURN(names, place->Files());
    safetensors = source.format == ForeignFormat::kGuess &&
                  std::any_of(names.begin(), names.end(), is_safetensors);
  }
  for (const std::string& name : names) {
    if (safetensors && (!is_safetensors(name) || name.find('/') != name.npos)) continue;
    if (name == "__model__" || name.ends_with(".pdmodel"))
      continue;  // Paddle's program beside them
    RETURN_IF_ERROR(OpenFile(source, name, place->PathOf(name)));
  }
  if (!tensors_.empty()) return Status::Ok();
  return NotFoundError("\"" + source.path + "\" holds no file of variables");
}

Result<std::vector<OwnedTensor>> ReadForeign(const ForeignSource& source) {
  ASSIGN_OR_RETURN(const ForeignFile file, ForeignFile::Open(source));
  std::vector<OwnedTensor> tensors;
  std::uint64_t left = MostCopiedBytes(file.file_bytes());
  for (const ForeignTensor& tensor : file.tensors()) {
    const std::span<const std::byte> bytes = tensor.Bytes();
    if (bytes.size() > left) return RepeatedOverAndOver().WithContext("\"" + source.path + "\"");
    left -= bytes.size();
    constexpr std::align_val_t kAlign{64};
    void* memory = ::operator new(std::max<std::size_t>(bytes.size(), 1), kAlign, std::nothrow);
    if (memory == nullptr) {
      return ResourceExhaustedError(
          fmt::format("no memory for {}: {} bytes", tensor.name, bytes.size()));
    }
    if (!bytes.empty()) std::memcpy(memory, bytes.data(), bytes.size());
    OwnedTensor owned;
    owned.name = tensor.name;
    owned.dtype = tensor.dtype;
    owned.shape = tensor.shape;
    owned.bytes = bytes.size();
    owned.data = std::shared_ptr<std::byte>(static_cast<std::byte*>(memory),
                                            [](std::byte* p) { ::operator delete(p, kAlign); });
    tensors.push_back(std::move(owned));
  }
  return tensors;
}

}  // namespace cairn
