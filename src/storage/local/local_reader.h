#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <cairn/status.h>

#include "base/thread_annotations.h"
#include "storage/fs.h"
#include "storage/local/aligned_buffer.h"
#include "storage/local/local_store.h"
#include "storage/store.h"

namespace cairn {

/// A file of a local store opened for reading: an ordinary descriptor at once, and one with
/// O_DIRECT when a read queue first asks for it. May be used from several threads.
class LocalReader final : public ObjectReader {
 public:
  LocalReader(Fs* fs, std::string path, std::string name, std::unique_ptr<FsFile> file,
              const FsStat& stat)
      : fs_(fs),
        path_(std::move(path)),
        name_(std::move(name)),
        bytes_(stat.bytes),
        inode_(stat.inode),
        file_(std::move(file)) {}

  const std::string& name() const override { return name_; }
  std::uint64_t bytes() const override { return bytes_; }
  Status Read(std::uint64_t offset, std::span<std::byte> into) override;

  FsFile* buffered() { return file_.get(); }
  /// Null where the file system refuses O_DIRECT, or the name no longer leads to this file.
  FsFile* direct();
  /// The kernel refused a direct read all the same: direct() is null from now on. Reads in flight
  /// keep their descriptor.
  void RefuseDirect();

 private:
  Fs* const fs_;
  const std::string path_;
  const std::string name_;
  const std::uint64_t bytes_;
  const std::uint64_t inode_;
  const std::unique_ptr<FsFile> file_;

  Mutex mu_;
  bool direct_tried_ GUARDED_BY(mu_) = false;
  bool direct_refused_ GUARDED_BY(mu_) = false;
  std::unique_ptr<FsFile> direct_ GUARDED_BY(mu_);
};

/// Ranged reads of LocalReaders over an IoQueue of the file system. A range that bypasses the page
/// cache (as the mode says) goes straight into the caller's memory when its offset and address are
/// multiples of 4 KiB, but for an odd end, which is read afterwards through the cache. Otherwise
/// the blocks around it are read into a buffer of the queue's and copied from there, which costs
/// less than the page cache does.
class LocalReadQueue final : public ReadQueue {
 public:
  LocalReadQueue(std::unique_ptr<IoQueue> queue, ReadMode mode);

  int depth() const override { return queue_->depth(); }
  int in_flight() const override { return queue_->in_flight(); }
  Status Submit(ObjectReader* reader, std::uint64_t offset, std::span<std::byte> into,
                std::uint64_t tag) override;
  Result<Done> Wait() override;

 private:
  struct Request {
    LocalReader* reader = nullptr;
    std::uint64_t offset = 0;
    std::span<std::byte> into;
    std::uint64_t tag = 0;
    std::size_t done = 0;   // bytes read by the operations before the one in flight
    std::size_t asked = 0;  // by the one in flight
    bool direct = false;    // the one in flight
    std::optional<AlignedBuffer> copy;
  };

  bool WorthDirect(const Request& request) const;
  Status SubmitNext(std::size_t index);
  Status SubmitBuffered(std::size_t index);
  Status SubmitCopied(std::size_t index, FsFile* file);
  /// Takes the bytes of a completed operation into account; true when another must follow.
  bool Advance(Request* request, const IoQueue::Done& part);

  const ReadMode mode_;
  std::vector<Request> requests_;
  std::vector<std::size_t> free_;
  std::vector<AlignedBuffer> spare_copies_;
  std::unique_ptr<IoQueue> queue_;  // last, so that it is destroyed first: it waits
};

}  // namespace cairn
