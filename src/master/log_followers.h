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
  /// what comes.
  void Follow(const HttpReply& reply, LogQuery query, bool only_stderr, bool only_stdout);
  /// Lines were added, or the trial came to rest. Quick.
  void OnChange(const std::string& trial);

 private:
  struct Follower {
    HttpStream stream;
    LogQuery query;
    bool only_stderr = false;
    bool only_stdout = false;
    bool busy = true;  // there may be more to send
  };
  void Run(const std::stop_token& stop);
  /// False: it is over.
  bool Serve(Follower* to);

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
