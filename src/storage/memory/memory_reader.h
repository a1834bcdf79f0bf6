#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include <cairn/status.h>

#include "storage/memory/memory_hook.h"
#include "storage/memory/memory_objects.h"
#include "storage/memory/seeded_random.h"
#include "storage/store.h"

namespace cairn {

/// An object of a MemoryStore opened for reading, which it keeps from the pool meanwhile. May be
/// used from several threads.
class MemoryReader final : public ObjectReader {
 public:
  MemoryReader(std::shared_ptr<MemoryObjects> objects, std::shared_ptr<MemoryHook> hook,
               std::string name, std::uint64_t id, std::uint64_t bytes)
      : objects_(std::move(objects)),
        hook_(std::move(hook)),
        name_(std::move(name)),
        id_(id),
        bytes_(bytes) {}
  ~MemoryReader() override { objects_->Unpin(id_); }

  const std::string& name() const override { return name_; }
  std::uint64_t bytes() const override { return bytes_; }

  Status Read(std::uint64_t offset, std::span<std::byte> into) override;
  /// As many bytes as there are, at most into.size().
  Result<std::size_t> ReadSome(std::uint64_t offset, std::span<std::byte> into);

 private:
  const std::shared_ptr<MemoryObjects> objects_;
  const std::shared_ptr<MemoryHook> hook_;
  const std::string name_;
  const std::uint64_t id_;
  const std::uint64_t bytes_;
};

/// Reads when a completion is asked for.
class MemoryReadQueue final : public ReadQueue {
 public:
  MemoryReadQueue(int depth, std::optional<std::uint64_t> seed);

  int depth() const override { return depth_; }
  int in_flight() const override { return static_cast<int>(pending_.size()); }

  Status Submit(ObjectReader* reader, std::uint64_t offset, std::span<std::byte> into,
                std::uint64_t tag) override;
  Result<Done> Wait() override;

 private:
  struct Pending {
    MemoryReader* reader;
    std::uint64_t offset;
    std::span<std::byte> into;
    std::uint64_t tag;
  };

  const int depth_;
  std::optional<SeededRandom> random_;
  std::deque<Pending> pending_;
};

}  // namespace cairn
