#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <cairn/status.h>
#include <cairn/value.h>

#include "base/clock.h"
#include "base/thread_annotations.h"
#include "catalog/logs.h"
#include "net/http_server.h"

namespace cairn::master {

struct LogFollowersOptions {
  CatalogLogs* logs = nullptr;  // borrowed
  Clock* clock = Clock::System();
  /// The state of a trial that rests (PAUSED or ended) and whose log is complete; "": not yet.
  std::function<std::string(const std::string& trial)> ended;
  std::size_t max_followers = 500;
};

/// Clients that read a trial's log as it is written. One thread serves all of them. May be called
/// from any thread.
class LogFollowers {
 public:
  using Options = LogFollowersOptions;
  explicit LogFollowers(Options options) : options_(std::move(options)) {}
  ~LogFollowers();
  LogFollowers(const LogFollowers&) = delete;
  LogFollowers& operator=(const LogFollowers&) = delete;

  void Start();
  void Stop();
  /// Answers with a stream of what matches from query.from_id on (tail: the last ones), then of
  /// what comes. `allowed` is asked about every second, on the thread of this: the stream of who
  /// may not look any more ends.
  void Follow(const HttpReply& reply, LogQuery query, std::function<bool()> allowed);
  /// Lines were added, or the trial came to rest. Quick.
  void OnChange(const std::string& trial);

 private:
  struct Follower {
    HttpStream stream;
    LogQuery query;
    // While query.tail: those of the last lines that were found, and where new ones begin.
    std::vector<LogLine> last;
    std::uint64_t next_id = 0;
    bool busy = true;      // there may be more to send
    bool failing = false;  // the log could not be read; said once
    std::function<bool()> allowed;
  };
  void Run(const std::stop_token& stop);
  /// False: it is over.
  bool Serve(Follower* to);
  /// Looks for more of the last lines, a stretch of the log. True: they are all there.
  bool Gather(Follower* to, LogPage page);

  const Options options_;
  Mutex mu_;
  CondVar changed_;
  bool stopping_ GUARDED_BY(mu_) = false;
  std::vector<Follower> arrived_ GUARDED_BY(mu_);
  std::set<std::string> touched_ GUARDED_BY(mu_);
  std::size_t count_ GUARDED_BY(mu_) = 0;
  std::jthread thread_;
};

/// A line as the contract has it.
Value ToValue(const LogLine& line);

}  // namespace cairn::master
