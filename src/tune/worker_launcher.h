#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <cairn/status.h>

#include "base/thread_annotations.h"
#include "launch/launcher.h"

namespace cairn::tune {

/// Starts the workers of a C++ program through another launcher: with the command and the
/// environment of this life of the tuner, whatever the record of a trial says. (It was made by the
/// first life, and the experiment and the program may have been moved since.)
///
/// As thread-safe as the launcher beneath; Relay by one thread.
class WorkerLauncher final : public Launcher {
 public:
  WorkerLauncher(std::unique_ptr<Launcher> beneath, std::vector<std::string> argv,
                 std::map<std::string, std::string> env)
      : beneath_(std::move(beneath)), argv_(std::move(argv)), env_(std::move(env)) {}

  Status Submit(LaunchSpec spec) override;
  Result<LaunchInfo> Get(std::string_view id) override { return beneath_->Get(id); }
  Result<std::vector<LaunchInfo>> List() override { return beneath_->List(); }
  Status Signal(std::string_view id, int signal) override { return beneath_->Signal(id, signal); }
  Status Stop(std::string_view id, std::chrono::nanoseconds grace) override {
    return beneath_->Stop(id, grace);
  }
  Result<LaunchInfo> Wait(std::string_view id, std::chrono::nanoseconds timeout) override {
    return beneath_->Wait(id, timeout);
  }
  Result<LaunchLogPage> ReadLog(std::string_view id, std::uint64_t offset,
                                std::uint64_t max_bytes) override {
    return beneath_->ReadLog(id, offset, max_bytes);
  }
  Status Forget(std::string_view id) override { return beneath_->Forget(id); }
  Status Close(CloseMode mode, std::chrono::nanoseconds grace) override {
    return beneath_->Close(mode, grace);
  }

  /// Writes what the workers that it started printed since the last call to this process's own
  /// output: what had ended before the call, all of it.
  void Relay() EXCLUDES(mu_);

 private:
  const std::unique_ptr<Launcher> beneath_;
  const std::vector<std::string> argv_;
  const std::map<std::string, std::string> env_;

  Mutex mu_;
  /// Launches whose output is not read to its end, and how far it is.
  std::map<std::string, std::uint64_t, std::less<>> unread_ GUARDED_BY(mu_);
};

}  // namespace cairn::tune
