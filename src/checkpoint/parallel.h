#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <functional>
#include <thread>
#include <vector>

#include "storage/store.h"

namespace cairn {

/// Calls fn(0) … fn(count - 1) with as many calls at once as the store's requests are worth. One
/// after the other, in order and on this thread, where that is one: a disk, or a store whose
/// operations a test puts in order.
inline void ForEachRequest(const Store& store, std::size_t count,
                           const std::function<void(std::size_t)>& fn) {
  const int worth = std::max(1, store.traits().parallel_requests);
  const std::size_t threads = std::min<std::size_t>(count, static_cast<std::size_t>(worth));
  if (threads <= 1) {
    for (std::size_t i = 0; i < count; ++i) fn(i);
    return;
  }
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < count; i = next++) fn(i);
  };
  std::vector<std::jthread> workers;
  for (std::size_t i = 1; i < threads; ++i) workers.emplace_back(work);
  work();
}

}  // namespace cairn
