#include "serving/read_epochs.h"

#include <algorithm>

namespace cairn::serving {
namespace {

/// Where a thread begins to look for a slot: each at another one, so that they do not meet.
std::size_t FirstSlot() {
  static std::atomic<std::size_t> next{0};
  thread_local const std::size_t mine = next.fetch_add(1, std::memory_order_relaxed);
  return mine;
}

}  // namespace

ReadEpochs::~ReadEpochs() {
  for (Block* block = first_.next.load(); block != nullptr;) {
    Block* next = block->next.load();
    delete block;
    block = next;
  }
}

std::atomic<std::uint64_t>* ReadEpochs::Claim(std::uint64_t epoch) {
  const std::size_t first = FirstSlot();
  for (Block* block = &first_;;) {
    for (std::size_t i = 0; i < block->slots.size(); ++i) {
      auto& slot = block->slots[(first + i) % block->slots.size()].epoch;
      std::uint64_t free = kFree;
      if (slot.load(std::memory_order_relaxed) == kFree &&
          slot.compare_exchange_strong(free, epoch)) {
        return &slot;
      }
    }
    Block* next = block->next.load(std::memory_order_acquire);
    if (next == nullptr) {
      auto* fresh = new Block();
      if (block->next.compare_exchange_strong(next, fresh)) {
        next = fresh;
      } else {
        delete fresh;  // another reader was faster; `next` is its block
      }
    }
    block = next;
  }
}

std::atomic<std::uint64_t>* ReadEpochs::Enter() {
  std::uint64_t epoch = epoch_.load();
  std::atomic<std::uint64_t>* slot = Claim(epoch);
  for (std::uint64_t now = epoch_.load(); now != epoch; now = epoch_.load()) {
    epoch = now;
    slot->store(epoch);
  }
  return slot;
}

ReadEpochs::Tag ReadEpochs::Passed() const {
  Tag passed = epoch_.load();
  for (const Block* block = &first_; block != nullptr; block = block->next.load()) {
    for (const Slot& slot : block->slots) {
      const std::uint64_t epoch = slot.epoch.load();
      if (epoch != kFree) passed = std::min(passed, epoch);
    }
  }
  return passed;
}

}  // namespace cairn::serving
