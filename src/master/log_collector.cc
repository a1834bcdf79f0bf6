#include "master/log_collector.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/status_macros.h"

namespace cairn::master {
namespace {

constexpr std::uint64_t kPageBytes = 1u << 20;

/// Nanoseconds of what a run said in seconds; `now` for a time that there is not.
std::int64_t TimeOf(const Value* seconds, std::int64_t now) {
  constexpr double kMost = 9e9;  // about as many as fit
  const double said = seconds == nullptr ? kMost : seconds->AsDouble(kMost);
  return std::abs(said) < kMost ? static_cast<std::int64_t>(said * 1e9) : now;
}

int RankOf(const Value* rank) {
  const std::int64_t said = rank == nullptr ? 0 : rank->AsInt();
  return said >= 0 && said <= std::numeric_limits<int>::max() ? static_cast<int>(said) : 0;
}

LineLevel LevelOf(const Value* level) {
  const auto* text = level == nullptr ? nullptr : level->if_string();
  if (text == nullptr || text->empty()) return LineLevel::kInfo;
  switch (text->front()) {
    case 'D':
    case 'T':
      return LineLevel::kDebug;
    case 'W':
      return LineLevel::kWarning;
    case 'E':
    case 'C':
      return LineLevel::kError;
    default:
      return LineLevel::kInfo;
  }
}

}  // namespace

LogCollector::~LogCollector() { Stop(); }

Status LogCollector::Start() {
  ASSIGN_OR_RETURN(const std::vector<LaunchInfo> launches, options_.launcher->List());
  for (const LaunchInfo& launch : launches) {
    const auto id = options_.run_of(launch.id);
    if (!id && launch.state == LaunchState::kEnded) {
      options_.launcher->Forget(launch.id).IgnoreError("it is met again at the next start");
    } else if (!id) {
      LogWarning(
          fmt::format("{} runs, and no trial on record began it: it is left alone, with its "
                      "slots; kill its processes if nobody wants them",
                      launch.id));
    } else {
      OnLaunch(launch);
      if (options_.settled(id->first, id->second)) OnSettled(id->first, id->second);
    }
  }
  thread_ = std::jthread([this](const std::stop_token& stop) { Run(stop); });
  return Status::Ok();
}

void LogCollector::Stop() {
  {
    MutexLock hold(&mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.request_stop();
  if (thread_.joinable()) thread_.join();
}

void LogCollector::OnLaunch(const LaunchInfo& info) {
  if (info.state == LaunchState::kQueued) return;
  const auto id = options_.run_of(info.id);
  if (!id) return;
  MutexLock hold(&mu_);
  sources_[*id].launch = info.id;
  if (info.state == LaunchState::kEnded) changed_.NotifyAll();
}

void LogCollector::OnSettled(const std::string& trial, std::uint64_t run) {
  MutexLock hold(&mu_);
  const auto found = sources_.find({trial, run});
  if (found != sources_.end()) found->second.settled = true;
  changed_.NotifyAll();
}

bool LogCollector::Finished(const std::string& trial) const {
  MutexLock hold(&mu_);
  for (auto at = sources_.lower_bound({trial, 0}); at != sources_.end() && at->first.first == trial;
       ++at) {
    if (!at->second.read) return false;
  }
  return true;
}

bool LogCollector::Collect(const RunId& id) {
  Source source;
  {
    MutexLock hold(&mu_);
    source = sources_[id];
  }
  const std::string launch = source.launch;
  const auto failed = [&](const Status& status, bool database) {
    bool first = false;
    {
      MutexLock hold(&mu_);
      sources_[id].started = false;  // asks again where it was
      first = !std::exchange(database ? database_gone_ : sources_[id].failing, true);
    }
    if (first && !status.Is(Code::kCancelled)) {
      LogWarning(fmt::format("log of run {}: {}; trying again", launch, status.ToString()));
    }
    return false;
  };
  if (!source.started) {
    const auto position = options_.logs->Position(id.first, id.second);
    if (!position.ok()) return failed(position.status(), true);
    source.position = *position;
    source.started = true;
  }
  const auto page = options_.launcher->ReadLog(launch, source.position, kPageBytes);
  if (!page.ok()) {
    if (!page.status().Is(Code::kNotFound)) return failed(page.status(), false);
    MutexLock hold(&mu_);
    sources_.erase(id);
    return false;
  }
  if (!page->lines.empty()) {
    LogBatch batch{
        .trial = id.first, .run = id.second, .from = source.position, .next = page->next};
    for (const LaunchLogLine& line : page->lines) {
      batch.lines.push_back({.run = id.second,
                             .time = line.time,
                             .rank = line.rank,
                             .level = line.level,
                             .from_stderr = line.from_stderr,
                             .text = line.text});
    }
    if (const Status added = options_.logs->Append(std::span(&batch, 1)); !added.ok()) {
      return failed(added, true);
    }
    source.position = page->next;
  }
  source.read = page->end;
  bool forget = false;
  bool back = false;
  {
    MutexLock hold(&mu_);
    Source& kept = sources_[id];
    kept.started = true;
    kept.failing = false;
    // A page without lines has asked the database for nothing.
    if (!page->lines.empty()) back = std::exchange(database_gone_, false);
    kept.position = source.position;
    kept.read = source.read;
    forget = kept.read && kept.settled;
    if (forget) sources_.erase(id);
  }
  if (back) LogInfo("logs of runs are written again");
  if (forget) {
    if (const Status gone = options_.launcher->Forget(launch); !gone.ok()) {
      LogWarning(fmt::format("run {}: {}", launch, gone.ToString()));
    }
  }
  return !page->lines.empty() && !page->end;
}

void LogCollector::Run(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    std::vector<RunId> ids;
    {
      MutexLock hold(&mu_);
      if (stopping_) return;
      for (const auto& [id, source] : sources_) {
        if (!source.read || source.settled) ids.push_back(id);
      }
    }
    bool more = false;
    for (const RunId& id : ids) more |= Collect(id);
    if (more) continue;
    MutexLock hold(&mu_);
    if (!stopping_) changed_.WaitFor(&mu_, options_.interval);
  }
}

void LogCollector::Add(const std::string& trial, std::uint64_t run, const Value::List& lines) {
  if (const Status added = AddNow(trial, run, lines); !added.ok()) {
    LogWarning(fmt::format("log of run {}.{}: {}", trial, run, added.ToString()));
  }
}

Status LogCollector::AddNow(const std::string& trial, std::uint64_t run, const Value::List& lines) {
  MutexLock one_at_a_time(&adding_);
  ASSIGN_OR_RETURN(const std::uint64_t position, options_.logs->Position(trial, run));
  LogBatch batch{.trial = trial, .run = run, .from = position, .next = position + lines.size()};
  for (const Value& line : lines) {
    const Value* text = line.Find("text");
    const Value* stream = line.Find("stream");
    if (text == nullptr || text->if_string() == nullptr) continue;
    batch.lines.push_back({.run = run,
                           .time = TimeOf(line.Find("time"), options_.clock->WallNanos()),
                           .rank = RankOf(line.Find("rank")),
                           .level = LevelOf(line.Find("level")),
                           .from_stderr = stream != nullptr && stream->if_string() != nullptr &&
                                          *stream->if_string() == "stderr",
                           .text = *text->if_string()});
  }
  return options_.logs->Append(std::span(&batch, 1));
}

}  // namespace cairn::master
