#pragma once

#include <memory>
#include <utility>

#include "base/thread_annotations.h"
#include "storage/memory/memory_store.h"
#include "storage/memory/store_op.h"

namespace cairn {

/// The hook of one Store object, for it and its sessions, readers and queues. May be called from
/// several threads.
class MemoryHook {
 public:
  void Set(MemoryStore::Hook hook) {
    MutexLock lock(&mu_);
    hook_ = hook ? std::make_shared<const MemoryStore::Hook>(std::move(hook)) : nullptr;
  }

  void Announce(const StoreOp& op) EXCLUDES(mu_) {
    std::shared_ptr<const MemoryStore::Hook> hook;
    {
      MutexLock lock(&mu_);
      hook = hook_;
    }
    if (hook != nullptr) (*hook)(op);
  }

 private:
  Mutex mu_;
  std::shared_ptr<const MemoryStore::Hook> hook_ GUARDED_BY(mu_);  // shared with calls under way
};

}  // namespace cairn
