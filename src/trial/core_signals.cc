#include "trial/core_signals.h"

#include <signal.h>

#include <array>
#include <atomic>

#include "base/thread_annotations.h"

namespace cairn::core {
namespace {

constexpr std::array<int, 3> kSignals = {SIGTERM, SIGUSR1, SIGINT};

std::atomic<std::uint32_t> received_count = 0;
static_assert(std::atomic<std::uint32_t>::is_always_lock_free, "used in a signal handler");

void OnSignal(int number) {
  if (received_count.fetch_add(1, std::memory_order_relaxed) > 0 && number == SIGINT) {
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

StopSignals::StopSignals() {
  Installation& installation = GlobalInstallation();
  MutexLock lock(&installation.mu);
  if (installation.watches++ == 0) {
    received_count.store(0, std::memory_order_relaxed);
    for (std::size_t i = 0; i < kSignals.size(); ++i) {
      struct sigaction action = {};
      action.sa_handler = OnSignal;
      action.sa_flags = SA_RESTART;  // readers' system calls go on
      sigemptyset(&action.sa_mask);
      sigaction(kSignals[i], &action, &installation.before[i]);
    }
  }
  seen_before_ = received_count.load(std::memory_order_relaxed);
}

StopSignals::~StopSignals() {
  Installation& installation = GlobalInstallation();
  MutexLock lock(&installation.mu);
  if (--installation.watches > 0) return;
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], &installation.before[i], nullptr);
  }
}

bool StopSignals::received() const {
  return received_count.load(std::memory_order_relaxed) != seen_before_;
}

}  // namespace cairn::core
