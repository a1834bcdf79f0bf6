// A trial engine in a process of its own, for tests that kill it: journal, launcher and socket in
// one directory. Commands come on standard input, a line each; answers go to standard output.
//   trial_engine_host DIR LISTEN SLOTS TRIALS WORKER ARGS…
// Trials t1 … tTRIALS are created when they do not exist. "pause t1", "activate t1", "cancel t1",
// "kill t1", "states". CAIRN_TEST_PREEMPTION_MS: how long new trials may take to save and exit.
// DIR/phase says what it did last, for whoever kills it: "opens", "taken: report" (the event is not
// durable yet), "durable: report" (it is, and nothing came since).

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "launch/local_launcher.h"
#include "storage/local/local_store.h"
#include "trial/event_log.h"
#include "trial/repository_access.h"
#include "trial/trial_engine.h"
#include "trial/trial_service.h"

namespace cairn {
namespace {

/// What a kill hits.
class Phase {
 public:
  explicit Phase(const std::string& path)
      : fd_(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600)) {}
  void Show(std::string_view what) const {
    // One write of one size: whoever reads it finds one of them, whole.
    const std::string text = fmt::format("{:<48}", what);
    if (pwrite(fd_, text.data(), text.size(), 0) < 0) std::abort();
  }
  void Show(std::string_view what, const Event& event) const {
    Show(fmt::format("{}: {}", what, EventKindName(event.kind)));
  }

 private:
  const int fd_;
};

std::chrono::milliseconds PreemptionTimeout() {
  const char* named = std::getenv("CAIRN_TEST_PREEMPTION_MS");
  return std::chrono::milliseconds(named == nullptr ? 60'000 : std::atol(named));
}

int Main(const std::vector<std::string>& args) {
  const std::string directory = args.at(1);
  const Phase phase(directory + "/phase");
  phase.Show("opens");
  auto store = OpenLocalStore(directory + "/engine");
  auto log = JournalEventLog::Open({.store = store.value().get(), .prefix = "events"});
  if (!log.ok()) {
    std::cerr << log.status().ToString() << "\n";
    return 3;
  }
  TrialEngine* listener = nullptr;
  auto launcher = OpenLocalLauncher({.directory = directory + "/launches",
                                     .slots = std::stoi(args.at(3)),
                                     .listener = [&](const LaunchInfo& info) {
                                       if (listener != nullptr) listener->OnLaunch(info);
                                     }});
  if (!launcher.ok()) {
    std::cerr << launcher.status().ToString() << "\n";
    return 3;
  }
  auto repositories = RepositoryAccess::Real();
  auto engine =
      TrialEngine::Open({.log = log->get(),
                         .launcher = launcher->get(),
                         .repositories = repositories.get(),
                         .on_event = [&](const Event& event) { phase.Show("durable", event); },
                         .on_recorded = [&](const Event& event) { phase.Show("taken", event); }});
  if (!engine.ok()) {
    std::cerr << engine.status().ToString() << "\n";
    return 3;
  }
  listener = engine->get();
  auto service =
      TrialService::Start({.engine = engine->get(), .http = {.listen = args.at(2), .threads = 2}});
  if (!service.ok()) {
    std::cerr << service.status().ToString() << "\n";
    return 3;
  }
  if (const Status started = (*engine)->Start(); !started.ok()) return 3;
  for (int i = 1; i <= std::stoi(args.at(4)); ++i) {
    const auto made = (*engine)->Create({.experiment = "e",
                                         .argv = {args.begin() + 5, args.end()},
                                         .storage = directory + "/storage",
                                         .max_restarts = 1000000,
                                         .preemption_timeout = PreemptionTimeout(),
                                         .kill_grace = std::chrono::milliseconds(500)},
                                        fmt::format("t{}", i));
    if (!made.ok() && !made.status().Is(Code::kAlreadyExists)) return 3;
  }
  std::cout << "ready" << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    const std::string verb = line.substr(0, line.find(' '));
    const std::string trial = line.substr(std::min(line.size(), verb.size() + 1));
    if (verb == "states") {
      for (const TrialView& view : (*engine)->List()) {
        std::cout << view.record.id << ' ' << TrialStateName(view.record.core.state) << ' ';
      }
      std::cout << std::endl;
      continue;
    }
    const Status done = verb == "pause"      ? (*engine)->Pause(trial)
                        : verb == "activate" ? (*engine)->Activate(trial)
                        : verb == "cancel"   ? (*engine)->Cancel(trial)
                        : verb == "kill"     ? (*engine)->Kill(trial)
                                             : InvalidArgumentError(verb);
    std::cout << (done.ok() ? "ok" : done.ToString()) << std::endl;
  }
  // Standard input was closed: an orderly end.
  (*engine)->Drain();
  (*service)->Stop();
  (*launcher)->Close(Launcher::CloseMode::kStopAll).IgnoreError("the test looks for what is left");
  return 0;
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) { return cairn::Main({argv, argv + argc}); }
