#include "tune/stop_requests.h"

#include <signal.h>

#include <array>
#include <atomic>
#include <cstddef>

#include "base/thread_annotations.h"

namespace cairn::tune {
namespace {

constexpr std::array<int, 2> kSignals = {SIGINT, SIGTERM};
/// So many are counted before a SIGINT is what it was.
constexpr std::uint32_t kCounted = 2;

std::atomic<std::uint32_t> received_count = 0;
static_assert(std::atomic<std::uint32_t>::is_always_lock_free, "used in a signal handler");

void OnSignal(int number) {
  if (received_count.fetch_add(1, std::memory_order_relaxed) >= kCounted && number == SIGINT) {
    signal(SIGINT, SIG_DFL);
    raise(SIGINT);
  }
}

struct Installation {
  Mutex mu;
  int watches GUARDED_BY(mu) = 0;
  std::array<struct sigaction, kSignals.size()> before GUARDED_BY(mu) = {};
};

Installation& GlobalInstallation() {
  static Installation* installation = new Installation;  // never destroyed: any thread may end last
  return *installation;
}

}  // namespace

StopRequests::StopRequests(bool watch) : watch_(watch) {
  if (!watch_) return;
  Installation& installation = GlobalInstallation();
  MutexLock lock(&installation.mu);
  if (installation.watches++ == 0) {
    received_count.store(0, std::memory_order_relaxed);
    for (std::size_t i = 0; i < kSignals.size(); ++i) {
      struct sigaction action = {};
      action.sa_handler = OnSignal;
      action.sa_flags = SA_RESTART;
      sigemptyset(&action.sa_mask);
      sigaction(kSignals[i], nullptr, &installation.before[i]);
      if (installation.before[i].sa_handler != SIG_IGN) sigaction(kSignals[i], &action, nullptr);
    }
  }
  seen_before_ = received_count.load(std::memory_order_relaxed);
}

StopRequests::~StopRequests() {
  if (!watch_) return;
  Installation& installation = GlobalInstallation();
  MutexLock lock(&installation.mu);
  if (--installation.watches > 0) return;
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], &installation.before[i], nullptr);
  }
}

std::uint32_t StopRequests::count() const {
  if (!watch_) return 0;
  return received_count.load(std::memory_order_relaxed) - seen_before_;
}

}  // namespace cairn::tune
