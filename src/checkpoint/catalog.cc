#include "checkpoint/catalog.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/checksum.h"
#include "base/open_files.h"
#include "base/status_macros.h"
#include "checkpoint/coverage.h"
#include "checkpoint/names.h"
#include "checkpoint/parallel.h"
#include "checkpoint/read_chunks.h"
#include "format/json_cursor.h"
#include "format/safetensors.h"

namespace cairn {
namespace {

constexpr std::string_view kSafetensors = ".safetensors";
// An index names every tensor: a gibibyte is about ten million of them.
constexpr std::uint64_t kMaxIndexBytes = 1u << 30;
// Up to so many wanted names per file each gets a scan of the header; for more it is decoded once.
constexpr std::size_t kMaxHeaderScans = 4;
// First chunks that are kept: 96 MiB at most, and on a store that is far away half of what is in
// flight there.
constexpr std::size_t kMaxFirstChunks = 24;
// A shorter one is read again sooner than there is another buffer in the place of its own.
constexpr std::size_t kWorthKeeping = 64u << 10;
// So many that they may be what there are too few descriptors for.
constexpr std::size_t kManyFiles = 100;

std::uint64_t ChunkCount(std::uint64_t bytes) {
  return bytes / kChunkBytes + (bytes % kChunkBytes != 0);
}

bool BelongsTo(const ManifestFile& file, TensorGroup group, const std::string& participant) {
  switch (group) {
    case TensorGroup::kModel:
      return file.path.starts_with(names::Path(names::kModel, "")) &&
             file.path.ends_with(kSafetensors) && (participant.empty() || file.part == participant);
    case TensorGroup::kTable:
      if (participant.empty()) {
        return file.path.starts_with(names::Path(names::kTables, "")) &&
               file.path.ends_with(kSafetensors);
      }
      return file.path == names::Path(names::kTables, participant + std::string(kSafetensors));
    case TensorGroup::kState:
      return file.path == names::Path(participant, names::kStateTensors);
  }
  return false;
}

/// Collects the pieces of arrays from the headers of files.
class Gatherer {
 public:
  explicit Gatherer(const OpenCheckpoint& checkpoint) : checkpoint_(checkpoint) {}

  Status Add(std::size_t file, TensorEntry entry, std::uint64_t data_offset,
             const SafetensorsMetadata& metadata) {
    if (entry.name.find('@') == std::string::npos) {
      return AddWhole(file, std::move(entry), data_offset);
    }
    ASSIGN_OR_RETURN(Piece piece, DescribePiece(entry, metadata));
    return AddPiece(file, std::move(entry), data_offset, std::move(piece));
  }

  Status AddWhole(std::size_t file, TensorEntry entry, std::uint64_t data_offset) {
    Piece whole{.name = std::move(entry.name),
                .global_shape = entry.shape,
                .offset = std::vector<std::uint64_t>(entry.shape.size(), 0)};
    return AddPiece(file, std::move(entry), data_offset, std::move(whole));
  }

  void Keep(const std::set<std::string, std::less<>>& wanted) {
    std::erase_if(tensors_, [&](const auto& item) { return !wanted.contains(item.first); });
  }

  /// `complete`: every piece of each array was added, so that arrays must be whole.
  Result<TensorMap> Finish(bool complete) {
    for (auto& [name, tensor] : tensors_) {
      // Headers arrive in any order; plans and messages shall not depend on it.
      std::sort(tensor.pieces.begin(), tensor.pieces.end(),
                [](const StoredPiece& a, const StoredPiece& b) {
                  return std::pair(a.file, a.file_offset) < std::pair(b.file, b.file_offset);
                });
      if (!complete || partial_) continue;
      const Status status = CheckCoverage(name, tensor);
      if (!status.ok()) return status.WithContext(checkpoint_.directory());
    }
    return std::move(tensors_);
  }

 private:
  // `entry.name` may be moved from; the piece has the array's.
  Status AddPiece(std::size_t file, TensorEntry entry, std::uint64_t data_offset, Piece piece) {
    const auto [it, fresh] = tensors_.try_emplace(std::move(piece.name));
    const std::string& name = it->first;
    StoredTensor& tensor = it->second;
    if (fresh) {
      if (!TensorBytes(entry.dtype, piece.global_shape).ok()) {
        return CorruptionError(fmt::format("{}: array {}: impossible shape [{}]", Where(file), name,
                                           EncodeDims(piece.global_shape)));
      }
      tensor.dtype = entry.dtype;
      tensor.shape = std::move(piece.global_shape);
    } else if (piece.whole || tensor.dtype != entry.dtype || tensor.shape != piece.global_shape) {
      return CorruptionError(fmt::format("{} and {} both hold array {}{}",
                                         Where(tensor.pieces.front().file), Where(file), name,
                                         piece.whole ? "" : ", with other types or shapes"));
    }
    tensor.pieces.push_back({.file = file,
                             .file_offset = data_offset + entry.begin,
                             .bytes = entry.end - entry.begin,
                             .shape = std::move(entry.shape),
                             .offset = std::move(piece.offset)});
    return Status::Ok();
  }

