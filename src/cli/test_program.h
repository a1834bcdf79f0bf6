#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <cairn/value.h>

namespace cairn {

/// How the program ended, and what it said.
struct Finished {
  int code = -1;    // exit code, or -1
  int signal = 0;   // that ended it, or 0
  std::string out;  // standard output
  std::string err;  // standard error; with a terminal everything is in `out`
};

/// Runs the real program as a process, without a terminal. `in_child` runs before the program does.
Finished RunProgram(const std::vector<std::string>& words,
                    const std::function<void()>& in_child = {});

/// On a terminal of its own, where somebody types `answer`.
Finished RunOnTerminal(const std::vector<std::string>& words, const std::string& answer);

/// The program under way, for tests that do something to it.
class RunningProgram {
 public:
  explicit RunningProgram(const std::vector<std::string>& words,
                          const std::function<void()>& in_child = {});
  ~RunningProgram();
  RunningProgram(const RunningProgram&) = delete;
  RunningProgram& operator=(const RunningProgram&) = delete;

  /// Reads until what it printed so far has the text in it; false when it ended without.
  bool WaitForOutput(const std::string& text);
  void Signal(int signal) const;
  /// Reads the rest.
  Finished Wait();

 private:
  /// One read of either end; false when both are closed.
  bool ReadSome();

  pid_t child_ = -1;
  int ends_[2] = {-1, -1};
  Finished finished_;
};

/// Standard output as JSON.
Value Json(const Finished& finished);

}  // namespace cairn
