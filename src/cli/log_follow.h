#pragma once

#include <cstdint>
#include <string>

#include <cairn/status.h>
#include <cairn/value.h>

#include "cli/console.h"
#include "cli/master_client.h"

namespace cairn::cli {

/// Which lines of a trial's logs are wanted.
struct LogSelection {
  std::string level;   // this one and above; "": all
  std::string search;  // part of the text
  std::int64_t rank = -1;
  std::int64_t run = -1;
  std::int64_t tail = -1;  // the last so many; -1: all
  bool times = false;      // print the time before each line
};

/// Prints the lines that there are (standard output; with --json an object a line).
Status PrintLogs(MasterClient* master, const Value& trial, const LogSelection& selection,
                 Console* console);

/// Prints the lines that there are and those that come, until the trial is paused or has ended: its
/// state. A master that dies on the way is waited for, and no line comes twice. `position` is the
/// last line that was printed, -1 at first; a second call goes on after it. Cancelled when a signal
/// was caught.
Result<std::string> FollowLogs(MasterClient* master, const Value& trial,
                               const LogSelection& selection, std::int64_t* position,
                               Console* console);

}  // namespace cairn::cli