  std::string Where(std::size_t file) const {
    return names::Path(checkpoint_.directory(), checkpoint_.files()[file].entry->path);
  }

  const OpenCheckpoint& checkpoint_;
  // What one of several trainers wrote into a directory of its own: pieces, until they are merged.
  const bool partial_ = checkpoint_.manifest().lineage.Find("private") != nullptr;
  TensorMap tensors_;
};

/// What the index says of the wanted names.
struct IndexHits {
  std::map<std::string, std::set<std::string, std::less<>>, std::less<>> whole;  // file → names
  std::set<std::string, std::less<>> split;  // files with pieces of wanted arrays
  std::uint64_t stored = 0;
};

// "x@0,4" → "x" when that looks like a piece's name; whether it is one, the file's header says.
std::string_view ArrayOfPiece(std::string_view stored_name) {
  const std::size_t at = stored_name.rfind('@');
  if (at == std::string_view::npos) return {};
  return DecodeDims(stored_name.substr(at + 1)).ok() ? stored_name.substr(0, at)
                                                     : std::string_view();
}

Result<IndexHits> ScanIndex(std::string_view text,
                            const std::set<std::string, std::less<>>& wanted) {
  IndexHits hits;
  JsonCursor cursor(text);
  std::string key_scratch;
  std::string file_scratch;
  std::string_view key;
  std::string_view file;
  const auto map_member = [&] {
    if (!cursor.ReadString(&key, &key_scratch) || !cursor.Expect(':')) return;
    if (!cursor.ReadString(&file, &file_scratch)) return;
    ++hits.stored;
    if (wanted.contains(key)) {
      // A name that looks like a piece's may be one, or a tensor that is really called so.
      if (ArrayOfPiece(key).empty()) {
        hits.whole[std::string(file)].emplace(key);
      } else {
        hits.split.emplace(file);
      }
    }
    const std::string_view array = ArrayOfPiece(key);
    if (!array.empty() && wanted.contains(array)) hits.split.emplace(file);
  };
  cursor.Expect('{');
  for (bool first = true; cursor.ok() && !cursor.Consume('}'); first = false) {
    if (!first && !cursor.Expect(',')) break;
    if (!cursor.ReadString(&key, &key_scratch) || !cursor.Expect(':')) break;
    if (key != "weight_map") {
      if (!cursor.SkipValue(64)) break;
      continue;
    }
    cursor.Expect('{');
    for (bool first_name = true; cursor.ok() && !cursor.Consume('}'); first_name = false) {
      if (!first_name && !cursor.Expect(',')) break;
      map_member();
    }
  }
  if (cursor.ok()) cursor.ExpectEnd();
  if (!cursor.ok()) return cursor.status();
  return hits;
}

}  // namespace

OpenCheckpoint::OpenCheckpoint() : buffers_(std::make_unique<ChunkBuffers>()) {}

void OpenCheckpoint::KeepFirstChunk(std::size_t file, std::span<const std::byte> chunk) {
  const std::size_t most = ChunksWorthReading(*store_, 2 * kMaxFirstChunks) / 2;
  if (chunk.size() < kWorthKeeping || first_chunks_.size() >= most) return;
  const auto [it, fresh] = first_chunks_.try_emplace(file);
  if (!fresh) return;
  it->second.pages = buffers_->Take(chunk.data());
  it->second.bytes = chunk.size();
  if (it->second.pages.bytes().empty()) first_chunks_.erase(it);  // then it is read again
}

std::span<const std::byte> OpenCheckpoint::FirstChunk(std::size_t file) const {
  const auto it = first_chunks_.find(file);
  if (it == first_chunks_.end() || !it->second.whole) return {};
  return it->second.pages.bytes().first(it->second.bytes);
}

bool OpenCheckpoint::Compared(std::size_t file, std::uint64_t begin, std::uint64_t bytes) const {
  const auto it = first_chunks_.find(file);
  return it != first_chunks_.end() && begin <= it->second.bytes &&
         bytes <= it->second.bytes - begin;
}

std::span<const std::byte> OpenCheckpoint::Kept(std::size_t file, std::uint64_t begin,
                                                std::uint64_t bytes) const {
  if (!Compared(file, begin, bytes)) return {};
  const KeptChunk& chunk = first_chunks_.find(file)->second;
  const auto holds = [&](const NumberRange& stretch) {
    return stretch.begin <= begin && begin + bytes <= stretch.end;
  };
  if (!chunk.whole && std::none_of(chunk.stretches.begin(), chunk.stretches.end(), holds)) {
    return {};
  }
  return chunk.pages.bytes().subspan(begin, bytes);
}

void OpenCheckpoint::KeepOnly(std::size_t file, std::vector<NumberRange> wanted) {
  const auto it = first_chunks_.find(file);
  if (it == first_chunks_.end() || files_[file].entry->hash.chunks.size() != 1) return;
  KeptChunk& chunk = it->second;
  std::sort(wanted.begin(), wanted.end(),
            [](const NumberRange& a, const NumberRange& b) { return a.begin < b.begin; });
  std::uint64_t kept_to = 0;
  for (const NumberRange& stretch : wanted) {
    if (stretch.begin > kept_to) chunk.pages.Drop(kept_to, stretch.begin);
    kept_to = std::max(kept_to, stretch.end);
  }
  chunk.pages.Drop(kept_to, chunk.pages.bytes().size());
  chunk.whole = false;
  chunk.stretches = std::move(wanted);
}

void OpenCheckpoint::ReleaseMemory() {
  first_chunks_.clear();
  *buffers_ = ChunkBuffers();
}

Result<std::unique_ptr<OpenCheckpoint>> OpenCheckpoint::Open(
    Store* store, std::string directory, std::shared_ptr<const Manifest> manifest) {
  std::unique_ptr<OpenCheckpoint> checkpoint(new OpenCheckpoint());
  checkpoint->store_ = store;
  checkpoint->directory_ = std::move(directory);
  checkpoint->manifest_ = std::move(manifest);
  const std::vector<ManifestFile>& entries = checkpoint->manifest_->files;
  checkpoint->files_.reserve(entries.size());
  AllowOpenFiles(entries.size());
  std::vector<std::optional<Result<std::unique_ptr<ObjectReader>>>> readers(entries.size());
  ForEachRequest(*store, entries.size(), [&](std::size_t i) {
    const ManifestFile& entry = entries[i];
    readers[i].emplace(store->OpenReader(
        entry.ref.empty() ? names::Path(checkpoint->directory_, entry.path) : entry.ref));
  });
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const ManifestFile& entry = entries[i];
    const std::string path = names::Path(checkpoint->directory_, entry.path);
    Result<std::unique_ptr<ObjectReader>>& reader = *readers[i];
    if (reader.status().Is(Code::kResourceExhausted) && entries.size() > kManyFiles) {
      return reader.status().WithContext(
          fmt::format("{}: the checkpoint has {} files, which are all opened at once (ulimit -Hn "
                      "says how many may be)",
                      checkpoint->directory_, entries.size()));
    }
    if (!reader.ok()) return reader.status().WithContext(path);
    const std::uint64_t bytes = (*reader)->bytes();
    if (bytes != entry.hash.bytes) {
      return CorruptionError(
          fmt::format("{}: has {} bytes, the manifest says {}", path, bytes, entry.hash.bytes));
    }
    if (entry.hash.chunks.size() != ChunkCount(entry.hash.bytes)) {
      return CorruptionError(fmt::format("{}: the manifest has {} checksums for {} bytes", path,
                                         entry.hash.chunks.size(), entry.hash.bytes));
    }
    if (!checkpoint->by_path_.emplace(entry.path, checkpoint->files_.size()).second) {
      return CorruptionError(path + ": the manifest names it twice");
    }
    checkpoint->files_.push_back({&entry, std::move(reader).value()});
  }
  return checkpoint;
}

