#include "format/safetensors.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "base/checksum.h"
#include "base/status_macros.h"
#include "format/json.h"
#include "format/json_cursor.h"
#include "format/relative_path.h"

namespace cairn {
namespace {

constexpr std::string_view kMetadataName = "__metadata__";
constexpr std::size_t kLengthBytes = 8;
constexpr std::uint64_t kMaxUint = std::numeric_limits<std::uint64_t>::max();
constexpr std::size_t kUintDigits = 20;

void AppendUint(std::uint64_t number, std::string* out) {
  char buffer[kUintDigits];
  const auto result = std::to_chars(buffer, buffer + sizeof(buffer), number);
  out->append(buffer, result.ptr);
}

std::string ShapeForMessage(std::span<const std::uint64_t> shape) {
  return "[" + EncodeDims(shape) + "]";
}

// Checks what can be said of one tensor alone.
Status CheckTensor(DType dtype, std::span<const std::uint64_t> shape, std::uint64_t begin,
                   std::uint64_t end) {
  ASSIGN_OR_RETURN(const std::uint64_t bytes, TensorBytes(dtype, shape));
  if (end < begin || end - begin != bytes) {
    return InvalidArgumentError("bytes " + std::to_string(begin) + " to " + std::to_string(end) +
                                " are not the " + std::to_string(bytes) + " of " +
                                std::string(DTypeName(dtype)) + ShapeForMessage(shape));
  }
  return {};
}

// The first name that stands there twice, or null. By sorted hashes: a hash table of a million
// strings takes three times as long, and no choice of names makes this one slow.
const std::string* FindNameTwice(std::span<const TensorEntry> tensors) {
  struct Hashed {
    std::uint64_t hash;
    const std::string* name;
  };
  std::vector<Hashed> names;
  names.reserve(tensors.size());
  for (const TensorEntry& tensor : tensors) names.push_back({Xxh3(tensor.name), &tensor.name});
  std::ranges::sort(names, [](const Hashed& a, const Hashed& b) {
    return a.hash != b.hash ? a.hash < b.hash : *a.name < *b.name;
  });
  const auto twice = std::ranges::adjacent_find(names, [](const Hashed& a, const Hashed& b) {
    return a.hash == b.hash && *a.name == *b.name;
  });
  return twice == names.end() ? nullptr : twice->name;
}

// One entry of a header while it is read; reused, so that a scan for one name allocates nothing.
struct RawEntry {
  std::string_view name;
  DType dtype = DType::kU8;
  std::vector<std::uint64_t> shape;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::string name_scratch;
  std::string scratch;

