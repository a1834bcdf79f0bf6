#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/checkpoint_manager.h>
#include <cairn/status.h>

#include "checkpoint/chunk_buffers.h"
#include "format/manifest.h"
#include "format/safetensors.h"
#include "storage/store.h"

namespace cairn {

/// A file of a checkpoint opened for reading, with what the manifest says of its bytes.
struct OpenFile {
  const ManifestFile* entry = nullptr;  // points into the manifest
  std::unique_ptr<ObjectReader> reader;
};

/// One stored piece of an array.
struct StoredPiece {
  std::size_t file = 0;           // index into OpenCheckpoint::files
  std::uint64_t file_offset = 0;  // of the piece's first byte
  std::uint64_t bytes = 0;
  std::vector<std::uint64_t> shape;
  std::vector<std::uint64_t> offset;  // in the whole array
};

/// An array of a checkpoint, whole or in pieces.
struct StoredTensor {
  DType dtype = DType::kU8;
  std::vector<std::uint64_t> shape;  // of the whole array
  std::vector<StoredPiece> pieces;
};

/// Arrays of a checkpoint by name.
using TensorMap = std::map<std::string, StoredTensor, std::less<>>;

/// A checkpoint whose files are all open and have the manifest's sizes. Readers open everything
/// first, so that a removal meanwhile (local disks) does not pull files away under a restore. For
/// one thread at a time.
class OpenCheckpoint {
 public:
  /// Opens every file of the manifest: NotFound when one is missing, Corruption when a size is
  /// wrong, both naming the file.
  static Result<std::unique_ptr<OpenCheckpoint>> Open(Store* store, std::string directory,
                                                      std::shared_ptr<const Manifest> manifest);

  const Manifest& manifest() const { return *manifest_; }
  const std::shared_ptr<const Manifest>& shared_manifest() const { return manifest_; }
  const std::string& directory() const { return directory_; }
  const std::vector<OpenFile>& files() const { return files_; }
  /// Index into files() of a path of the manifest, or -1.
  std::ptrdiff_t FindFile(std::string_view path) const;

  /// A small file whole, with every checksum compared.
  Result<std::string> ReadWhole(std::string_view path, std::uint64_t limit);
  /// The same, on another thread than the one that reads the rest meanwhile.
  Result<std::string> ReadBeside(std::string_view path, std::uint64_t limit) const;

  /// Name → tensor of a group; for kState and (when asked) others only `participant`'s files. Reads
  /// headers, verifying the chunks that hold them; Corruption for pieces that overlap, differ in
  /// dtype or shape, or do not cover the array.
  Result<TensorMap> ReadCatalog(TensorGroup group, const std::string& participant);

  /// The index of all model tensors, by their stored names, read from the files' headers.
  Result<SafetensorsIndex> BuildIndex();

  /// One tensor of the model group without reading every name of every file (uses the index).
  Result<StoredTensor> FindModelTensor(std::string_view name);
  /// The same for several names in one pass over the index. Names that are not stored are left out.
  /// `stored` (may be null): how many tensors and pieces the index lists.
  Result<TensorMap> FindModelTensors(const std::set<std::string, std::less<>>& names,
                                     std::uint64_t* stored);

  /// Memory for chunks in flight, kept between reads of this checkpoint.
  ChunkBuffers* buffers() const { return buffers_.get(); }
  /// The file's first chunk, compared with the manifest, if a header was read from it and it was
  /// kept; else nothing.
  std::span<const std::byte> FirstChunk(std::size_t file) const;

  // For readers with little memory:

  /// These bytes of a file, where they are in the first chunk that was kept; else nothing.
  std::span<const std::byte> Kept(std::size_t file, std::uint64_t begin, std::uint64_t bytes) const;
  /// They are in that chunk, so they were compared; whether they are still there is another matter.
  bool Compared(std::size_t file, std::uint64_t begin, std::uint64_t bytes) const;
  /// Of a file of a single chunk nothing else is needed from now on: the memory of the rest goes.
  void KeepOnly(std::size_t file, std::vector<NumberRange> wanted);
  /// Nothing is kept, buffers neither: the next reads begin anew. Not while one is under way.
  void ReleaseMemory();

 private:
  OpenCheckpoint();

  std::vector<std::size_t> FilesOf(TensorGroup group, const std::string& participant) const;
  /// The first bytes of a file, from chunks that were compared with the manifest.
  Result<std::string> ReadStart(std::size_t file, std::uint64_t length);
  Result<std::size_t> FileToRead(std::string_view path, std::uint64_t limit) const;
  Status CompareWhole(std::size_t file, std::string_view bytes) const;
  /// The first bytes of the files (indexes into files()), exactly length + JSON, from chunks that
  /// were compared with the manifest. `decode` is called once per file, in any order.
  Status ReadHeaders(const std::vector<std::size_t>& files,
                     const std::function<Status(std::size_t, std::string_view)>& decode);

  struct KeptChunk {
    MappedPages pages;
    std::uint64_t bytes = 0;
    bool whole = true;  // else only:
    std::vector<NumberRange> stretches;
  };

  /// A restore would read it again, and a checkpoint of many files has many of them. Takes the
  /// buffer that it is in.
  void KeepFirstChunk(std::size_t file, std::span<const std::byte> chunk);

  Store* store_ = nullptr;
  std::string directory_;
  std::shared_ptr<const Manifest> manifest_;  // shared with the view it came from
  std::vector<OpenFile> files_;
  std::map<std::string, std::size_t, std::less<>> by_path_;
  std::unique_ptr<ChunkBuffers> buffers_;
  std::map<std::size_t, KeptChunk> first_chunks_;  // by file
};

}  // namespace cairn