std::ptrdiff_t OpenCheckpoint::FindFile(std::string_view path) const {
  const auto it = by_path_.find(path);
  return it == by_path_.end() ? -1 : static_cast<std::ptrdiff_t>(it->second);
}

Result<std::size_t> OpenCheckpoint::FileToRead(std::string_view path, std::uint64_t limit) const {
  const std::ptrdiff_t index = FindFile(path);
  if (index < 0) {
    return NotFoundError(names::Path(directory_, path) + ": the manifest has no such file");
  }
  const auto file = static_cast<std::size_t>(index);
  const FileHash& hash = files_[file].entry->hash;
  if (hash.bytes > limit) {
    return ResourceExhaustedError(fmt::format("{}: has {} bytes, at most {} are read",
                                              names::Path(directory_, path), hash.bytes, limit));
  }
  return file;
}

Status OpenCheckpoint::CompareWhole(std::size_t file, std::string_view bytes) const {
  const ManifestFile& entry = *files_[file].entry;
  if (Xxh3Wide(std::as_bytes(std::span(bytes))) == entry.hash.whole) return Status::Ok();
  return CorruptionError(names::Path(directory_, entry.path) +
                         ": the file differs from its whole checksum");
}

Result<std::string> OpenCheckpoint::ReadWhole(std::string_view path, std::uint64_t limit) {
  ASSIGN_OR_RETURN(const std::size_t file, FileToRead(path, limit));
  ASSIGN_OR_RETURN(std::string out, ReadStart(file, files_[file].entry->hash.bytes));
  RETURN_IF_ERROR(CompareWhole(file, out));
  return out;
}

