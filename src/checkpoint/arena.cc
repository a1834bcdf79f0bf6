#include "checkpoint/arena.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace cairn {

Arena::~Arena() {
  if (data_ != nullptr) munmap(data_, capacity_);
}

Status Arena::Reserve(std::uint64_t bytes) {
  if (bytes <= capacity_) return Status::Ok();
  constexpr std::uint64_t kHuge = 2u << 20;
  const std::uint64_t rounded = (bytes + kHuge - 1) / kHuge * kHuge;
  // The old mapping goes first: both at once would double the peak.
  if (data_ != nullptr) munmap(data_, capacity_);
  data_ = nullptr;
  capacity_ = 0;
  void* mapped = mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    return ResourceExhaustedError("no memory for a snapshot of " + std::to_string(rounded) +
                                  " bytes (" + std::strerror(errno) +
                                  "); low_memory=True needs none");
  }
  madvise(mapped, rounded, MADV_HUGEPAGE);
  // A forked child has no use for it, and copying page tables of it would cost.
  madvise(mapped, rounded, MADV_DONTFORK);
  data_ = static_cast<std::byte*>(mapped);
  capacity_ = rounded;
  return Status::Ok();
}

}  // namespace cairn
