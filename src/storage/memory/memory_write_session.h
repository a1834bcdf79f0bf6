#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <cairn/status.h>

#include "storage/memory/memory_hook.h"
#include "storage/memory/memory_objects.h"
#include "storage/memory/paged_bytes.h"
#include "storage/store.h"

namespace cairn {

/// In object-store mode objects are gathered here and published by Drain; in plain mode their bytes
/// go straight into the named object. Parts are copied when their completion is returned.
class MemoryWriteSession final : public WriteSession {
 public:
  MemoryWriteSession(std::shared_ptr<MemoryObjects> objects, std::shared_ptr<MemoryHook> hook)
      : objects_(std::move(objects)), hook_(std::move(hook)) {}
  ~MemoryWriteSession() override;

  std::size_t part_bytes() const override { return objects_->options().part_bytes; }

  Result<std::uint32_t> Open(const std::string& name, const NewObject& object) override;
  Status Append(std::uint32_t object, std::span<const std::byte> part, bool padded,
                std::uint64_t tag) override;
  Status Close(std::uint32_t object) override;
  Result<std::uint64_t> WaitPart() override;
  Status Drain() override;

 private:
  struct Object {
    std::string name;
    std::uint64_t bytes = 0;
    std::uint64_t appended = 0;
    bool closed = false;
    bool published = false;  // object-store mode
    std::uint64_t id = 0;    // plain mode: the object in place
    PagedBytes content;      // object-store mode
  };
  struct Part {
    std::uint32_t object = 0;
    std::uint64_t offset = 0;
    std::span<const std::byte> bytes;
    std::uint64_t tag = 0;
  };

  Status Condemn(Status status);
  std::string NameOf(std::uint32_t object) const;
  Status TryOpen(const std::string& name, const NewObject& object);
  Status TryAppend(std::uint32_t index, std::span<const std::byte> part, bool padded,
                   std::uint64_t tag);
  Status TryClose(std::uint32_t index);

  /// A caller who promised room that is not there is found by the address sanitizer.
  static void TouchRoomBehind(std::span<const std::byte> part);

  void CompleteOldest();

  const std::shared_ptr<MemoryObjects> objects_;
  const std::shared_ptr<MemoryHook> hook_;
  Status failed_;
  std::vector<Object> outgoing_;    // by handle
  std::deque<Part> parts_;          // borrowed, not copied yet
  std::deque<std::uint64_t> tags_;  // copied, not yet returned by WaitPart
};

}  // namespace cairn
