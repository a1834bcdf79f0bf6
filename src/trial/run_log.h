#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <thread>

#include "base/clock.h"
#include "base/thread_annotations.h"
#include "launch/log_line.h"

namespace cairn {

class RunClient;

struct RunLogOptions {
  RunClient* client = nullptr;  // borrowed; closed after this
  int rank = 0;
  /// Lines gather for so long, so that a chatty run costs the engine a few requests a second.
  std::chrono::nanoseconds gather = std::chrono::milliseconds(250);
  /// Of lines that wait. An engine that is away for long costs lines, never the run's time.
  std::size_t max_bytes = 4u << 20;
  Clock* clock = Clock::System();  // borrowed
};

/// Sends what a run writes that nobody launched to its engine, line by line, in the background
/// (docs/format/trial_protocol.md, "logs"). Nobody waits for it and nothing fails by it: when more
/// lines wait than it may keep, the oldest go, and a line says how many. A request whose answer got
/// lost is sent again, so that lines may come twice. May be called from any thread.
class RunLog {
 public:
  using Options = RunLogOptions;
  explicit RunLog(Options options);
  /// Closes; what is left is sent for at most two seconds.
  ~RunLog();
  RunLog(const RunLog&) = delete;
  RunLog& operator=(const RunLog&) = delete;

  /// Bytes that were written; cut into lines here.
  void Write(bool from_stderr, std::string_view bytes);
  /// Sends what is left, for at most so long. What is written later goes nowhere.
  void Close(std::chrono::nanoseconds longest);

 private:
  struct Line {
    std::int64_t time = 0;
    bool from_stderr = false;
    std::string text;
  };

  struct Batch {
    std::uint64_t dropped = 0;  // before the first
    std::deque<Line> lines;
  };
  enum class Outcome : std::uint8_t {
    kSent,
    kLater,     // the engine is away
    kUnwanted,  // the run was replaced, or the engine keeps no logs
  };

  void Run();
  void Add(bool from_stderr, std::string_view text) REQUIRES(mu_);
  void Trim() REQUIRES(mu_);
  /// Waits for lines and gives those of one request; none: it is over.
  Batch Take();
  Outcome Send(const Batch& batch);
  /// They were not sent; returns when it is time for the next attempt.
  void PutBack(Batch batch);

  const Options options_;
  Mutex mu_;
  CondVar changed_;
  std::array<LineCutter, 2> cutters_ GUARDED_BY(mu_);  // of standard output and standard error
  std::deque<Line> lines_ GUARDED_BY(mu_);
  std::size_t bytes_ GUARDED_BY(mu_) = 0;
  std::uint64_t dropped_ GUARDED_BY(mu_) = 0;
  bool closing_ GUARDED_BY(mu_) = false;
  bool given_up_ GUARDED_BY(mu_) = false;  // nothing more is sent
  bool done_ GUARDED_BY(mu_) = false;      // the thread has ended
  std::jthread thread_;
};

}  // namespace cairn
