#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <chrono>
#include <optional>

#include <cairn/checkpoint_manager.h>

namespace cairn::python {

/// Lets Ctrl-C end long calls. The calls run without the GIL; now and then Poll takes it for a
/// moment and runs Python's signal handlers (which Python does on its main thread only). When one
/// raised, interrupted() stays true, the call ends early, and Rethrow raises what the handler did.
/// Poll and Rethrow belong to the thread that made the call; interrupted() to all.
class Interrupts {
 public:
  /// Runs handlers when the last look was 20 ms ago or longer. Without the GIL held.
  void Poll();
  bool interrupted() const { return interrupted_.load(std::memory_order_relaxed); }
  /// With the GIL held.
  void Rethrow();

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
  std::atomic<bool> interrupted_{false};
  std::optional<nanobind::python_error> raised_;
};

/// Waits (with the GIL held on entry and exit, released between) until the save is over. Raises
/// KeyboardInterrupt: the save goes on.
void WaitUntilDone(const SaveHandle& handle);
/// Waits until the tensors may be changed. An interrupt is raised only then: until then they are
/// being read.
void WaitUntilCopied(const SaveHandle& handle);

}  // namespace cairn::python