  TensorEntry Take() { return {std::string(name), dtype, shape, begin, end}; }
};

bool ReadUints(JsonCursor* in, std::vector<std::uint64_t>* out) {
  out->clear();
  if (!in->Expect('[')) return false;
  if (in->Consume(']')) return true;
  do {
    std::uint64_t number = 0;
    if (!in->ReadUint(&number)) return false;
    out->push_back(number);
  } while (in->Consume(','));
  return in->Expect(']');
}

// The members of a tensor, after its '{'. Does not read further than its '}'.
Status ReadTensor(JsonCursor* in, RawEntry* entry) {
  enum : unsigned { kDType = 1, kShape = 2, kOffsets = 4, kAll = 7 };
  unsigned seen = 0;
  const auto once = [&seen](unsigned member) {
    return std::exchange(seen, seen | member) & member;
  };
  std::string_view key;
  bool more = !in->Consume('}');
  while (more && in->ReadString(&key, &entry->scratch) && in->Expect(':')) {
    unsigned again = 0;
    if (key == "dtype") {
      again = once(kDType);
      std::string_view name;
      if (!in->ReadString(&name, &entry->scratch)) break;
      const auto dtype = DTypeFromName(name);
      if (!dtype) return CorruptionError("unknown dtype " + QuoteForMessage(name));
      entry->dtype = *dtype;
    } else if (key == "shape") {
      again = once(kShape);
      if (!ReadUints(in, &entry->shape)) break;
    } else if (key == "data_offsets") {
      again = once(kOffsets);
      if (!in->Expect('[') || !in->ReadUint(&entry->begin) || !in->Expect(',') ||
          !in->ReadUint(&entry->end) || !in->Expect(']')) {
        break;
      }
    } else if (!in->SkipScalar()) {
      break;
    }
    if (again != 0) return CorruptionError("a member of a tensor stands there twice");
    if (!in->Consume(',')) {
      if (!in->Expect('}')) break;
      more = false;
    }
  }
  RETURN_IF_ERROR(in->status());
  if (seen != kAll) return CorruptionError("dtype, shape or data_offsets is missing");
  if (Status s = CheckTensor(entry->dtype, entry->shape, entry->begin, entry->end); !s.ok()) {
    return CorruptionError(std::string(s.message()));
  }
  return {};
}

// An object whose members are texts, after its '{'.
Status ReadTexts(JsonCursor* in, std::map<std::string, std::string, std::less<>>* out) {
  if (in->Consume('}')) return {};
  std::string key_scratch;
  std::string text_scratch;
  do {
    std::string_view key;
    std::string_view text;
    if (!in->ReadString(&key, &key_scratch) || !in->Expect(':') ||
        !in->ReadString(&text, &text_scratch)) {
      return in->status();
    }
    // Our own files are sorted, so that the hint makes this linear.
    const std::size_t before = out->size();
    out->emplace_hint(out->end(), std::string(key), std::string(text));
    if (out->size() == before) {
      return CorruptionError("member " + QuoteForMessage(key) + " stands there twice");
    }
  } while (in->Consume(','));
  in->Expect('}');
  return in->status();
}

// Calls on_tensor(RawEntry*) for each tensor, in the order of the text, until it returns false.
template <typename OnTensor>
Status ReadHeader(std::string_view json, SafetensorsMetadata* metadata, OnTensor on_tensor) {
  if (!json.starts_with('{')) return CorruptionError("the header does not start with '{'");
  if (!IsValidUtf8(json)) return CorruptionError("the header is not UTF-8");
  JsonCursor in(json);
  RawEntry entry;
  bool seen_metadata = false;
  if (!in.Expect('{')) return in.status();
  bool more = !in.Consume('}');
  while (more) {
    if (!in.ReadString(&entry.name, &entry.name_scratch) || !in.Expect(':') || !in.Expect('{')) {
      return in.status();
    }
    if (entry.name == kMetadataName) {
      if (std::exchange(seen_metadata, true))
        return CorruptionError("__metadata__ stands there twice");
      RETURN_IF_ERROR(ReadTexts(&in, metadata).WithContext(kMetadataName));
    } else {
      if (Status s = ReadTensor(&in, &entry); !s.ok()) {
        return std::move(s).WithContext("tensor " + QuoteForMessage(entry.name));
      }
      if (!on_tensor(&entry)) return {};
    }
    if (!in.Consume(',')) {
      if (!in.Expect('}')) return in.status();
      more = false;
    }
  }
  in.ExpectEnd();
  return in.status();
}

// The JSON of a header that is framed rightly.
Result<std::string_view> HeaderJson(std::string_view bytes, std::uint64_t file_bytes) {
  ASSIGN_OR_RETURN(const std::uint64_t expected,
                   SafetensorsHeaderBytes(bytes.substr(0, kLengthBytes), file_bytes));
  if (bytes.size() != expected) {
    return CorruptionError("the header has " + std::to_string(bytes.size()) + " bytes, not " +
                           std::to_string(expected));
  }
  return bytes.substr(kLengthBytes);
}

Status CheckLayout(const std::vector<TensorEntry>& tensors, std::uint64_t data_bytes) {
  std::uint64_t expected = 0;
  for (const TensorEntry& tensor : tensors) {
    if (tensor.begin != expected) {
      return CorruptionError("tensor " + QuoteForMessage(tensor.name) + " starts at byte " +
                             std::to_string(tensor.begin) + " of the data, not at " +
                             std::to_string(expected) + ": a hole or an overlap");
    }
    expected = tensor.end;
  }
  if (expected != data_bytes) {
    return CorruptionError("the tensors take " + std::to_string(expected) +
                           " bytes and the file holds " + std::to_string(data_bytes) + " of data");
  }
  return {};
}

// By begin, then end; those without bytes that stand at the same place keep their order.
void SortByPlace(std::vector<TensorEntry>* tensors) {
  const auto place = [](const TensorEntry& tensor) { return std::pair(tensor.begin, tensor.end); };
  if (std::ranges::is_sorted(*tensors, {}, place)) return;
  std::vector<std::size_t> order(tensors->size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, {}, [&](std::size_t i) { return std::pair(place((*tensors)[i]), i); });
  std::vector<TensorEntry> sorted;
  sorted.reserve(tensors->size());
  for (const std::size_t i : order) sorted.push_back(std::move((*tensors)[i]));
  *tensors = std::move(sorted);
}

bool IsEscaped(std::string_view json, std::size_t quote) {
  std::size_t backslashes = 0;
  while (backslashes < quote && json[quote - 1 - backslashes] == '\\') ++backslashes;
  return backslashes % 2 == 1;
}

Status CheckInFile(const TensorEntry& tensor, std::uint64_t data_bytes) {
  if (tensor.end <= data_bytes) return {};
  return CorruptionError("tensor " + QuoteForMessage(tensor.name) + " ends at byte " +
                         std::to_string(tensor.end) + " of the data, and the file holds " +
                         std::to_string(data_bytes));
}

}  // namespace

Result<std::uint64_t> TensorBytes(DType dtype, std::span<const std::uint64_t> shape) {
  std::uint64_t elements = 1;
  bool empty = false;
  for (const std::uint64_t dim : shape) {
    if (dim == 0) {
      empty = true;
    } else if (elements > kMaxUint / dim) {
      return InvalidArgumentError("a tensor of shape " + ShapeForMessage(shape) +
                                  " has over 2^64 elements");
    } else {
      elements *= dim;
    }
  }
  if (empty) return 0;
  const auto bits = static_cast<std::uint64_t>(DTypeBits(dtype));
  if (elements > kMaxUint / bits) {
    return InvalidArgumentError("a tensor of shape " + ShapeForMessage(shape) +
                                " has over 2^64 bits");
  }
  if (elements * bits % 8 != 0) {
    return InvalidArgumentError("the bits of a tensor " + std::string(DTypeName(dtype)) +
                                ShapeForMessage(shape) + " do not fill whole bytes");
  }
  return elements * bits / 8;
}

Result<std::string> EncodeSafetensorsHeader(std::span<const TensorEntry> tensors,
                                            const SafetensorsMetadata& metadata) {
  std::string out(kLengthBytes, '\0');
  std::size_t names = 0;
  for (const TensorEntry& tensor : tensors) names += tensor.name.size();
  out.reserve(names + 100 * tensors.size() + kSafetensorsAlign);
  out += '{';
  if (!metadata.empty()) {
    out += "\"__metadata__\":{";
    for (const auto& [key, text] : metadata) {
      if (!IsValidUtf8(key) || !IsValidUtf8(text)) {
        return InvalidArgumentError("metadata " + QuoteForMessage(key) + " is not UTF-8");
      }
      AppendJsonString(key, &out);
      out += ':';
      AppendJsonString(text, &out);
      out += ',';
    }
    out.back() = '}';
    out += ',';
  }
  std::uint64_t expected = 0;
  for (const TensorEntry& tensor : tensors) {
    const auto refuse = [&tensor](std::string_view why) {
      return InvalidArgumentError("tensor " + QuoteForMessage(tensor.name) + " " +
                                  std::string(why));
    };
    if (tensor.name == kMetadataName) return refuse("has a name that the format reserves");
    if (!IsValidUtf8(tensor.name)) return refuse("has a name that is not UTF-8");
    if (Status s = CheckTensor(tensor.dtype, tensor.shape, tensor.begin, tensor.end); !s.ok()) {
      return refuse(s.message());
    }
    if (tensor.begin != expected) return refuse("does not start where the one before ends");
    expected = tensor.end;
    AppendJsonString(tensor.name, &out);
    out += ":{\"dtype\":\"";
    out += DTypeName(tensor.dtype);
    out += "\",\"shape\":[";
    for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
      if (i != 0) out += ',';
      AppendUint(tensor.shape[i], &out);
    }
    out += "],\"data_offsets\":[";
    AppendUint(tensor.begin, &out);
    out += ',';
    AppendUint(tensor.end, &out);
    out += "]},";
  }
  if (const std::string* twice = FindNameTwice(tensors)) {
    return InvalidArgumentError("tensor " + QuoteForMessage(*twice) + " stands there twice");
  }
  if (out.back() == ',') out.pop_back();
  out += '}';
  out.append((kSafetensorsAlign - out.size() % kSafetensorsAlign) % kSafetensorsAlign, ' ');
  const std::uint64_t length = out.size() - kLengthBytes;
  if (length > kMaxSafetensorsHeader) {
    return ResourceExhaustedError("a safetensors header of " + std::to_string(length) +
                                  " bytes: put fewer tensors into one file");
  }
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    out[i] = static_cast<char>((length >> (8 * i)) & 0xFF);
  }
  return out;
}

