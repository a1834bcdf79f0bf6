#include "master/services.h"

#include <chrono>
#include <utility>

namespace cairn::master {
namespace {
constexpr auto kSilence = std::chrono::seconds(60);
constexpr std::size_t kMost = 10'000;
}  // namespace

bool Services::Report(const std::string& name, Value::Object facts) {
  facts["name"] = name;
  facts["time"] = static_cast<double>(clock_->WallNanos()) / 1e9;
  MutexLock hold(&mu_);
  if (entries_.size() >= kMost && !entries_.contains(name)) return false;
  entries_[name] = {.facts = std::move(facts), .heard = clock_->Now()};
  return true;
}

Value::List Services::List() {
  const Clock::Duration now = clock_->Now();
  MutexLock hold(&mu_);
  std::erase_if(entries_, [&](const auto& item) { return now - item.second.heard > kSilence; });
  Value::List out;
  for (const auto& [name, entry] : entries_) out.emplace_back(entry.facts);
  return out;
}

}  // namespace cairn::master