Result<std::string> OpenCheckpoint::ReadBeside(std::string_view path, std::uint64_t limit) const {
  ASSIGN_OR_RETURN(const std::size_t file, FileToRead(path, limit));
  std::string out(files_[file].entry->hash.bytes, '\0');
  const Status read = files_[file].reader->Read(0, std::as_writable_bytes(std::span(out)));
  const std::string where = names::Path(directory_, path);
  // The disk cannot give the bytes back: to a reader the same as wrong ones.
  if (read.Is(Code::kInternal)) return CorruptionError(where + ": " + std::string(read.message()));
  if (!read.ok()) return read.WithContext(where);
  RETURN_IF_ERROR(CompareWhole(file, out));
  return out;
}

Status OpenCheckpoint::ReadHeaders(
    const std::vector<std::size_t>& files,
    const std::function<Status(std::size_t, std::string_view)>& decode) {
  const auto decode_here = [&](std::size_t file, std::string_view bytes) {
    return decode(file, bytes).WithContext(names::Path(directory_, files_[file].entry->path));
  };
  std::vector<ChunkRequest> first;
  for (const std::size_t file : files) {
    if (files_[file].entry->hash.bytes < 8) {
      return CorruptionError(names::Path(directory_, files_[file].entry->path) +
                             ": too short for a safetensors file");
    }
    first.push_back({file, 0});
  }
  std::map<std::size_t, std::uint64_t> longer;  // headers of more than a chunk, and their bytes
  RETURN_IF_ERROR(ReadChunks(
      store_, *this, first, {},
      [&](std::size_t request, const Status& outcome, std::span<const std::byte> chunk) {
        if (!outcome.ok()) return outcome;
        const std::size_t file = first[request].file;
        KeepFirstChunk(file, chunk);
        const std::string_view bytes(reinterpret_cast<const char*>(chunk.data()), chunk.size());
        const auto length =
            SafetensorsHeaderBytes(bytes.substr(0, 8), files_[file].entry->hash.bytes);
        if (!length.ok()) {
          return length.status().WithContext(names::Path(directory_, files_[file].entry->path));
        }
        if (*length <= bytes.size()) return decode_here(file, bytes.substr(0, *length));
        longer[file] = *length;
        return Status::Ok();
      }));
  // One after the other: each may take a hundred megabytes.
  for (const auto& [file, length] : longer) {
    ASSIGN_OR_RETURN(const std::string header, ReadStart(file, length));
    RETURN_IF_ERROR(decode_here(file, header));
  }
  return Status::Ok();
}

Result<std::string> OpenCheckpoint::ReadStart(std::size_t file, std::uint64_t length) {
  std::vector<ChunkRequest> requests;
  for (std::uint64_t i = 0; i < ChunkCount(length); ++i) requests.push_back({file, i});
  std::string out(length, '\0');
  RETURN_IF_ERROR(ReadChunks(
      store_, *this, requests, {},
      [&](std::size_t request, const Status& outcome, std::span<const std::byte> chunk) {
        if (!outcome.ok()) return outcome;
        const std::uint64_t start = requests[request].chunk * kChunkBytes;
        std::copy_n(reinterpret_cast<const char*>(chunk.data()),
                    std::min<std::uint64_t>(chunk.size(), length - start), out.data() + start);
        return Status::Ok();
      }));
  return out;
}

std::vector<std::size_t> OpenCheckpoint::FilesOf(TensorGroup group,
                                                 const std::string& participant) const {
  std::vector<std::size_t> files;
  for (std::size_t i = 0; i < files_.size(); ++i) {
    if (BelongsTo(*files_[i].entry, group, participant)) files.push_back(i);
  }
  return files;
}

