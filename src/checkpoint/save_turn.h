#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include <cairn/checkpoint_manager.h>
#include <cairn/status.h>

namespace cairn {

/// A second face of the manager, for those who prepare a save at a cost (a cut of tables, behind a
/// closed gate): they ask for their turn first, and prepare only what will be written.
class SaveTurns {
 public:
  virtual ~SaveTurns() = default;

  /// Waits until the save in flight and its retention are over: the Save that follows then neither
  /// waits nor is skipped. With OnBusy::kSkip, while one is in flight, gives at once what that Save
  /// would have given, the handle of a skipped one, and no Save should follow; of several ranks one
  /// decides, and the others wait for its word, or until they are idle themselves. A failure of
  /// the save before is left for Save to report. For the thread that calls Save.
  virtual Result<std::optional<SaveHandle>> AwaitTurn(std::int64_t step) = 0;
  /// Waits, at most so long, until AwaitTurn would return at once; false: not yet. For who has to
  /// look after other things meanwhile. For the thread that calls Save.
  virtual bool TurnWithin(std::chrono::nanoseconds patience) = 0;
  /// Waits, at most so long, until nothing is under way any more: no save, none of its removals, no
  /// word to other ranks; false: not yet. For any thread.
  virtual bool IdleWithin(std::chrono::nanoseconds patience) = 0;
  /// So long the caller has been held up already: a part of StallSeconds of the Save that follows.
  virtual void AddStall(std::chrono::nanoseconds stall) = 0;
};

}  // namespace cairn
