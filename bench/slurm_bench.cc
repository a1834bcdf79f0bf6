// What slurm.py measures: `slurm_bench DIRECTORY ROUNDS LAUNCHES SECONDS`, with SLURM_CONF set.
// Prints one object of JSON.
//   start:  from the call to the user's first line, of a launch and of sbatch alone, in turn
//   follow: processor time and calls of Slurm's programs, with LAUNCHES that wait in Slurm's queue

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "bench/cluster_starts.h"
#include "launch/slurm_launcher.h"

namespace cairn::bench {
namespace {

using namespace std::chrono_literals;  // NOLINT

/// A program in front of Slurm's that counts its calls.
std::string CountingPrograms(const std::string& directory) {
  const std::string programs = directory + "/programs";
  std::filesystem::create_directories(programs);
  for (const std::string name : {"sbatch", "squeue", "scancel"}) {
    std::ofstream(programs + "/" + name)
        << "#!/bin/sh\necho >> " << directory << "/calls\nexec /usr/bin/" << name << " \"$@\"\n";
    chmod((programs + "/" + name).c_str(), 0700);
  }
  return programs;
}

std::int64_t Calls(const std::string& directory) {
  std::ifstream calls(directory + "/calls");
  return std::count(std::istreambuf_iterator<char>(calls), {}, '\n');
}

int Run(const std::string& directory, int rounds, int launches, int seconds) {
  SlurmLauncherOptions options;
  options.directory = directory + "/launches";
  options.programs = CountingPrograms(directory);
  auto opened = OpenSlurmLauncher(options);
  Check(opened.status());
  Launcher& launcher = **opened;

  std::vector<double> ours;
  std::vector<double> alone;
  for (int round = 0; round < rounds; ++round) {
    alone.push_back(MillisecondsToFirstLine(
        fmt::format("{}/alone.{}", directory, round), [](const std::string& command) {
          const std::string line =
              fmt::format("sbatch --parsable -o /dev/null --wrap '{}' >/dev/null", command);
          if (std::system(line.c_str()) != 0) Fail("sbatch");
        }));
    ours.push_back(MillisecondsToLaunch(&launcher, fmt::format("start.{}", round),
                                        fmt::format("{}/ours.{}", directory, round)));
  }

  SubmitWaiting(&launcher, launches, "extra", "--hold");
  UntilAllWait(&launcher, "JobHeldUser");
  const std::int64_t calls_before = Calls(directory);
  const double own = ProcessorSeconds(RUSAGE_SELF);
  const double programs = ProcessorSeconds(RUSAGE_CHILDREN);
  std::this_thread::sleep_for(std::chrono::seconds(seconds));
  fmt::print(
      "{{\"start_ms\": {:.1f}, \"sbatch_ms\": {:.1f}, \"over_ms\": {:.1f}, \"rounds\": {}, "
      "\"launches\": {}, "
      "\"core_percent\": {:.2f}, \"programs_percent\": {:.2f}, \"calls_per_second\": {:.2f}}}\n",
      Median(ours), Median(alone), Median(ours) - Median(alone), rounds, launches,
      100 * (ProcessorSeconds(RUSAGE_SELF) - own) / seconds,
      100 * (ProcessorSeconds(RUSAGE_CHILDREN) - programs) / seconds,
      static_cast<double>(Calls(directory) - calls_before) / seconds);
  std::fflush(stdout);
  return launcher.Close(Launcher::CloseMode::kStopAll, 0s).ok() ? 0 : 1;
}

}  // namespace
}  // namespace cairn::bench

int main(int argc, char** argv) {
  if (argc != 5) {
    fmt::print(stderr, "usage: slurm_bench DIRECTORY ROUNDS LAUNCHES SECONDS\n");
    return 2;
  }
  return cairn::bench::Run(argv[1], std::atoi(argv[2]), std::atoi(argv[3]), std::atoi(argv[4]));
}
