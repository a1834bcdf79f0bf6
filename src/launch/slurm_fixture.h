#pragma once

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "launch/cluster_fixture.h"
#include "launch/slurm_launcher.h"
#include "launch/test_slurm.h"

namespace cairn {

/// In a hurry: tests wait for each of these.
inline SlurmLauncherOptions SlurmOptionsAt(const std::filesystem::path& directory, int slots = 2) {
  TestSlurm::Get();
  SlurmLauncherOptions options;
  options.directory = directory.string();
  options.slots = slots;
  options.calls_per_second = 20;
  options.poll = 200ms;
  options.look = 20ms;
  return options;
}

/// A launcher on the real Slurm of this process, with many slots.
class SlurmLauncherTest : public ClusterFixture<SlurmLauncherOptions, OpenSlurmLauncher> {
 protected:
  void SetUp() override { options_ = SlurmOptionsAt(temp_.path() / "launches", 1000); }

  /// Puts programs in front of Slurm's that write down that they were called, then do `before`,
  /// call the real one, and do `after`.
  void Intercept(const std::string& before, const std::string& after) {
    const auto programs = temp_.path() / "programs";
    std::filesystem::create_directory(programs);
    for (const std::string name : {"sbatch", "squeue", "scancel"}) {
      std::ofstream program(programs / name);
      program << "#!/bin/sh\nname=" << name << "\ndate +%s%N >> " << Calls(name) << "\n"
              << before << "\n/usr/bin/" << name << " \"$@\"\ncode=$?\n"
              << after << "\nexit $code\n";
      program.close();
      std::filesystem::permissions(programs / name, std::filesystem::perms::owner_all);
    }
    options_.programs = programs.string();
  }

  std::string Calls(const std::string& name) const {
    return (temp_.path() / (name + ".calls")).string();
  }
  std::ptrdiff_t CountCalls(const std::string& name) const {
    std::ifstream file(Calls(name));
    return std::count(std::istreambuf_iterator<char>(file), {}, '\n');
  }
};

}  // namespace cairn
