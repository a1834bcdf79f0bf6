#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <cairn/checkpoint_manager.h>

#include "base/checksum.h"
#include "checkpoint/catalog.h"
#include "checkpoint/names.h"
#include "format/manifest.h"
#include "format/safetensors.h"
#include "storage/memory/memory_store.h"

namespace cairn {

inline std::string BytesOf(const void* data, std::size_t bytes) {
  return std::string(static_cast<const char*>(data), bytes);
}

template <typename T>
std::string BytesOf(const std::vector<T>& values) {
  return BytesOf(values.data(), values.size() * sizeof(T));
}

inline std::string RandomBytes(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string out(count, '\0');
  for (std::size_t i = 0; i < count; i += 8) {
    const std::uint64_t word = random();
    std::memcpy(out.data() + i, &word, std::min<std::size_t>(8, count - i));
  }
  return out;
}

/// Builds a checkpoint directory by hand, for tests of the reading half. Not for several threads.
class TestCheckpoint {
 public:
  explicit TestCheckpoint(std::string directory = "checkpoint_000040")
      : directory_(std::move(directory)) {
    manifest_.id = "11111111-2222-4333-8444-555555555555";
    manifest_.job = "job";
    manifest_.generation = 1;
    manifest_.sequence = 1;
    manifest_.step = 40;
    manifest_.participants = {"rank_0"};
  }

  /// A tensor, or with `shard` a piece of one, at the end of a safetensors file.
  TestCheckpoint& Tensor(const std::string& path, const std::string& name, DType dtype,
                         std::vector<std::uint64_t> shape, std::string bytes,
                         std::optional<ShardSpec> shard = std::nullopt) {
    SafetensorsFile& file = tensors_[path];
    const std::uint64_t begin = file.data.size();
    if (shard.has_value()) {
      file.metadata[PieceShapeKey(name)] = EncodeDims(shard->global_shape);
    }
    file.entries.push_back({.name = shard.has_value() ? PieceName(name, shard->offset) : name,
                            .dtype = dtype,
                            .shape = std::move(shape),
                            .begin = begin,
                            .end = begin + bytes.size()});
    file.data += bytes;
    return *this;
  }

  TestCheckpoint& File(const std::string& path, std::string bytes) {
    files_[path] = std::move(bytes);
    return *this;
  }

  /// The file's bytes are stored as the object `ref` of the repository.
  TestCheckpoint& Refer(const std::string& path, const std::string& ref) {
    refs_[path] = ref;
    return *this;
  }

  Manifest& manifest() { return manifest_; }
  const std::string& directory() const { return directory_; }

  /// Writes all files and an index of the model's tensors, and fills the manifest.
  void Write(Store* store, bool with_index = true) {
    SafetensorsIndex index;
    for (const auto& [path, file] : tensors_) {
      auto header = EncodeSafetensorsHeader(file.entries, file.metadata);
      ASSERT_TRUE(header.ok()) << header.status().ToString();
      files_[path] = *header + file.data;
      const std::string prefix = names::Path(names::kModel, "");
      if (!path.starts_with(prefix)) continue;
      for (const TensorEntry& entry : file.entries) {
        index.files[entry.name] = path.substr(prefix.size());
      }
      index.total_bytes += file.data.size();
    }
    if (with_index && !index.files.empty() && !files_.contains(std::string(names::kIndex))) {
      files_[std::string(names::kIndex)] = EncodeSafetensorsIndex(index);
    }
    manifest_.files.clear();
    for (const auto& [path, bytes] : files_) {
      FileHasher hasher;
      hasher.Update(std::as_bytes(std::span(bytes)));
      manifest_.files.push_back({.path = path, .hash = hasher.Finish(), .part = "rank_0"});
      std::string object = names::Path(directory_, path);
      if (const auto it = refs_.find(path); it != refs_.end()) {
        manifest_.files.back().ref = object = it->second;
      }
      ASSERT_TRUE(store->Put(object, bytes).ok());
    }
  }

  Result<std::unique_ptr<OpenCheckpoint>> Open(Store* store) const {
    return OpenCheckpoint::Open(store, directory_, std::make_shared<const Manifest>(manifest_));
  }

 private:
  struct SafetensorsFile {
    std::vector<TensorEntry> entries;
    SafetensorsMetadata metadata;
    std::string data;
  };

  std::string directory_;
  Manifest manifest_;
  std::map<std::string, SafetensorsFile> tensors_;
  std::map<std::string, std::string> files_;
  std::map<std::string, std::string> refs_;
};

/// A store whose reads complete in a random order, as a local disk or as an object store has it.
inline std::unique_ptr<MemoryStore> NewTestStore(bool object_store = false,
                                                 std::uint64_t seed = 1) {
  return MemoryStore::Open({.object_store = object_store, .queue_seed = seed}).value();
}

/// Flips one bit of a stored object.
inline void FlipBit(Store* store, const std::string& name, std::uint64_t at, int bit = 0) {
  std::string bytes = store->Get(name, ~std::uint64_t{0}).value();
  bytes.at(at) = static_cast<char>(bytes[at] ^ (1 << bit));
  ASSERT_TRUE(store->Put(name, bytes).ok());
}

}  // namespace cairn
