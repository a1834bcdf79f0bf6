#pragma once

#include <string>
#include <vector>

namespace cairn {

/// One launch as a job's script sees it.
struct SlurmTask {
  std::string directory;
  std::string key;
};

/// The script of a job: its shell becomes the shim of the launch. Of several tasks it is the script
/// of an array, whose elements count from 0.
std::string SlurmScript(const std::string& shim, const std::vector<SlurmTask>& tasks);

/// As one word for /bin/sh.
std::string ShellQuote(const std::string& text);

}  // namespace cairn
