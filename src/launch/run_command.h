#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/status.h>

namespace cairn {

/// What a program said and how it ended.
struct CommandOutcome {
  int code = 0;  // 128 + signal when it died of one
  std::string out;
  std::string err;
};

/// The program's path when it is one, or where the PATH of this process has it. NotFound.
Result<std::string> FindProgram(const std::string& name);

/// Runs a program to its end, with `input` as its input, and gives what it said.
/// ResourceExhausted when that is more than 64 MiB. It is killed after `timeout` (DeadlineExceeded)
/// and when the calling thread's process dies. `environment` is all that it gets.
Result<CommandOutcome> RunCommand(const std::vector<std::string>& argv,
                                  const std::vector<std::string>& environment,
                                  std::string_view input, std::chrono::nanoseconds timeout);

}  // namespace cairn