Result<TensorMap> OpenCheckpoint::ReadCatalog(TensorGroup group, const std::string& participant) {
  if (group == TensorGroup::kState && participant.empty()) {
    return InvalidArgumentError("state tensors belong to a participant: name it");
  }
  Gatherer gatherer(*this);
  const std::vector<std::size_t> files = FilesOf(group, participant);
  RETURN_IF_ERROR(ReadHeaders(files, [&](std::size_t file, std::string_view bytes) -> Status {
    ASSIGN_OR_RETURN(SafetensorsHeader header,
                     DecodeSafetensorsHeader(bytes, files_[file].entry->hash.bytes));
    for (TensorEntry& entry : header.tensors) {
      RETURN_IF_ERROR(gatherer.Add(file, std::move(entry), header.data_offset, header.metadata));
    }
    return Status::Ok();
  }));
  // One participant's model files hold its own pieces only.
  return gatherer.Finish(group != TensorGroup::kModel || participant.empty());
}

Result<StoredTensor> OpenCheckpoint::FindModelTensor(std::string_view name) {
  ASSIGN_OR_RETURN(TensorMap found, FindModelTensors({std::string(name)}, nullptr));
  if (found.empty()) {
    return NotFoundError(fmt::format("{}: no tensor {} in the model", directory_, name));
  }
  return std::move(found.begin()->second);
}

Result<TensorMap> OpenCheckpoint::FindModelTensors(const std::set<std::string, std::less<>>& wanted,
                                                   std::uint64_t* stored) {
  if (FindFile(names::kIndex) < 0) {
    ASSIGN_OR_RETURN(TensorMap all, ReadCatalog(TensorGroup::kModel, ""));
    if (stored != nullptr) *stored = all.size();
    std::erase_if(all, [&](const auto& item) { return !wanted.contains(item.first); });
    return all;
  }
  IndexHits hits;
  {
    ASSIGN_OR_RETURN(const std::string index, ReadWhole(names::kIndex, kMaxIndexBytes));
    auto scanned = ScanIndex(index, wanted);
    if (!scanned.ok()) {
      return scanned.status().WithContext(names::Path(directory_, names::kIndex));
    }
    hits = std::move(scanned).value();
  }
  if (stored != nullptr) *stored = hits.stored;

  std::vector<std::size_t> files;
  std::map<std::size_t, const std::set<std::string, std::less<>>*> scans;
  const auto add_file = [&](const std::string& name) -> Result<std::size_t> {
    const std::ptrdiff_t file = FindFile(names::Path(names::kModel, name));
    if (file < 0) {
      return CorruptionError(fmt::format("{}: names {}, which the manifest does not have",
                                         names::Path(directory_, names::kIndex), name));
    }
    files.push_back(static_cast<std::size_t>(file));
    return files.back();
  };
  for (const std::string& name : hits.split) RETURN_IF_ERROR(add_file(name).status());
  for (const auto& [name, tensors] : hits.whole) {
    if (hits.split.contains(name)) continue;
    ASSIGN_OR_RETURN(const std::size_t file, add_file(name));
    if (tensors.size() <= kMaxHeaderScans) scans[file] = &tensors;
  }

  Gatherer gatherer(*this);
  RETURN_IF_ERROR(ReadHeaders(files, [&](std::size_t file, std::string_view bytes) -> Status {
    const std::uint64_t file_bytes = files_[file].entry->hash.bytes;
    if (const auto it = scans.find(file); it != scans.end()) {
      for (const std::string& name : *it->second) {
        auto entry = FindTensorInHeader(bytes, file_bytes, name);
        if (entry.status().Is(Code::kNotFound)) {
          return CorruptionError(fmt::format("has no tensor {}, though the index says so", name));
        }
        if (!entry.ok()) return entry.status();
        RETURN_IF_ERROR(gatherer.AddWhole(file, *std::move(entry), bytes.size()));
      }
      return Status::Ok();
    }
    ASSIGN_OR_RETURN(SafetensorsHeader header, DecodeSafetensorsHeader(bytes, file_bytes));
    for (TensorEntry& entry : header.tensors) {
      if (!wanted.contains(entry.name) && !wanted.contains(ArrayOfPiece(entry.name))) continue;
      RETURN_IF_ERROR(gatherer.Add(file, std::move(entry), header.data_offset, header.metadata));
    }
    return Status::Ok();
  }));
  gatherer.Keep(wanted);
  ASSIGN_OR_RETURN(TensorMap found, gatherer.Finish(true));
  for (const auto& [file, tensors] : hits.whole) {
    for (const std::string& name : tensors) {
      if (found.contains(name)) continue;
      return CorruptionError(
          fmt::format("{}: {} has no tensor {}, though the index says so", directory_, file, name));
    }
  }
  return found;
}

}  // namespace cairn