std::uint64_t SafetensorsHeaderCost(const TensorEntry& tensor) {
  std::string name;
  AppendJsonString(tensor.name, &name);
  constexpr std::string_view kRest = R"(:{"dtype":"","shape":[],"data_offsets":[,]},)";
  // Offsets at their longest: when files are packed they are not known yet.
  std::uint64_t cost =
      name.size() + kRest.size() + DTypeName(tensor.dtype).size() + 2 * kUintDigits;
  cost += EncodeDims(tensor.shape).size();
  return cost;
}

Result<std::uint64_t> SafetensorsHeaderBytes(std::string_view first8, std::uint64_t file_bytes) {
  if (first8.size() < kLengthBytes || file_bytes < kLengthBytes) {
    return CorruptionError("too short for a safetensors file");
  }
  std::uint64_t length = 0;
  for (std::size_t i = kLengthBytes; i-- > 0;) {
    length = length << 8 | static_cast<unsigned char>(first8[i]);
  }
  if (length > kMaxSafetensorsHeader) {
    return CorruptionError("a safetensors header of " + std::to_string(length) +
                           " bytes is over the limit: no safetensors file?");
  }
  if (length > file_bytes - kLengthBytes) {
    return CorruptionError("a safetensors header of " + std::to_string(length) +
                           " bytes in a file of " + std::to_string(file_bytes) + " (cut?)");
  }
  return kLengthBytes + length;
}

