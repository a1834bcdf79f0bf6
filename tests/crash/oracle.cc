#include "tests/crash/oracle.h"

#include <algorithm>

namespace cairn::crash {
int Oracle::Begin(std::int64_t step) {
  MutexLock lock(&mu_);
  const int serial = promise_.begun.empty() ? 1 : promise_.begun.rbegin()->first + 1;
  promise_.begun[serial] = step;
  return serial;
}

void Oracle::Acknowledge(int serial) {
  MutexLock lock(&mu_);
  std::vector<int>& acknowledged = promise_.acknowledged;
  if (std::find(acknowledged.begin(), acknowledged.end(), serial) != acknowledged.end()) return;
  acknowledged.push_back(serial);
  Release();
}

void Oracle::Release() {
  const std::vector<int>& acknowledged = promise_.acknowledged;
  for (std::size_t i = 0; keep_last_ && i + *keep_last_ < acknowledged.size(); ++i) {
    const auto pin = promise_.pinned.find(acknowledged[i]);
    if (pin != promise_.pinned.end() && pin->second) continue;
    released_.insert(acknowledged[i]);
  }
}

void Oracle::Adopt(const std::set<int>& serials) {
  MutexLock lock(&mu_);
  std::set<int> all(promise_.acknowledged.begin(), promise_.acknowledged.end());
  all.insert(serials.begin(), serials.end());
  for (const int serial : serials) promise_.begun.emplace(serial, serial);
  promise_.acknowledged.assign(all.begin(), all.end());
  Release();
}

void Oracle::Deleting(int serial) {
  MutexLock lock(&mu_);
  released_.insert(serial);
}

void Oracle::Deleted(int serial) {
  MutexLock lock(&mu_);
  promise_.deleted.insert(serial);
  std::erase(promise_.acknowledged, serial);
}

void Oracle::Pinning(int serial) {
  MutexLock lock(&mu_);
  promise_.pinned.erase(serial);
}

void Oracle::Pinned(int serial, bool pinned) {
  MutexLock lock(&mu_);
  promise_.pinned[serial] = pinned;
}

void Oracle::Scoring() {
  MutexLock lock(&mu_);
  Release();
}

void Oracle::Scored(int serial, double score) {
  MutexLock lock(&mu_);
  promise_.scores[serial] = score;
}

Promise Oracle::Now() const {
  MutexLock lock(&mu_);
  Promise promise = promise_;
  for (const int serial : promise.acknowledged) {
    if (!released_.contains(serial)) promise.required.insert(serial);
  }
  return promise;
}

}  // namespace cairn::crash
