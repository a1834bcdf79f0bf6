#include "table/slab.h"

#include <sys/mman.h>

#include <algorithm>

namespace cairn::table {
namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kSmallest = 64u << 10;
constexpr std::size_t kHuge = 2u << 20;
constexpr std::size_t kLargest = 32u << 20;

std::size_t RoundUp(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

}  // namespace

std::byte* Slab::Allocate(std::size_t bytes) {
  bytes = RoundUp(bytes, kLine);
  const MutexLock lock(&mu_);
  // Those that were kept come in the same order as last time: hardly one is too small.
  while (bytes > left_ && used_ < mappings_.size()) Use(used_);
  if (bytes > left_ && !Grow(bytes)) return nullptr;
  std::byte* out = next_;
  next_ += bytes;
  left_ -= bytes;
  return out;
}

void Slab::Use(std::size_t mapping) {
  next_ = mappings_[mapping].base;
  left_ = mappings_[mapping].bytes;
  used_ = mapping + 1;
}

bool Slab::Grow(std::size_t at_least) {
  // An eighth of what there is: the part not yet used stays small against the rest.
  std::size_t bytes = std::clamp<std::size_t>(mapped_ / 8, kSmallest, kLargest);
  bytes = std::max(bytes, at_least);
  const bool huge = bytes >= kHuge;
  bytes = RoundUp(bytes, huge ? kHuge : kSmallest);
  const std::size_t reserve = huge ? bytes + kHuge : bytes;
  void* mapped = mmap(nullptr, reserve, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return false;
  auto* base = static_cast<std::byte*>(mapped);
  if (huge) {
    const std::size_t head = RoundUp(reinterpret_cast<std::uintptr_t>(base), kHuge) -
                             reinterpret_cast<std::uintptr_t>(base);
    if (head > 0) munmap(base, head);
    if (head < kHuge) munmap(base + head + bytes, kHuge - head);
    base += head;
    madvise(base, bytes, MADV_HUGEPAGE);  // a hint: without it everything works, slower
  }
  mappings_.push_back({base, bytes});
  mapped_ += bytes;
  Use(mappings_.size() - 1);
  return true;
}

void Slab::Rewind() {
  const MutexLock lock(&mu_);
  const std::size_t keep = (used_ + mappings_.size() + 1) / 2;
  while (mappings_.size() > keep) {
    munmap(mappings_.back().base, mappings_.back().bytes);
    mapped_ -= mappings_.back().bytes;
    mappings_.pop_back();
  }
  // A hint, as above: pages that nobody missed until they are written again are still there.
  for (const Mapping& mapping : mappings_) madvise(mapping.base, mapping.bytes, MADV_FREE);
  next_ = nullptr;
  left_ = 0;
  used_ = 0;
}

void Slab::Reset() {
  const MutexLock lock(&mu_);
  for (const Mapping& mapping : mappings_) munmap(mapping.base, mapping.bytes);
  mappings_.clear();
  used_ = 0;
  next_ = nullptr;
  left_ = 0;
  mapped_ = 0;
}

std::uint64_t Slab::bytes() const {
  const MutexLock lock(&mu_);
  return mapped_;
}

}  // namespace cairn::table
