// What ray.py measures: `ray_bench DIRECTORY ROUNDS LAUNCHES SECONDS PROXY`, beside a Ray (see
// tests/services/ray/in-ray). PROXY is the URL of something in front of Ray that counts calls.
//   start:  from the call to the user's first line, of a launch and of a job of Ray alone, in turn
//   follow: processor time, with LAUNCHES that wait in Ray's queue. Says FOLLOW when that begins.
// Prints one object of JSON at the end.

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "launch/ray_client.h"
#include "launch/ray_launcher.h"

namespace cairn {
namespace {

using namespace std::chrono_literals;  // NOLINT

std::int64_t WallNanos() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

[[noreturn]] void Fail(const std::string& what) {
  fmt::print(stderr, "ray_bench: {}\n", what);
  std::exit(1);
}

void Check(const Status& status) {
  if (!status.ok()) Fail(status.ToString());
}

/// What the first line of the job wrote: the time.
std::int64_t WaitForStamp(const std::string& path) {
  for (int i = 0; i < 120'000; ++i) {
    std::int64_t stamp = 0;
    if (std::ifstream(path) >> stamp && stamp > 0) return stamp;
    std::this_thread::sleep_for(1ms);
  }
  Fail("no job has begun within two minutes");
}

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

double ProcessorSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

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
    std::string stamp = fmt::format("{}/alone.{}", directory, round);
    RayJobRequest job;
    job.id = fmt::format("alone.{}.{}", WallNanos(), round);
    job.entrypoint = "date +%s%N > " + stamp;
    job.resources.num_cpus = 1;
    std::int64_t begin = WallNanos();
    Check((*client)->Submit(job));
    const double alone = static_cast<double>(WaitForStamp(stamp) - begin) / 1e6;
    UntilIdle(client->get());
    stamp = fmt::format("{}/ours.{}", directory, round);
    LaunchSpec spec;
    spec.id = fmt::format("start.{}", round + 1);
    spec.argv = {"/bin/sh", "-c", "date +%s%N > " + stamp};
    begin = WallNanos();
    Check(launcher->Submit(spec));
    const double ours = static_cast<double>(WaitForStamp(stamp) - begin) / 1e6;
    Check(launcher->Wait(spec.id, 60s).status());
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
  for (int i = 0; i < launches; ++i) {
    LaunchSpec spec;
    spec.id = fmt::format("waits.{}", i);
    spec.argv = {"true"};
    spec.resources["custom"] = "nowhere=1";
    Check(launcher->Submit(spec));
  }
  const auto all_wait = [&] {
    const auto list = launcher->List();
    return std::ranges::all_of(*list, [](const LaunchInfo& info) {
      return info.reason.find("waits in Ray: ") != std::string::npos;
    });
  };
  while (!all_wait()) std::this_thread::sleep_for(50ms);
  launcher.reset();
  launcher = Open(options);
  while (!all_wait()) std::this_thread::sleep_for(50ms);
  fmt::print("FOLLOW\n");
  std::fflush(stdout);
  const double before = ProcessorSeconds();
  std::this_thread::sleep_for(std::chrono::seconds(seconds));
  std::vector<double> over;  // pair by pair: whatever else the machine does, both of a pair see
  for (std::size_t i = 0; i < starts.ours.size(); ++i) {
    over.push_back(starts.ours[i] - starts.alone[i]);
  }
  fmt::print(
      "{{\"start_ms\": {:.1f}, \"ray_ms\": {:.1f}, \"over_ms\": {:.1f}, \"rounds\": {}, "
      "\"launches\": {}, \"seconds\": {}, \"core_percent\": {:.2f}}}\n",
      Median(starts.ours), Median(starts.alone), Median(over), rounds, launches, seconds,
      100 * (ProcessorSeconds() - before) / seconds);
  std::fflush(stdout);
  return launcher->Close(Launcher::CloseMode::kStopAll, 0s).ok() ? 0 : 1;
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) {
  if (argc != 6) {
    fmt::print(stderr, "usage: ray_bench DIRECTORY ROUNDS LAUNCHES SECONDS PROXY\n");
    return 2;
  }
  return cairn::Run(argv[1], std::atoi(argv[2]), std::atoi(argv[3]), std::atoi(argv[4]), argv[5]);
}
