#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <cairn/checkpoint_manager.h>
#include <cairn/status.h>

#include "base/checksum.h"
#include "checkpoint/environment.h"
#include "checkpoint/layout.h"
#include "format/manifest.h"

namespace cairn {

/// Files of the previous checkpoint that a new one may share, by content.
class ShareableFiles {
 public:
  ShareableFiles() = default;
  /// Those of a committed checkpoint. `proven`: nobody doubts that they are what it says; else each
  /// is compared before it is shared.
  ShareableFiles(const std::string& directory, const Manifest& manifest, bool proven);

  struct File {
    std::string location;  // inside the repository
    FileHash hash;
  };
  const File* Find(std::uint64_t bytes, const Hash128& whole) const;
  bool HasBytes(std::uint64_t bytes) const;
  bool proven() const { return proven_; }

 private:
  bool proven_ = true;
  std::multimap<std::uint64_t, File> by_bytes_;
};

/// A few buffers that streamed files pass through; allocated at the first use, then reused.
class StreamRing;

struct WriteProgress {
  std::atomic<std::uint64_t> written{0};
  std::atomic<std::uint64_t> shared{0};
  std::atomic<std::uint64_t> kept{0};  // of those written: what was there before (resume)
};

struct FileWriterInput {
  const SavePlan* plan = nullptr;
  const SaveRequest* request = nullptr;  // for streamed tensors
  const std::byte* arena = nullptr;
  std::string directory;
  std::string participant;
  const ShareableFiles* shareable = nullptr;
  const SaveHistory* history = nullptr;     // that the plan was made with
  std::vector<ObjectInfo>* pool = nullptr;  // recycled objects; used ones are taken out
  std::uint64_t recycle_from_bytes = 0;     // smaller files are made anew
  /// Of files that must arrive with these bytes, by number of the plan's file; null: of none. Only
  /// for streamed files. Compared before the last part is handed over, so that on object stores a
  /// file with other bytes never appears.
  const std::vector<std::optional<FileHash>>* expected = nullptr;
  /// Go on with what was left of these very files in `directory`; `expected` says what is good of
  /// it.
  bool resume = false;
  /// When the writing is cut short, what is unfinished stays for one that resumes it.
  bool leave_unfinished = false;
  /// Called when all files were handed to the session, before their syncs are waited for.
  std::function<Status(WriteSession* session, const std::vector<ManifestFile>& files)> when_handed;
  std::string marker;  // when not empty: the directory is claimed with this marker first
  WriteMode mode = WriteMode::kAuto;
  std::function<bool()> cancelled;
};

struct WrittenFiles {
  std::vector<ManifestFile> files;
  SaveHistory history;
  std::vector<std::string> created;  // every name made, for cleaning up after a failure
};

/// Writes the planned files into `directory`: hashes as it goes, shares what did not change, makes
/// bytes and names durable. On failure `out->created` says what to delete. AlreadyExists: the
/// directory belongs to somebody else; nothing was made.
Status WriteFiles(const Environment& env, const FileWriterInput& input, StreamRing* ring,
                  WriteProgress* progress, WrittenFiles* out);

/// After these the same may be tried again, and goes on with what is there: cancelled, or the store
/// was not reached.
bool WasCutShort(const Status& status);

class StreamRing {
 public:
  StreamRing() = default;
  ~StreamRing();
  StreamRing(const StreamRing&) = delete;
  StreamRing& operator=(const StreamRing&) = delete;

  /// Afterwards there are `count` buffers of `buffer_bytes`; what was in other ones is lost.
  Status Reserve(std::size_t buffer_bytes, std::size_t count);
  std::byte* buffer(std::size_t i) { return data_ + i * buffer_bytes_; }
  std::size_t buffer_bytes() const { return buffer_bytes_; }
  std::size_t count() const { return count_; }

 private:
  void Free();

  std::byte* data_ = nullptr;
  std::size_t buffer_bytes_ = 0;
  std::size_t count_ = 0;
};

}  // namespace cairn
