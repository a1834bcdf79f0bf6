// What ray.py measures: `ray_bench DIRECTORY ROUNDS LAUNCHES SECONDS PROXY`, beside a Ray (see
// tests/services/ray/in-ray). PROXY is the URL of something in front of Ray that counts calls.
//   start:  from the call to the user's first line, of a launch and of a job of Ray alone, in turn
//   follow: processor time, with LAUNCHES that wait in Ray's queue. Says FOLLOW when that begins.
// Prints one object of JSON at the end.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "bench/cluster_starts.h"
#include "launch/ray_client.h"
#include "launch/ray_launcher.h"

namespace cairn::bench {
namespace {

using namespace std::chrono_literals;  // NOLINT

std::unique_ptr<Launcher> Open(RayLauncherOptions options) {
  auto opened = OpenRayLauncher(std::move(options));
  Check(opened.status());
  return *std::move(opened);
}

/// Waits until Ray has no job that runs: the next one is to have the machine to itself.
void UntilIdle(RayClient* client) {
  for (;;) {
    const auto jobs = client->Jobs();
    Check(jobs.status());
    if (std::ranges::all_of(*jobs, [](const RayJob& job) { return job.ended(); })) return;
    std::this_thread::sleep_for(50ms);
  }
}

struct Starts {
  std::vector<double> ours;
  std::vector<double> alone;
};

Starts MeasureStarts(const std::string& directory, int rounds) {
  auto client = RayClient::Open(*FindRay("", ""));
  Check(client.status());
  const auto launcher = Open({.directory = directory + "/launches"});
  Starts starts;
  for (int round = -1; round < rounds; ++round) {  // the first warms Ray up
    const double alone = MillisecondsToFirstLine(
        fmt::format("{}/alone.{}", directory, round), [&](const std::string& command) {
          RayJobRequest job;
          job.id = fmt::format("alone.{}.{}", WallNanos(), round);
          job.entrypoint = command;
          job.resources.num_cpus = 1;
          Check((*client)->Submit(job));
        });
    UntilIdle(client->get());
    const double ours = MillisecondsToLaunch(launcher.get(), fmt::format("start.{}", round + 1),
                                             fmt::format("{}/ours.{}", directory, round));
    UntilIdle(client->get());
    if (round < 0) continue;
    starts.alone.push_back(alone);
    starts.ours.push_back(ours);
  }
  return starts;
}

int Run(const std::string& directory, int rounds, int launches, int seconds,
        const std::string& proxy) {
  const Starts starts = MeasureStarts(directory, rounds);
  RayLauncherOptions options = {.directory = directory + "/waiting", .address = proxy};
  RayLauncherOptions hurried = options;
  hurried.calls_per_second = 50;  // handing them over is not what is measured
  auto launcher = Open(hurried);
  SubmitWaiting(launcher.get(), launches, "custom", "nowhere=1");
  UntilAllWait(launcher.get(), "waits in Ray: ");
  launcher.reset();
  launcher = Open(options);
  UntilAllWait(launcher.get(), "waits in Ray: ");
  fmt::print("FOLLOW\n");
  std::fflush(stdout);
  const double before = ProcessorSeconds(RUSAGE_SELF);
  std::this_thread::sleep_for(std::chrono::seconds(seconds));
  std::vector<double> over;  // pair by pair: whatever else the machine does, both of a pair see
  for (std::size_t i = 0; i < starts.ours.size(); ++i) {
    over.push_back(starts.ours[i] - starts.alone[i]);
  }
  fmt::print(
      "{{\"start_ms\": {:.1f}, \"ray_ms\": {:.1f}, \"over_ms\": {:.1f}, \"rounds\": {}, "
      "\"launches\": {}, \"seconds\": {}, \"core_percent\": {:.2f}}}\n",
      Median(starts.ours), Median(starts.alone), Median(over), rounds, launches, seconds,
      100 * (ProcessorSeconds(RUSAGE_SELF) - before) / seconds);
  std::fflush(stdout);
  return launcher->Close(Launcher::CloseMode::kStopAll, 0s).ok() ? 0 : 1;
}

}  // namespace
}  // namespace cairn::bench

int main(int argc, char** argv) {
  if (argc != 6) {
    fmt::print(stderr, "usage: ray_bench DIRECTORY ROUNDS LAUNCHES SECONDS PROXY\n");
    return 2;
  }
  return cairn::bench::Run(argv[1], std::atoi(argv[2]), std::atoi(argv[3]), std::atoi(argv[4]),
                           argv[5]);
}
