#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/thread_annotations.h"
#include "trial/event.h"

namespace cairn {

/// Where this process ends as if by kill -9, for tests that must hit every step of what an engine
/// does: kills that land in idle time prove nothing, and steps of a millisecond are not hit by
/// chance. CAIRN_KILL_AT has "WHEN:WHAT:N", the N-th event of a kind (of a note: what it says) that
/// this process takes. WHEN:
///   taken    it was applied and is not durable
///   durable  it is, nothing after it is, and nobody was told
///   told     the same, and the answers are on their way: some get out, some do not
/// Not set, as everywhere but in tests, it does nothing. May be called from any thread.
class KillPoint {
 public:
  /// Nothing for an empty text; what is no such text is said and does nothing.
  explicit KillPoint(std::string_view text);
  static KillPoint FromEnvironment();
  KillPoint(const KillPoint&) = delete;
  KillPoint& operator=(const KillPoint&) = delete;

  /// An event is given to the writer.
  void Taken(const Event& event);
  /// Of a group that is about to be written: drops what comes after the event. Whether it is there.
  bool Cut(std::vector<Event>* group);
  /// The group that Cut has found it in is durable; whoever waited was told.
  void Durable() const;
  void Told() const;

 private:
  std::string when_;  // "": never; as what_, not changed once it is made
  std::string what_;
  Mutex mu_;
  std::uint64_t left_ GUARDED_BY(mu_) = 0;  // events of that kind until it is the one
  std::uint64_t seq_ GUARDED_BY(mu_) = 0;   // of the one; 0: it has not come
};

}  // namespace cairn
