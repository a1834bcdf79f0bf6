#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/dtype.h>
#include <cairn/status.h>

namespace cairn {

/// The safetensors file format (docs/format/safetensors.md): 8 bytes little-endian header length, a
/// JSON header, then the tensors' bytes back to back without holes. Pure codecs.

/// Data starts at a multiple of this, so that bulk reads and writes are aligned.
inline constexpr std::uint64_t kSafetensorsAlign = 4096;
/// Headers we write stay under this; a reader accepts up to kMaxSafetensorsHeader.
inline constexpr std::uint64_t kSafetensorsHeaderBudget = 50'000'000;
inline constexpr std::uint64_t kMaxSafetensorsHeader = 100'000'000;

struct TensorEntry {
  std::string name;
  DType dtype = DType::kU8;
  std::vector<std::uint64_t> shape;
  std::uint64_t begin = 0;  // offsets from the start of the data, not of the file
  std::uint64_t end = 0;

  friend bool operator==(const TensorEntry&, const TensorEntry&) = default;
};

using SafetensorsMetadata = std::map<std::string, std::string, std::less<>>;

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  // ordered by begin, then end (ties: as in the file)
  SafetensorsMetadata metadata;      // "__metadata__"
  std::uint64_t data_offset = 0;     // where the data starts in the file

  std::uint64_t DataBytes() const { return tensors.empty() ? 0 : tensors.back().end; }
};

/// Bytes of a tensor of this type and shape. InvalidArgument when it overflows or when the bits of
/// a sub-byte type do not fill whole bytes.
Result<std::uint64_t> TensorBytes(DType dtype, std::span<const std::uint64_t> shape);

/// The file's first bytes: length, JSON, spaces up to a multiple of kSafetensorsAlign. Checks that
/// names are unique valid UTF-8 and not "__metadata__", that sizes fit the shapes, and that the
/// tensors stand back to back from 0 in the given order. InvalidArgument when something is wrong,
/// ResourceExhausted when the header would be over kMaxSafetensorsHeader.
Result<std::string> EncodeSafetensorsHeader(std::span<const TensorEntry> tensors,
                                            const SafetensorsMetadata& metadata);

/// The most bytes that the tensor can add to a header; for packing files under the budget.
std::uint64_t SafetensorsHeaderCost(const TensorEntry& tensor);

/// From a file's first 8 bytes: how many bytes length and JSON take together. Corruption when that
/// is over kMaxSafetensorsHeader or over `file_bytes`.
Result<std::uint64_t> SafetensorsHeaderBytes(std::string_view first8, std::uint64_t file_bytes);

/// Decodes length + JSON (`bytes` holds exactly those) and checks everything against `file_bytes`:
/// sizes that fit shapes, no holes, no overlaps, no bytes after the last tensor, no name twice.
/// Members of a tensor that the format does not know are ignored when they are plain values and
/// refused when they are lists or objects.
Result<SafetensorsHeader> DecodeSafetensorsHeader(std::string_view bytes, std::uint64_t file_bytes);

/// Finds one tensor without building the whole header: NotFound when it is not there. For files
/// with very many names. In a header that DecodeSafetensorsHeader accepts it finds exactly what
/// stands there; of any other it checks no more than the tensor it found: that its size fits its
/// shape and that it lies inside the file.
Result<TensorEntry> FindTensorInHeader(std::string_view bytes, std::uint64_t file_bytes,
                                       std::string_view name);

/// A piece of a distributed array is stored as "<name>@<offset,…>" and the array's whole shape as
/// metadata "cairn.shape/<name>" = "8,16".
std::string PieceName(std::string_view name, std::span<const std::uint64_t> offset);
std::string PieceShapeKey(std::string_view name);
std::string EncodeDims(std::span<const std::uint64_t> dims);  // "8,16"; "" for 0-d
Result<std::vector<std::uint64_t>> DecodeDims(std::string_view text);

/// A tensor of a file as the engine sees it: the array it belongs to and where it stands in it.
struct Piece {
  std::string name;  // of the whole array
  std::vector<std::uint64_t> global_shape;
  std::vector<std::uint64_t> offset;  // all zero for a whole tensor
  bool whole = true;
};
/// Reads name and metadata of an entry. An entry "x@1,2" is a piece only if the metadata holds the
/// shape of "x" with as many dimensions and the piece lies inside it; a piece outside its array is
/// Corruption.
Result<Piece> DescribePiece(const TensorEntry& tensor, const SafetensorsMetadata& metadata);

/// Hugging Face's model.safetensors.index.json.
struct SafetensorsIndex {
  std::uint64_t total_bytes = 0;
  std::map<std::string, std::string, std::less<>> files;  // tensor name → file name
};
std::string EncodeSafetensorsIndex(const SafetensorsIndex& index);
Result<SafetensorsIndex> DecodeSafetensorsIndex(std::string_view bytes);

}  // namespace cairn
