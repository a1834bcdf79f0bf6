#include <spawn.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <cairn/core.h>

#include "base/status_macros.h"
#include "bench/benchmarks.h"
#include "launch/local_launcher.h"

extern char** environ;

namespace cairn::bench {
namespace {

std::int64_t MonotonicNanos() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

/// When the program that was started reached its first line.
Result<std::int64_t> FirstLine(const std::string& path) {
  std::int64_t nanos = 0;
  std::ifstream in(path);
  if (!(in >> nanos)) return InternalError("the program did not say when it began");
  return nanos;
}

/// Beside this program.
std::string FirstLineProgram() {
  std::error_code error;
  return (std::filesystem::read_symlink("/proc/self/exe", error).parent_path() / "bench_first_line")
      .string();
}

Status StartPlainly(const std::string& program, const std::string& path, Stopwatch* watch) {
  setenv("CAIRN_BENCH_FIRST_LINE", path.c_str(), 1);
  std::string name = program;
  char* const argv[] = {name.data(), nullptr};
  pid_t pid = 0;
  watch->Start();
  const std::int64_t began = MonotonicNanos();
  if (posix_spawn(&pid, program.c_str(), nullptr, nullptr, argv, environ) != 0) {
    return InternalError("cannot start " + program);
  }
  waitpid(pid, nullptr, 0);
  watch->Stop();
  ASSIGN_OR_RETURN(const std::int64_t reached, FirstLine(path));
  watch->SetSeconds(static_cast<double>(reached - began) / 1e9);
  return Status::Ok();
}

Status StartByLauncher(Launcher* launcher, const std::string& id, const std::string& program,
                       const std::string& path, Stopwatch* watch) {
  LaunchSpec spec;
  spec.id = id;
  spec.argv = {program};
  spec.env = {{"CAIRN_BENCH_FIRST_LINE", path}};
  watch->Start();
  const std::int64_t began = MonotonicNanos();
  RETURN_IF_ERROR(launcher->Submit(std::move(spec)));
  ASSIGN_OR_RETURN(const LaunchInfo info, launcher->Wait(id, std::chrono::seconds(30)));
  watch->Stop();
  if (!info.exit->succeeded()) return InternalError(info.exit->message);
  ASSIGN_OR_RETURN(const std::int64_t reached, FirstLine(path));
  watch->SetSeconds(static_cast<double>(reached - began) / 1e9);
  return launcher->Forget(id);
}

}  // namespace

Status RunLaunch(const Options& options) {
  ASSIGN_OR_RETURN(const std::string directory, FreshDirectory(options, "launch"));
  LocalLauncherOptions launching;
  launching.directory = directory + "/launches";
  ASSIGN_OR_RETURN(const std::unique_ptr<Launcher> launcher,
                   OpenLocalLauncher(std::move(launching)));
  const std::string program = FirstLineProgram();
  int count = 0;
  const std::vector<Contender> contenders = {
      {"fork and exec", 1,
       [&](Stopwatch* watch) { return StartPlainly(program, directory + "/plain", watch); }},
      {"launcher", 1,
       [&](Stopwatch* watch) {
         return StartByLauncher(launcher.get(), "l" + std::to_string(++count), program,
                                directory + "/launched", watch);
       }},
  };
  RETURN_IF_ERROR(RunRounds(options, "launch", [] { return Status::Ok(); }, contenders));
  RETURN_IF_ERROR(launcher->Close(Launcher::CloseMode::kStopAll));
  RemoveDirectory(directory);
  return Status::Ok();
}

Status RunPreempt(const Options& options) {
  constexpr int kCalls = 1'000'000;
  ASSIGN_OR_RETURN(const std::string directory, FreshDirectory(options, "preempt"));
  core::InitOptions init;
  init.storage = directory;
  ASSIGN_OR_RETURN(const std::unique_ptr<core::Context> context, core::Init(init));
  bool any = false;
  const double began = Now();
  for (int i = 0; i < kCalls; ++i) any = any || context->ShouldPreempt();
  const double seconds = Now() - began;
  if (any) return InternalError("nobody asked to stop");
  PrintFact("preempt", "seconds_a_call", seconds / kCalls);
  RETURN_IF_ERROR(context->Close());
  RemoveDirectory(directory);
  return Status::Ok();
}

}  // namespace cairn::bench
