#pragma once

#include <chrono>
#include <filesystem>
#include <string>

#include "launch/cluster_fixture.h"
#include "launch/ray_launcher.h"
#include "launch/test_ray.h"

namespace cairn {

/// In a hurry: tests wait for each of these.
inline RayLauncherOptions RayOptionsAt(const std::filesystem::path& directory, int slots = 2) {
  RayLauncherOptions options;
  options.directory = directory.string();
  options.address = TestRay::Get().url();
  options.slots = slots;
  options.calls_per_second = 20;
  options.poll = 300ms;
  options.look = 20ms;
  options.shim_patience = 3s;
  return options;
}

/// A launcher on the real Ray of this process, with many slots.
class RayLauncherTest : public ClusterFixture<RayLauncherOptions, OpenRayLauncher> {
 protected:
  void SetUp() override { options_ = RayOptionsAt(temp_.path() / "launches", 1000); }

  /// A launch that Ray cannot start before a node has what it wants.
  LaunchSpec Waiting(const std::string& id, const std::string& text) const {
    LaunchSpec spec = Script(id, text);
    spec.resources["custom"] = "nowhere=1";
    return spec;
  }

  /// The id of the job that waits in Ray.
  std::string UntilItWaits(const std::string& id) {
    std::string job;
    Until(id + " waits in Ray", [&] {
      const std::string reason = launcher_->Get(id)->reason;
      if (reason.find("waits in Ray: ") == std::string::npos) return false;
      job = reason.substr(4, reason.find(' ', 4) - 4);
      return true;
    });
    return job;
  }
};

}  // namespace cairn
