#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <cairn/checkpoint_manager.h>
#include <cairn/status.h>

#include "base/log.h"
#include "src/gil.h"

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

/// Waits as they do until `done`, which is called without the GIL and waits a moment itself, is
/// true.
void WaitInterruptibly(const std::function<bool(std::chrono::nanoseconds)>& done);

/// A call on a thread of its own, so that the caller can leave it. It goes on to its end then, and
/// may outlive whoever began it: it must own all that it uses, and nothing of Python's. The thread
/// is detached: to join one that hangs is what Ctrl-C is to spare. May be used from any thread.
class Aside {
 public:
  static std::shared_ptr<Aside> Begin(std::function<void()> call);
  /// False: not within that time.
  bool EndsWithin(std::chrono::nanoseconds patience);
  /// Raises KeyboardInterrupt: the call goes on.
  void Wait();

 private:
  struct State;
  explicit Aside(std::shared_ptr<State> state) : state_(std::move(state)) {}

  const std::shared_ptr<State> state_;  // shared with the thread
};

inline const Status& StatusOf(const Status& status) { return status; }
template <typename T>
const Status& StatusOf(const Result<T>& result) {
  return result.status();
}

/// What is to become of a call that its caller left.
struct WhenLeft {
  /// What it changes, if anything: should it fail then, that is logged.
  const char* what = nullptr;
  /// Where it is kept, for who must not come before its end.
  std::shared_ptr<Aside>* left = nullptr;
  /// Set, and then it is given a moment to end. Shared with the thread.
  std::shared_ptr<std::atomic<bool>> cancelled = nullptr;
};

/// Runs the call (which gives a Status or a Result) aside and gives what it gave. Ctrl-C ends the
/// wait for it, not the call.
template <typename Fn>
auto CallAside(Fn call, const WhenLeft& then = {}) {
  struct Shared {  // with the thread
    std::optional<decltype(call())> outcome;
    std::atomic<bool> met{false};  // one of the two has come to its end
  };
  auto shared = std::make_shared<Shared>();
  const auto log_failure = [what = then.what](const Shared& of) {
    if (what == nullptr || StatusOf(*of.outcome).ok()) return;
    LogWarning(std::string(what) +
               " was interrupted, and failed: " + StatusOf(*of.outcome).ToString());
  };
  const auto aside = Aside::Begin([shared, log_failure, call = std::move(call)] {
    shared->outcome.emplace(call());
    if (shared->met.exchange(true)) log_failure(*shared);
  });
  try {
    aside->Wait();
  } catch (const nanobind::python_error&) {
    if (shared->met.exchange(true)) log_failure(*shared);
    if (then.left != nullptr) *then.left = aside;
    if (then.cancelled != nullptr) {
      *then.cancelled = true;
      const WithoutGil released;
      aside->EndsWithin(std::chrono::milliseconds(500));
    }
    throw;
  }
  return *std::move(shared->outcome);
}

}  // namespace cairn::python
