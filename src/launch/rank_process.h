#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include <cairn/status.h>

#include "launch/launch_records.h"
#include "launch/log_line.h"
#include "launch/process_identity.h"

namespace cairn {

/// One of a rank's two output streams.
struct RankStream {
  OwnedFd fd;  // the reading end; invalid once it is over
  bool is_stderr = false;
  LineCutter cutter;
};

/// One process of a launch, as its shim sees it.
struct RankProcess {
  int rank = 0;
  pid_t pid = 0;
  bool ended = false;
  int status = 0;  // as waitpid gives it, when ended
  RankStream out;
  RankStream err;
};

/// Starts one rank of the launch as a child of this process, in a process group of its own, with
/// empty input and its output on pipes. It dies with this process (the kernel sees to that). The
/// error names what could not be done: the directory, the program, a limit.
///
/// Call it in a process with one thread: between fork and exec it allocates nothing, but the death
/// of the parent is that of the thread which forked.
Result<RankProcess> StartRank(const LaunchRecord& launch, int rank,
                              const std::map<std::string, std::string>& variables);

/// The same with an input: `*input` becomes its writing end, which does not block.
Result<RankProcess> StartRankWithInput(const LaunchRecord& launch, int rank,
                                       const std::map<std::string, std::string>& variables,
                                       OwnedFd* input);

}  // namespace cairn
