#include <array>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include <cairn/table.h>

#include "base/thread_annotations.h"
#include "table/stripe_lock.h"

namespace cairn {
namespace {

using table::Relax;

constexpr std::size_t kSlots = 64;
// A cut takes some ten microseconds: whoever it holds back looks for as long before it sleeps.
constexpr int kLooks = 2000;

std::size_t ThreadNumber() {
  static std::atomic<std::size_t> next{0};
  thread_local const std::size_t number = next.fetch_add(1, std::memory_order_relaxed);
  return number;
}

/// How deep this thread is inside of the gates that it entered.
struct Inside {
  const void* gate;
  int depth;
};
std::vector<Inside>& InsideOfThread() {
  thread_local std::vector<Inside> inside;
  return inside;
}
Inside* FindInside(const void* gate) {
  for (Inside& entry : InsideOfThread()) {
    if (entry.gate == gate) return &entry;
  }
  return nullptr;
}

}  // namespace

/// Each thread counts itself in on a cache line of its own. Both sides write and then look at what
/// the other wrote, in one total order, so that at least one of them sees the other.
struct CutGate::Impl {
  struct alignas(64) Slot {
    std::atomic<std::uint32_t> inside{0};
  };
  std::array<Slot, kSlots> slots;
  std::atomic<bool> closed{false};
  Mutex cutting;                        // one cut at a time
  std::atomic<std::thread::id> cutter;  // who has it
  Mutex mu;
  CondVar opened;

  /// Whether the calling thread is the one that cuts.
  bool Cuts() const { return cutter.load(std::memory_order_relaxed) == std::this_thread::get_id(); }

  void AwaitOpen() {
    for (int i = 0; i < kLooks; ++i) {
      if (!closed.load(std::memory_order_acquire)) return;
      Relax();
    }
    const MutexLock lock(&mu);
    while (closed.load(std::memory_order_acquire)) opened.Wait(&mu);
  }

  bool Empty() const {
    for (const Slot& slot : slots) {
      if (slot.inside.load(std::memory_order_seq_cst) != 0) return false;
    }
    return true;
  }

  void AwaitEmpty() const {
    for (int i = 0; i < kLooks; ++i) {
      if (Empty()) return;
      Relax();
    }
    // Batches take up to milliseconds; those that wait for room in a side buffer, longer.
    constexpr int kYields = 2000;
    for (int i = 0; !Empty(); ++i) {
      if (i < kYields) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    }
  }

  void Open() {
    cutter.store(std::thread::id(), std::memory_order_relaxed);
    {
      const MutexLock lock(&mu);
      closed.store(false, std::memory_order_seq_cst);
    }
    opened.NotifyAll();
  }
};

CutGate::CutGate() : impl_(std::make_unique<Impl>()) {}
CutGate::~CutGate() = default;

const std::shared_ptr<CutGate>& CutGate::Process() {
  static const auto* gate = new std::shared_ptr<CutGate>(std::make_shared<CutGate>());
  return *gate;
}

CutGate::Batch::Batch(CutGate* gate) : gate_(gate), slot_(nullptr) {
  if (Inside* inside = FindInside(gate)) {
    ++inside->depth;
    return;
  }
  InsideOfThread().push_back({gate, 1});
  // The cut's own work may change tables too: before they are cut, and nobody else is inside.
  if (gate->impl_->Cuts()) return;
  Impl::Slot& slot = gate->impl_->slots[ThreadNumber() % kSlots];
  slot_ = &slot;
  while (true) {
    slot.inside.fetch_add(1, std::memory_order_seq_cst);
    if (!gate->impl_->closed.load(std::memory_order_seq_cst)) return;
    slot.inside.fetch_sub(1, std::memory_order_seq_cst);
    gate->impl_->AwaitOpen();
  }
}

CutGate::Batch::~Batch() {
  Inside* inside = FindInside(gate_);
  if (--inside->depth > 0) return;
  *inside = InsideOfThread().back();
  InsideOfThread().pop_back();
  if (slot_ == nullptr) return;  // the cutter's
  static_cast<Impl::Slot*>(slot_)->inside.fetch_sub(1, std::memory_order_seq_cst);
}

bool CutGate::InBatch() const { return FindInside(this) != nullptr; }
bool CutGate::InUse() const { return !impl_->Empty(); }

Status CutGate::Exclusive(const std::function<Status()>& fn) {
  if (InBatch()) {
    return FailedPreconditionError(
        "a cut inside of a batch would wait for itself: leave the batch first");
  }
  if (impl_->Cuts()) return fn();
  const MutexLock lock(&impl_->cutting);
  impl_->closed.store(true, std::memory_order_seq_cst);
  impl_->AwaitEmpty();
  impl_->cutter.store(std::this_thread::get_id(), std::memory_order_relaxed);
  Status status;
  try {
    status = fn();
  } catch (...) {
    impl_->Open();
    throw;
  }
  impl_->Open();
  return status;
}

}  // namespace cairn
