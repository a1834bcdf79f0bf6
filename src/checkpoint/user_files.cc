#include <algorithm>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <cairn/transfer.h>

#include "base/status_macros.h"
#include "checkpoint/catalog.h"
#include "checkpoint/checkpoint_path.h"
#include "checkpoint/names.h"
#include "checkpoint/stored_bytes.h"

namespace cairn {
namespace {

constexpr std::size_t kPiece = 1u << 20;

std::string FilesPrefix() { return std::string(names::kFiles) + "/"; }

}  // namespace

Result<std::vector<std::string>> UserFilesOf(const std::string& checkpoint) {
  ASSIGN_OR_RETURN(const PlacedCheckpoint placed, ReadCheckpointAt(checkpoint));
  std::vector<std::string> found;
  for (const ManifestFile& file : placed.checkpoint.manifest->files) {
    if (!file.path.starts_with(FilesPrefix())) continue;
    found.push_back(file.path.substr(FilesPrefix().size()));
  }
  std::sort(found.begin(), found.end());
  return found;
}

Status FetchUserFile(const std::string& checkpoint, const std::string& name,
                     const std::string& path) {
  ASSIGN_OR_RETURN(const PlacedCheckpoint placed, ReadCheckpointAt(checkpoint));
  Store* store = placed.env.store.get();
  ASSIGN_OR_RETURN(
      const std::unique_ptr<OpenCheckpoint> open,
      OpenCheckpoint::Open(store, placed.checkpoint.directory, placed.checkpoint.manifest));
  const auto found =
      std::find_if(open->files().begin(), open->files().end(),
                   [&](const auto& file) { return file.entry->path == FilesPrefix() + name; });
  if (found == open->files().end()) {
    return NotFoundError("\"" + checkpoint + "\" has no file \"" + name + "\"");
  }
  StoredBytes bytes(store, open.get());  // compares checksums on the way
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  std::vector<std::byte> piece(kPiece);
  const auto index = static_cast<std::size_t>(found - open->files().begin());
  const std::uint64_t size = found->entry->hash.bytes;
  for (std::uint64_t at = 0; at < size; at += kPiece) {
    const std::span<std::byte> part(piece.data(), std::min<std::uint64_t>(kPiece, size - at));
    RETURN_IF_ERROR(bytes.Read(index, at, part));
    out.write(reinterpret_cast<const char*>(part.data()),
              static_cast<std::streamsize>(part.size()));
  }
  out.close();
  if (!out) return ResourceExhaustedError("\"" + path + "\" could not be written");
  return Status::Ok();
}

}  // namespace cairn
