#include "src/steps.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "base/thread_annotations.h"
#include "checkpoint/manager.h"

namespace nb = nanobind;

namespace cairn::python {
namespace {

/// How often each protocol step began in this process, and where the process is to be killed.
/// Thread-safe.
class Steps {
 public:
  static Steps* Get() {
    static Steps steps;
    return &steps;
  }

  void Watch() { watching_ = true; }
  bool watching() const { return watching_; }

  void KillAt(std::string name, std::uint64_t count) EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    watching_ = true;
    victim_ = std::move(name);
    count_ = count;
  }

  void Begin(std::string_view name) EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    auto it = seen_.find(name);
    if (it == seen_.end()) it = seen_.emplace(std::string(name), 0).first;
    if (++it->second == count_ && name == victim_) kill(getpid(), SIGKILL);
  }

  std::map<std::string, std::uint64_t> Seen() EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    return {seen_.begin(), seen_.end()};
  }

 private:
  std::atomic<bool> watching_{false};
  Mutex mu_;
  std::map<std::string, std::uint64_t, std::less<>> seen_ GUARDED_BY(mu_);
  std::string victim_ GUARDED_BY(mu_);
  std::uint64_t count_ GUARDED_BY(mu_) = 0;
};

}  // namespace

Result<std::unique_ptr<CheckpointManager>> OpenWatched(ManagerOptions options) {
  if (!Steps::Get()->watching()) return CheckpointManager::Open(std::move(options));
  auto env =
      EnvironmentAt(options.directory, {.create = !options.read_only, .storage = options.storage});
  if (!env.ok()) return env.status();
  env->on_step = [](std::string_view name) { Steps::Get()->Begin(name); };
  return OpenManager(std::move(options), *std::move(env));
}

void DefineSteps(nb::module_& module) {
  module.def("watch_steps", [] { Steps::Get()->Watch(); });
  module.def("steps_seen", [] { return Steps::Get()->Seen(); });
  module.def("kill_at", [](std::string step, std::uint64_t count) {
    Steps::Get()->KillAt(std::move(step), count);
  });
}

}  // namespace cairn::python
