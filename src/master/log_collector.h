#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include <cairn/status.h>
#include <cairn/value.h>

#include "base/clock.h"
#include "base/thread_annotations.h"
#include "catalog/logs.h"
#include "launch/launcher.h"

namespace cairn::master {

/// A trial and the number of its run.
using RunId = std::pair<std::string, std::uint64_t>;

struct LogCollectorOptions {
  CatalogLogs* logs = nullptr;  // borrowed, as all pointers here
  Launcher* launcher = nullptr;
  Clock* clock = Clock::System();
  /// Which run a launch is; nothing for one that no trial on record began.
  std::function<std::optional<RunId>(const std::string& launch)> run_of;
  /// Whether the engine has recorded the end of this run; asked by Start.
  std::function<bool(const std::string& trial, std::uint64_t run)> settled;
  /// How often the logs of living launches are looked at.
  std::chrono::milliseconds interval = std::chrono::milliseconds(250);
};

/// Brings what runs write into the catalog. Reads go on where the catalog's last batch ended, so
/// that nothing is left out or doubled whoever dies. A launch that ended, is read to its end and is
/// settled (the engine knows how it ended) is forgotten by the launcher. May be called from any
/// thread.
class LogCollector {
 public:
  using Options = LogCollectorOptions;
  explicit LogCollector(Options options) : options_(std::move(options)) {}
  ~LogCollector();
  LogCollector(const LogCollector&) = delete;
  LogCollector& operator=(const LogCollector&) = delete;

  /// Finds the launches that are there already. What a run wrote that belongs to no trial on record
  /// is nobody's log: those that ended are forgotten.
  Status Start();
  void Stop();

  /// A launch started or ended.
  void OnLaunch(const LaunchInfo& info);
  /// The engine has recorded the end of this run.
  void OnSettled(const std::string& trial, std::uint64_t run);
  /// Lines of a run that nobody launched.
  void Add(const std::string& trial, std::uint64_t run, const Value::List& lines);
  /// Whether all that the trial's runs wrote is in the catalog.
  bool Finished(const std::string& trial) const;

 private:
  struct Source {
    std::string launch;
    bool started = false;  // the position is known
    std::uint64_t position = 0;
    bool settled = false;
    bool failing = false;  // said once
    bool read = false;     // to the end
  };

  void Run(const std::stop_token& stop);
  /// True when there may be more at once.
  bool Collect(const RunId& id);
  Status AddNow(const std::string& trial, std::uint64_t run, const Value::List& lines);

  const Options options_;
  mutable Mutex mu_;
  CondVar changed_;
  bool stopping_ GUARDED_BY(mu_) = false;
  bool database_gone_ GUARDED_BY(mu_) = false;  // said once, and once when it is back
  std::map<RunId, Source> sources_ GUARDED_BY(mu_);
  Mutex adding_;
  std::jthread thread_;
};

}  // namespace cairn::master
