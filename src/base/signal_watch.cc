#include "base/signal_watch.h"

#include <signal.h>

#include <array>
#include <atomic>
#include <cstddef>

#include "base/thread_annotations.h"

namespace cairn {

/// Handlers may be running in any thread at any time, so these live for ever, in a list that only
/// grows; one that is given back is used again. A handler that is late may count a signal for the
/// next watch: it came when that one was made.
struct SignalWatch::Counter {
  std::atomic<std::uint64_t> signals{0};  // a bit for each number; 0: not in use
  std::atomic<std::uint32_t> count{0};
  std::atomic<std::uint32_t> sigint_ends_after{0};
  bool taken = false;  // by a watch; guarded by the installation's lock
  Counter* next = nullptr;
};

namespace {

using Counter = SignalWatch::Counter;

constexpr int kSignals = 64;  // Linux counts them from 1 to 64
static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "used in a signal handler");
static_assert(std::atomic<Counter*>::is_always_lock_free, "used in a signal handler");

std::atomic<Counter*> counters = nullptr;

constexpr std::uint64_t Bit(int number) { return std::uint64_t{1} << (number - 1); }

void OnSignal(int number) {
  bool counted = false;
  bool ends = number == SIGINT;
  for (Counter* each = counters.load(std::memory_order_acquire); each; each = each->next) {
    if ((each->signals.load(std::memory_order_acquire) & Bit(number)) == 0) continue;
    const std::uint32_t before = each->count.fetch_add(1, std::memory_order_relaxed);
    const std::uint32_t limit = each->sigint_ends_after.load(std::memory_order_relaxed);
    if (limit == 0 || before < limit) ends = false;
    counted = true;
  }
  if (!ends || !counted) return;
  signal(SIGINT, SIG_DFL);
  raise(SIGINT);
}

/// One signal's handler, and what there was before it.
struct Handler {
  int watches = 0;
  struct sigaction before = {};
};

struct Installation {
  Mutex mu;
  std::array<Handler, kSignals> handlers GUARDED_BY(mu) = {};

  /// False: the signal is ignored, and stays so.
  bool Install(int number, bool leave_ignored) REQUIRES(mu) {
    Handler& handler = handlers[static_cast<std::size_t>(number - 1)];
    if (handler.watches == 0) sigaction(number, nullptr, &handler.before);
    if (leave_ignored && handler.before.sa_handler == SIG_IGN) return false;
    if (handler.watches++ > 0) return true;
    struct sigaction action = {};
    action.sa_handler = OnSignal;
    action.sa_flags = SA_RESTART;  // readers' system calls go on
    sigemptyset(&action.sa_mask);
    sigaction(number, &action, nullptr);
    return true;
  }

  void Remove(int number) REQUIRES(mu) {
    Handler& handler = handlers[static_cast<std::size_t>(number - 1)];
    if (--handler.watches == 0) sigaction(number, &handler.before, nullptr);
  }
};

Installation& GlobalInstallation() {
  static Installation* installation = new Installation;  // never destroyed: any thread may end last
  return *installation;
}

/// One that nobody uses, and that counts nothing yet.
Counter* TakeCounter(Installation* installation) {
  MutexLock lock(&installation->mu);
  Counter* counter = counters.load(std::memory_order_relaxed);
  while (counter != nullptr && counter->taken) counter = counter->next;
  if (counter == nullptr) {
    counter = new Counter;
    counter->next = counters.load(std::memory_order_relaxed);
    counters.store(counter, std::memory_order_release);
  }
  counter->taken = true;
  counter->count.store(0, std::memory_order_relaxed);
  return counter;
}

/// Those of the signals that are watched. Each is counted from the moment its handler is there.
std::vector<int> Install(const SignalWatchOptions& options, Counter* counter) {
  Installation& installation = GlobalInstallation();
  MutexLock lock(&installation.mu);
  counter->sigint_ends_after.store(options.sigint_ends_after, std::memory_order_relaxed);
  std::vector<int> installed;
  for (const int number : options.signals) {
    if (number < 1 || number > kSignals) continue;
    counter->signals.fetch_or(Bit(number), std::memory_order_release);
    if (installation.Install(number, options.leave_ignored)) {
      installed.push_back(number);
    } else {
      counter->signals.fetch_and(~Bit(number), std::memory_order_release);
    }
  }
  return installed;
}

}  // namespace

SignalWatch::SignalWatch(const SignalWatchOptions& options)
    : counter_(TakeCounter(&GlobalInstallation())), installed_(Install(options, counter_)) {}

SignalWatch::~SignalWatch() {
  Installation& installation = GlobalInstallation();
  MutexLock lock(&installation.mu);
  for (const int number : installed_) installation.Remove(number);
  counter_->signals.store(0, std::memory_order_release);
  counter_->taken = false;
}

std::uint32_t SignalWatch::count() const { return counter_->count.load(std::memory_order_relaxed); }

}  // namespace cairn
