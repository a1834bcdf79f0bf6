#pragma once

// What slurm_bench and ray_bench measure alike: how soon a job's first line runs, and what
// following those that wait costs.

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "launch/launcher.h"

namespace cairn::bench {

[[noreturn]] inline void Fail(const std::string& what) {
  fmt::print(stderr, "{}\n", what);
  std::exit(1);
}

inline void Check(const Status& status) {
  if (!status.ok()) Fail(status.ToString());
}

inline std::int64_t WallNanos() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

/// Milliseconds from here to the first line of what `begin` starts: it is given a command that
/// writes the time down, at `stamp`.
inline double MillisecondsToFirstLine(
    const std::string& stamp, const std::function<void(const std::string& command)>& begin) {
  const std::int64_t before = WallNanos();
  begin("date +%s%N > " + stamp);
  for (int i = 0; i < 120'000; ++i) {
    std::int64_t at = 0;
    if (std::ifstream(stamp) >> at && at > 0) return static_cast<double>(at - before) / 1e6;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  Fail("no job has begun within two minutes");
}

/// The same of a launch, which then ends.
inline double MillisecondsToLaunch(Launcher* launcher, const std::string& id,
                                   const std::string& stamp) {
  const double taken = MillisecondsToFirstLine(stamp, [&](const std::string& command) {
    LaunchSpec spec;
    spec.id = id;
    spec.argv = {"/bin/sh", "-c", command};
    Check(launcher->Submit(spec));
  });
  Check(launcher->Wait(id, std::chrono::seconds(60)).status());
  return taken;
}

/// Launches that wait for the resource that nobody has.
inline void SubmitWaiting(Launcher* launcher, int launches, const std::string& resource,
                          const std::string& value) {
  for (int i = 0; i < launches; ++i) {
    LaunchSpec spec;
    spec.id = fmt::format("waits.{}", i);
    spec.argv = {"true"};
    spec.resources[resource] = value;
    Check(launcher->Submit(spec));
  }
}

/// Until all launches of the launcher that have not ended say `reason`.
inline void UntilAllWait(Launcher* launcher, const std::string& reason) {
  const auto waits = [&](const LaunchInfo& info) {
    return info.state == LaunchState::kEnded || info.reason.find(reason) != std::string::npos;
  };
  while (!std::ranges::all_of(*launcher->List(), waits)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

inline double Median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

/// Of this process (RUSAGE_SELF) or of the programs that it has called (RUSAGE_CHILDREN).
inline double ProcessorSeconds(int whose) {
  rusage usage{};
  getrusage(whose, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace cairn::bench
