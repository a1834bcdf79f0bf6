#include "storage/memory/memory_reader.h"

#include "base/status_macros.h"

namespace cairn {

Status MemoryReader::Read(std::uint64_t offset, std::span<std::byte> into) {
  ASSIGN_OR_RETURN(const std::size_t count, ReadSome(offset, into));
  if (count == into.size()) return Status::Ok();
  return CorruptionError(InMemory(name_, "short read at " + std::to_string(offset) + ": " +
                                             std::to_string(count) + " of " +
                                             std::to_string(into.size()) + " bytes"));
}

Result<std::size_t> MemoryReader::ReadSome(std::uint64_t offset, std::span<std::byte> into) {
  hook_->Announce(
      {.kind = StoreOp::Kind::kRead, .name = name_, .offset = offset, .bytes = into.size()});
  return objects_->Read(name_, id_, offset, into);
}

MemoryReadQueue::MemoryReadQueue(int depth, std::optional<std::uint64_t> seed) : depth_(depth) {
  if (seed.has_value()) random_.emplace(*seed);
}

Status MemoryReadQueue::Submit(ObjectReader* reader, std::uint64_t offset,
                               std::span<std::byte> into, std::uint64_t tag) {
  if (in_flight() >= depth_) {
    return InvalidArgumentError("the queue is full: " + std::to_string(depth_) + " in flight");
  }
  auto* memory = dynamic_cast<MemoryReader*>(reader);
  if (memory == nullptr) return InvalidArgumentError("the reader belongs to another store");
  pending_.push_back({.reader = memory, .offset = offset, .into = into, .tag = tag});
  return Status::Ok();
}

Result<ReadQueue::Done> MemoryReadQueue::Wait() {
  if (pending_.empty()) return InvalidArgumentError("nothing is in flight");
  const std::size_t index =
      random_.has_value() ? static_cast<std::size_t>(random_->Below(pending_.size())) : 0;
  const Pending read = pending_[index];
  pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(index));
  Result<std::size_t> count = read.reader->ReadSome(read.offset, read.into);
  return Done{.tag = read.tag, .status = count.status(), .bytes = count.ok() ? *count : 0};
}

}  // namespace cairn