Result<SafetensorsHeader> DecodeSafetensorsHeader(std::string_view bytes,
                                                  std::uint64_t file_bytes) {
  ASSIGN_OR_RETURN(const std::string_view json, HeaderJson(bytes, file_bytes));
  SafetensorsHeader header;
  header.data_offset = bytes.size();
  RETURN_IF_ERROR(ReadHeader(json, &header.metadata, [&header](RawEntry* entry) {
    header.tensors.push_back(entry->Take());
    return true;
  }));
  SortByPlace(&header.tensors);
  RETURN_IF_ERROR(CheckLayout(header.tensors, file_bytes - bytes.size()));
  if (const std::string* twice = FindNameTwice(header.tensors)) {
    return CorruptionError("tensor " + QuoteForMessage(*twice) + " stands there twice");
  }
  return header;
}

// Looks for the quoted name in the text first, which is ten times as quick as reading all of it.
// Why a hit that is followed by a whole tensor is the tensor, in a header that decodes: its first
// quote is not escaped, so it begins or ends a string. If it ended one, all that follows would have
// strings and structure exchanged, and the text `dtype`, which ReadTensor found in quotes, would
// stand outside a string. So it begins one; that string is a key, for a colon follows; and its
// value is an object, which only tensors and __metadata__ are, since metadata holds texts and
// tensors hold no objects. Anything less clear-cut is left to the reader of the whole header.
Result<TensorEntry> FindTensorInHeader(std::string_view bytes, std::uint64_t file_bytes,
                                       std::string_view name) {
  ASSIGN_OR_RETURN(const std::string_view json, HeaderJson(bytes, file_bytes));
  const std::uint64_t data_bytes = file_bytes - bytes.size();
  const auto not_found = [name] {
    return NotFoundError("no tensor " + QuoteForMessage(name) + " in the file");
  };
  if (name == kMetadataName || !IsValidUtf8(name)) return not_found();

  std::string quoted;
  AppendJsonString(name, &quoted);
  RawEntry entry;
  for (std::size_t from = 0;;) {
    const void* hit = memmem(json.data() + from, json.size() - from, quoted.data(), quoted.size());
    if (hit == nullptr) {
      // Without a single escape there is one way to write a name.
      if (json.find('\\') == json.npos) return not_found();
      break;
    }
    const auto at = static_cast<std::size_t>(static_cast<const char*>(hit) - json.data());
    from = at + 1;
    JsonCursor in(json.substr(at + quoted.size()));
    if (IsEscaped(json, at) || !in.Consume(':') || !in.Consume('{')) continue;
    if (!ReadTensor(&in, &entry).ok()) break;
    entry.name = name;
    TensorEntry tensor = entry.Take();
    RETURN_IF_ERROR(CheckInFile(tensor, data_bytes));
    return tensor;
  }

  TensorEntry tensor;
  bool found = false;
  SafetensorsMetadata metadata;
  RETURN_IF_ERROR(ReadHeader(json, &metadata, [&](RawEntry* candidate) {
    if (candidate->name != name) return true;
    tensor = candidate->Take();
    found = true;
    return false;
  }));
  if (!found) return not_found();
  RETURN_IF_ERROR(CheckInFile(tensor, data_bytes));
  return tensor;
}

