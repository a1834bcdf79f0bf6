#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace cairn {

/// Which launch is next, and on which slots. Greater priorities come first, then first come, first
/// served; nothing overtakes the launch at the head, because one that wants many slots would wait
/// for ever behind small ones. One caller at a time.
class LaunchQueue {
 public:
  explicit LaunchQueue(int slots);

  void Push(const std::string& id, int slots, int priority);
  /// True when it was queued.
  bool Remove(std::string_view id);

  struct Next {
    std::string id;
    std::vector<int> slots;
  };
  /// Takes the head off the queue with slots for it, when enough are free.
  std::optional<Next> Pop();

  /// Slots that a launch found on opening has; numbers beyond ours count too.
  void Take(const std::vector<int>& slots);
  void Release(const std::vector<int>& slots);

  /// "waits for 2 slots (1 free)", "behind 3 others".
  std::string Reason(std::string_view id) const;

 private:
  struct Entry {
    int priority = 0;
    std::uint64_t number = 0;
    std::string id;
    int slots = 0;
    friend bool operator<(const Entry& a, const Entry& b) {
      return a.priority != b.priority ? a.priority > b.priority : a.number < b.number;
    }
  };

  const int slots_;
  std::set<Entry> waiting_;
  std::multiset<int> taken_;
  std::uint64_t pushed_ = 0;
};

/// "0,3" and back; what is no number is left out.
std::string JoinSlots(const std::vector<int>& slots);
std::vector<int> ParseSlots(std::string_view text);

}  // namespace cairn
