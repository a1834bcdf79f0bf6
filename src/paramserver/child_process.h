#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/status.h>

namespace cairn::ps {

/// A process of a job: it dies with the one that started it. For one thread, which must live as
/// long as the process should.
class ChildProcess {
 public:
  /// `argv[0]` is looked up on the PATH. `env` is put over this process's own.
  static Result<ChildProcess> Start(const std::vector<std::string>& argv,
                                    const std::map<std::string, std::string>& env);
  ~ChildProcess();
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) noexcept;

  int exit_event() const { return pidfd_; }  // readable when it has ended
  int out() const { return out_; }           // its output; -1 when that is closed
  int err() const { return err_; }
  /// To it and to what it started.
  void Signal(int signal) const;
  /// Waits for its end: the status as waitpid gives it.
  int Reap();
  /// Reads what is there from out() (or err()) and gives out whole lines; what is left is given out
  /// when the stream ends.
  std::vector<std::string> ReadLines(bool error);
  std::chrono::steady_clock::time_point started() const { return started_; }

 private:
  ChildProcess() = default;
  void CloseAll();

  pid_t pid_ = -1;
  int pidfd_ = -1;
  int out_ = -1;
  int err_ = -1;
  bool reaped_ = false;
  int status_ = 0;
  std::string rest_[2];
  std::chrono::steady_clock::time_point started_;
};

/// "killed by signal 9", "exit code 3".
std::string DescribeExit(int status);

}  // namespace cairn::ps