std::string PieceName(std::string_view name, std::span<const std::uint64_t> offset) {
  return std::string(name) + "@" + EncodeDims(offset);
}

std::string PieceShapeKey(std::string_view name) { return "cairn.shape/" + std::string(name); }

std::string EncodeDims(std::span<const std::uint64_t> dims) {
  std::string out;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (i != 0) out += ',';
    AppendUint(dims[i], &out);
  }
  return out;
}

Result<std::vector<std::uint64_t>> DecodeDims(std::string_view text) {
  std::vector<std::uint64_t> dims;
  if (text.empty()) return dims;
  const char* at = text.data();
  const char* const end = at + text.size();
  for (;;) {
    std::uint64_t dim = 0;
    const auto [stop, error] = std::from_chars(at, end, dim);
    // One spelling for each number, so that names are unique.
    const bool leading_zero = stop - at > 1 && *at == '0';
    if (error != std::errc() || leading_zero || (stop != end && *stop != ',')) {
      return InvalidArgumentError(QuoteForMessage(text) + " is not a list of dimensions");
    }
    dims.push_back(dim);
    if (stop == end) return dims;
    at = stop + 1;
  }
}

Result<Piece> DescribePiece(const TensorEntry& tensor, const SafetensorsMetadata& metadata) {
  const Piece whole = {.name = tensor.name,
                       .global_shape = tensor.shape,
                       .offset = std::vector<std::uint64_t>(tensor.shape.size(), 0),
                       .whole = true};
  const std::size_t at = tensor.name.rfind('@');
  if (at == tensor.name.npos) return whole;
  const std::string_view name = std::string_view(tensor.name).substr(0, at);
  const auto offset = DecodeDims(std::string_view(tensor.name).substr(at + 1));
  const auto shape_text = metadata.find(PieceShapeKey(name));
  if (!offset.ok() || shape_text == metadata.end()) return whole;
  const auto global = DecodeDims(shape_text->second);
  if (!global.ok()) {
    return CorruptionError("the shape of array " + QuoteForMessage(name) + ": " +
                           std::string(global.status().message()));
  }
  if (offset->size() != tensor.shape.size() || global->size() != tensor.shape.size()) return whole;
  for (std::size_t d = 0; d < tensor.shape.size(); ++d) {
    if (tensor.shape[d] > (*global)[d] || (*offset)[d] > (*global)[d] - tensor.shape[d]) {
      return CorruptionError("piece " + QuoteForMessage(tensor.name) + " of shape " +
                             ShapeForMessage(tensor.shape) + " leaves its array of shape " +
                             ShapeForMessage(*global));
    }
  }
  return Piece{
      .name = std::string(name), .global_shape = *global, .offset = *offset, .whole = false};
}

