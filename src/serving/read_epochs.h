#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace cairn::serving {

/// Tells the one who frees memory when no reader can still be looking at it. A reader holds a Guard
/// while it follows pointers; it never waits. The writer makes something unreachable, asks for a
/// Tag, and frees it when Passed() has reached the tag.
///
/// Why it is safe: Enter publishes an epoch in a slot and then reads the epoch again, until both
/// are the same; Retire raises the epoch, and Passed reads the slots after that. All four are
/// sequentially consistent. So either Passed sees the reader's slot with an epoch below the tag, or
/// the reader has read the raised epoch, and with it everything that the writer did before.
class ReadEpochs {
 public:
  ReadEpochs() = default;
  /// Nobody may be inside.
  ~ReadEpochs();
  ReadEpochs(const ReadEpochs&) = delete;
  ReadEpochs& operator=(const ReadEpochs&) = delete;

  using Tag = std::uint64_t;

  /// Any thread; short: what is retired meanwhile stays in memory.
  class [[nodiscard]] Guard {
   public:
    explicit Guard(ReadEpochs* epochs) : slot_(epochs->Enter()) {}
    ~Guard() { slot_->store(kFree, std::memory_order_release); }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    std::atomic<std::uint64_t>* slot_;
  };

  /// What the caller made unreachable before is free when Passed() ≥ the tag. Any thread.
  Tag Retire() { return epoch_.fetch_add(1) + 1; }
  Tag Passed() const;

 private:
  static constexpr std::uint64_t kFree = 0;
  struct alignas(64) Slot {
    std::atomic<std::uint64_t> epoch{kFree};
  };
  /// Readers at once beyond the first block make further ones, which stay.
  struct Block {
    std::array<Slot, 64> slots;
    std::atomic<Block*> next{nullptr};
  };

  std::atomic<std::uint64_t>* Enter();
  std::atomic<std::uint64_t>* Claim(std::uint64_t epoch);

  std::atomic<std::uint64_t> epoch_{1};
  Block first_;
};

}  // namespace cairn::serving
