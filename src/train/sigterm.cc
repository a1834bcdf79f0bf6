#include "train/sigterm.h"

#include <atomic>
#include <csignal>

#include "base/thread_annotations.h"

namespace cairn {
namespace {

std::atomic<std::uint32_t> received_count = 0;
static_assert(std::atomic<std::uint32_t>::is_always_lock_free, "used in a signal handler");

void CountSigterm(int) { received_count.fetch_add(1, std::memory_order_relaxed); }

struct Installation {
  Mutex mu;
  int watches GUARDED_BY(mu) = 0;
  struct sigaction before GUARDED_BY(mu) = {};
};

Installation& GlobalInstallation() {
  static Installation* installation = new Installation;  // never destroyed: any thread may end last
  return *installation;
}

}  // namespace

SigtermWatch::SigtermWatch() {
  Installation& installation = GlobalInstallation();
  MutexLock lock(&installation.mu);
  seen_before_ = received_count.load(std::memory_order_relaxed);
  if (installation.watches++ > 0) return;
  struct sigaction action = {};
  action.sa_handler = CountSigterm;
  action.sa_flags = SA_RESTART;  // readers' system calls go on
  sigemptyset(&action.sa_mask);
  sigaction(SIGTERM, &action, &installation.before);
}

SigtermWatch::~SigtermWatch() {
  Installation& installation = GlobalInstallation();
  MutexLock lock(&installation.mu);
  if (--installation.watches == 0) sigaction(SIGTERM, &installation.before, nullptr);
}

bool SigtermWatch::received() const {
  return received_count.load(std::memory_order_relaxed) != seen_before_;
}

}  // namespace cairn
