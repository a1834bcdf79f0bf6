#include <fmt/format.h>

#include <string>
#include <vector>

#include "base/checksum.h"
#include "base/status_macros.h"
#include "checkpoint/read_chunks.h"
#include "checkpoint/restore.h"

namespace cairn {
namespace {

// "" when the bytes are those of the manifest.
std::string Compare(const FileHash& found, const FileHash& expected) {
  std::size_t differing = 0;
  std::size_t first = 0;
  for (std::size_t i = 0; i < expected.chunks.size(); ++i) {
    if (found.chunks[i] == expected.chunks[i]) continue;
    if (differing++ == 0) first = i;
  }
  if (differing > 0) {
    return fmt::format("{} of {} chunks differ from their checksums, the first is number {}",
                       differing, expected.chunks.size(), first + 1);
  }
  return found.whole == expected.whole ? "" : "the file differs from its whole checksum";
}

}  // namespace

Result<std::uint64_t> VerifyFiles(Store* store, const OpenCheckpoint& checkpoint,
                                  const Progress& progress, std::vector<VerifyProblem>* problems) {
  std::vector<ChunkRequest> requests;
  for (std::size_t file = 0; file < checkpoint.files().size(); ++file) {
    const FileHash& hash = checkpoint.files()[file].entry->hash;
    for (std::size_t i = 0; i < hash.chunks.size(); ++i) requests.push_back({file, i});
    if (hash.chunks.empty() && hash.whole != FileHasher().Finish().whole) {
      problems->push_back({checkpoint.directory(), checkpoint.files()[file].entry->path +
                                                       ": an empty file with another's checksum"});
    }
  }
  FileHasher hasher;
  std::string unreadable;  // why the present file cannot be read; its other chunks are passed over
  std::uint64_t done = 0;
  RETURN_IF_ERROR(ReadChunks(
      store, checkpoint, requests,
      {.verify = false, .delivery = ReadChunksOptions::Delivery::kInOrder, .progress = progress},
      [&](std::size_t index, const Status& outcome, std::span<const std::byte> bytes) {
        // A store that cannot be reached says nothing of the files.
        if (outcome.Is(Code::kUnavailable)) return outcome;
        const ChunkRequest& request = requests[index];
        const ManifestFile& entry = *checkpoint.files()[request.file].entry;
        if (!outcome.ok() && unreadable.empty()) unreadable = outcome.message();
        hasher.Update(bytes);
        done += bytes.size();
        if (request.chunk + 1 == entry.hash.chunks.size()) {
          const FileHash found = hasher.Finish();
          std::string problem = unreadable.empty() ? Compare(found, entry.hash) : unreadable;
          if (!problem.empty()) {
            problems->push_back({checkpoint.directory(), entry.path + ": " + problem});
          }
          unreadable.clear();
        }
        return Status::Ok();
      }));
  return done;
}

}  // namespace cairn