std::string EncodeSafetensorsIndex(const SafetensorsIndex& index) {
  // Laid out as Hugging Face's own writer does, so that files compare equal.
  std::string out = "{\n  \"metadata\": {\n    \"total_size\": ";
  AppendUint(index.total_bytes, &out);
  out += "\n  },\n  \"weight_map\": {";
  bool first = true;
  for (const auto& [name, file] : index.files) {
    out += std::exchange(first, false) ? "\n    " : ",\n    ";
    AppendJsonString(name, &out);
    out += ": ";
    AppendJsonString(file, &out);
  }
  out += first ? "}\n}\n" : "\n  }\n}\n";
  return out;
}

namespace {

// The members of an object, after its '{': calls on_member(key), which reads the value.
template <typename OnMember>
Status ReadMembers(JsonCursor* in, OnMember on_member) {
  if (in->Consume('}')) return {};
  std::string scratch;
  do {
    std::string_view key;
    if (!in->ReadString(&key, &scratch) || !in->Expect(':')) return in->status();
    RETURN_IF_ERROR(on_member(key));
  } while (in->Consume(','));
  in->Expect('}');
  return in->status();
}

// Other writers put other members beside ours; they are skipped.
Status ReadIndex(JsonCursor* in, SafetensorsIndex* index) {
  bool seen_map = false;
  bool seen_metadata = false;
  bool seen_size = false;
  const auto skip = [in] { return in->SkipValue(kMaxJsonDepth) ? Status() : in->status(); };
  const auto twice = [](std::string_view key) {
    return CorruptionError("member " + QuoteForMessage(key) + " stands there twice");
  };
  if (!in->Expect('{')) return in->status();
  RETURN_IF_ERROR(ReadMembers(in, [&](std::string_view key) -> Status {
    if (key == "weight_map") {
      if (std::exchange(seen_map, true)) return twice(key);
      return in->Expect('{') ? ReadTexts(in, &index->files) : in->status();
    }
    if (key != "metadata") return skip();
    if (std::exchange(seen_metadata, true)) return twice(key);
    if (!in->Expect('{')) return in->status();
    return ReadMembers(in, [&](std::string_view inner) -> Status {
      if (inner != "total_size") return skip();
      if (std::exchange(seen_size, true)) return twice(inner);
      return in->ReadWholeNumber(&index->total_bytes) ? Status() : in->status();
    });
  }));
  in->ExpectEnd();
  RETURN_IF_ERROR(in->status());
  return seen_map ? Status() : CorruptionError("weight_map is missing");
}

}  // namespace

Result<SafetensorsIndex> DecodeSafetensorsIndex(std::string_view bytes) {
  constexpr std::string_view kContext = "safetensors index";
  if (!IsValidUtf8(bytes)) return CorruptionError("safetensors index: not UTF-8");
  SafetensorsIndex index;
  JsonCursor in(bytes);
  RETURN_IF_ERROR(ReadIndex(&in, &index).WithContext(kContext));
  const std::string* checked = nullptr;  // names of one file mostly stand together
  for (const auto& [name, file] : index.files) {
    if (checked != nullptr && *checked == file) continue;
    if (Status s = ValidateRelativePath(file); !s.ok()) {
      return CorruptionError("safetensors index: tensor " + QuoteForMessage(name) + ": " +
                             std::string(s.message()));
    }
    checked = &file;
  }
  return index;
}

}  // namespace cairn
