#include "launch/launch_queue.h"

#include <fmt/format.h>

#include <charconv>
#include <iterator>

namespace cairn {

LaunchQueue::LaunchQueue(int slots) : slots_(slots) {}

void LaunchQueue::Push(const std::string& id, int slots, int priority) {
  waiting_.insert({.priority = priority, .number = ++pushed_, .id = id, .slots = slots});
}

bool LaunchQueue::Remove(std::string_view id) {
  for (auto entry = waiting_.begin(); entry != waiting_.end(); ++entry) {
    if (entry->id != id) continue;
    waiting_.erase(entry);
    return true;
  }
  return false;
}

std::optional<LaunchQueue::Next> LaunchQueue::Pop() {
  // One that takes no slots is in nobody's way and waits for nobody.
  auto chosen = waiting_.begin();
  while (chosen != waiting_.end() && chosen->slots > 0) ++chosen;
  std::vector<int> free;
  if (chosen == waiting_.end()) {
    chosen = waiting_.begin();
    if (chosen == waiting_.end()) return std::nullopt;
    for (int slot = 0; slot < slots_ && std::ssize(free) < chosen->slots; ++slot) {
      if (!taken_.contains(slot)) free.push_back(slot);
    }
    if (std::ssize(free) < chosen->slots) return std::nullopt;
  }
  Next next{.id = chosen->id, .slots = free};
  waiting_.erase(chosen);
  Take(next.slots);
  return next;
}

void LaunchQueue::Take(const std::vector<int>& slots) { taken_.insert(slots.begin(), slots.end()); }

void LaunchQueue::Release(const std::vector<int>& slots) {
  for (const int slot : slots) {
    if (const auto found = taken_.find(slot); found != taken_.end()) taken_.erase(found);
  }
}

std::string LaunchQueue::Reason(std::string_view id) const {
  std::size_t before = 0;
  for (const Entry& entry : waiting_) {
    if (entry.id != id) {
      ++before;
      continue;
    }
    if (before > 0) return fmt::format("behind {} other{}", before, before == 1 ? "" : "s");
    int free = 0;
    for (int slot = 0; slot < slots_; ++slot) free += taken_.contains(slot) ? 0 : 1;
    return fmt::format("waits for {} slot{} ({} free)", entry.slots, entry.slots == 1 ? "" : "s",
                       free);
  }
  return "";
}

std::string JoinSlots(const std::vector<int>& slots) {
  return fmt::format("{}", fmt::join(slots, ","));
}

std::vector<int> ParseSlots(std::string_view text) {
  std::vector<int> slots;
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    const std::string_view part = text.substr(0, comma);
    int slot = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), slot);
    if (error == std::errc() && end == part.data() + part.size()) slots.push_back(slot);
    text.remove_prefix(comma == std::string_view::npos ? text.size() : comma + 1);
  }
  return slots;
}

}  // namespace cairn
