// What slurm.py measures: `slurm_bench DIRECTORY ROUNDS LAUNCHES SECONDS`, with SLURM_CONF set.
// Prints one object of JSON.
//   start:  from the call to the user's first line, of a launch and of sbatch alone, in turn
//   follow: processor time and calls of Slurm's programs, with LAUNCHES that wait in Slurm's queue

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "launch/slurm_launcher.h"

namespace cairn {
namespace {

using namespace std::chrono_literals;  // NOLINT

std::int64_t WallNanos() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

[[noreturn]] void Fail(const std::string& what) {
  fmt::print(stderr, "slurm_bench: {}\n", what);
  std::exit(1);
}

/// What the first line of the job wrote: the time.
std::int64_t WaitForStamp(const std::string& path) {
  for (int i = 0; i < 60'000; ++i) {
    std::int64_t stamp = 0;
    if (std::ifstream(path) >> stamp && stamp > 0) return stamp;
    std::this_thread::sleep_for(1ms);
  }
  Fail("no job has begun within a minute");
}

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

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

/// Of this process and, with `children`, of the programs that it has called.
double ProcessorSeconds(bool children) {
  rusage usage{};
  getrusage(children ? RUSAGE_CHILDREN : RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

int Run(const std::string& directory, int rounds, int launches, int seconds) {
  SlurmLauncherOptions options;
  options.directory = directory + "/launches";
  options.programs = CountingPrograms(directory);
  auto opened = OpenSlurmLauncher(options);
  if (!opened.ok()) Fail(opened.status().ToString());
  Launcher& launcher = **opened;

  std::vector<double> ours;
  std::vector<double> alone;
  for (int round = 0; round < rounds; ++round) {
    std::string stamp = fmt::format("{}/alone.{}", directory, round);
    std::int64_t begin = WallNanos();
    if (std::system(
            fmt::format("sbatch --parsable -o /dev/null --wrap 'date +%s%N > {}' >/dev/null", stamp)
                .c_str()) != 0) {
      Fail("sbatch");
    }
    alone.push_back(static_cast<double>(WaitForStamp(stamp) - begin) / 1e6);
    stamp = fmt::format("{}/ours.{}", directory, round);
    LaunchSpec spec;
    spec.id = fmt::format("start.{}", round);
    spec.argv = {"/bin/sh", "-c", "date +%s%N > " + stamp};
    begin = WallNanos();
    if (const Status submitted = launcher.Submit(spec); !submitted.ok()) Fail(submitted.ToString());
    ours.push_back(static_cast<double>(WaitForStamp(stamp) - begin) / 1e6);
    if (!launcher.Wait(spec.id, 60s).ok()) Fail("a launch did not end");
  }

  for (int i = 0; i < launches; ++i) {
    LaunchSpec spec;
    spec.id = fmt::format("waits.{}", i);
    spec.argv = {"true"};
    spec.resources["extra"] = "--hold";
    if (const Status submitted = launcher.Submit(spec); !submitted.ok()) Fail(submitted.ToString());
  }
  const auto waiting = [&] {
    const auto list = launcher.List();
    return std::ranges::count_if(*list, [](const LaunchInfo& info) {
      return info.reason.find("JobHeldUser") != std::string::npos;
    });
  };
  while (waiting() < launches) std::this_thread::sleep_for(50ms);
  const std::int64_t calls_before = Calls(directory);
  const double own = ProcessorSeconds(false);
  const double programs = ProcessorSeconds(true);
  std::this_thread::sleep_for(std::chrono::seconds(seconds));
  fmt::print(
      "{{\"start_ms\": {:.1f}, \"sbatch_ms\": {:.1f}, \"over_ms\": {:.1f}, \"rounds\": {}, "
      "\"launches\": {}, "
      "\"core_percent\": {:.2f}, \"programs_percent\": {:.2f}, \"calls_per_second\": {:.2f}}}\n",
      Median(ours), Median(alone), Median(ours) - Median(alone), rounds, launches,
      100 * (ProcessorSeconds(false) - own) / seconds,
      100 * (ProcessorSeconds(true) - programs) / seconds,
      static_cast<double>(Calls(directory) - calls_before) / seconds);
  std::fflush(stdout);
  return launcher.Close(Launcher::CloseMode::kStopAll, 0s).ok() ? 0 : 1;
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) {
  if (argc != 5) {
    fmt::print(stderr, "usage: slurm_bench DIRECTORY ROUNDS LAUNCHES SECONDS\n");
    return 2;
  }
  return cairn::Run(argv[1], std::atoi(argv[2]), std::atoi(argv[3]), std::atoi(argv[4]));
}
