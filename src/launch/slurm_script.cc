#include "launch/slurm_script.h"

#include <fmt/format.h>

namespace cairn {

std::string ShellQuote(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) {
    if (c == '\'') {
      quoted += "'\\''";
    } else {
      quoted += c;
    }
  }
  return quoted + "'";
}

std::string SlurmScript(const std::string& shim, const std::vector<SlurmTask>& tasks) {
  const auto become = [&](const SlurmTask& task) {
    return fmt::format("exec {} {} remote:{}", ShellQuote(shim), ShellQuote(task.directory),
                       task.key);
  };
  if (tasks.size() == 1) return fmt::format("#!/bin/sh\n{}\n", become(tasks[0]));
  std::string script = "#!/bin/sh\ncase $SLURM_ARRAY_TASK_ID in\n";
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    script += fmt::format("{}) {} ;;\n", i, become(tasks[i]));
  }
  return script + "esac\n";
}

}  // namespace cairn
