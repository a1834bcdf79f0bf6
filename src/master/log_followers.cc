#include "master/log_followers.h"

#include <fmt/format.h>

#include <limits>
#include <utility>

#include "base/log.h"
#include "format/json.h"
#include "launch/log_line.h"

namespace cairn::master {
namespace {

constexpr std::uint64_t kEnoughWaits = 1u << 20;  // bytes that a client did not take yet
constexpr auto kTick = std::chrono::seconds(1);
constexpr auto kBusyTick = std::chrono::milliseconds(10);

}  // namespace

Value ToValue(const LogLine& line) {
  return Value::Object{{"id", line.id},
                       {"time", static_cast<double>(line.time) / 1e9},
                       {"run_id", line.run},
                       {"rank", line.rank},
                       {"stream", line.from_stderr ? "stderr" : "stdout"},
                       {"level", LevelName(line.level)},
                       {"text", line.text}};
}

LogFollowers::~LogFollowers() { Stop(); }

void LogFollowers::Start() {
  thread_ = std::jthread([this](const std::stop_token& stop) { Run(stop); });
}

void LogFollowers::Stop() {
  {
    MutexLock hold(&mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.request_stop();
  if (thread_.joinable()) thread_.join();
}

void LogFollowers::OnChange(const std::string& trial) {
  MutexLock hold(&mu_);
  if (count_ == 0) return;
  touched_.insert(trial);
  changed_.NotifyAll();
}

void LogFollowers::Follow(const HttpReply& reply, LogQuery query, std::function<bool()> allowed) {
  {
    MutexLock hold(&mu_);
    if (!stopping_ && count_ < options_.max_followers) {
      arrived_.push_back(
          {.stream = reply.Stream(200, "text/event-stream", {{"Cache-Control", "no-store"}}),
           .query = std::move(query),
           .allowed = std::move(allowed)});
      ++count_;
      changed_.NotifyAll();
      return;
    }
  }
  reply.Send(ErrorResponse(503, "unavailable", "too many follow logs: try again later"));
}

bool LogFollowers::Gather(Follower* to, LogPage page) {
  if (to->next_id == 0) to->next_id = page.next_id;
  to->query.limit -= std::min<std::uint64_t>(to->query.limit, page.lines.size());
  to->query.before_id = page.previous_id;
  to->last.insert(to->last.begin(), std::make_move_iterator(page.lines.begin()),
                  std::make_move_iterator(page.lines.end()));
  return !page.more || to->query.limit == 0;
}

bool LogFollowers::Serve(Follower* to) {
  // Asked before the lines are read: what was complete then is sent below.
  const std::string ended = options_.ended(to->query.trial);
  for (;;) {
    if (!to->stream.open()) return false;
    if (to->stream.backlog() > kEnoughWaits) {
      to->busy = true;
      return true;
    }
    auto page = options_.logs->Read(to->query);
    if (!page.ok()) {
      if (!std::exchange(to->failing, true)) {
        LogWarning(fmt::format("log of trial {}: {}; trying again", to->query.trial,
                               page.status().ToString()));
      }
      to->busy = false;  // the next look is soon enough
      return !page.status().Is(Code::kNotFound);
    }
    to->failing = false;
    // After the last ones comes what was written while they were looked for.
    const bool more = to->query.tail || page->more;
    if (to->query.tail) {
      if (!Gather(to, *std::move(page))) {
        to->busy = true;  // others have their turn
        return true;
      }
      page->lines = std::exchange(to->last, {});
      page->next_id = to->next_id;
    }
    std::string text;
    for (const LogLine& line : page->lines) {
      text += fmt::format("id: {}\nevent: log\ndata: {}\n\n", line.id, EncodeJson(ToValue(line)));
    }
    to->query.tail = false;
    to->query.before_id = std::numeric_limits<std::uint64_t>::max();
    to->query.limit = 1000;
    to->query.from_id = std::max(to->query.from_id, page->next_id);
    if (!text.empty() && !to->stream.Write(std::move(text))) return false;
    if (!more) break;
  }
  to->busy = false;
  if (ended.empty()) return true;
  to->stream.Write(
      fmt::format("event: end\ndata: {}\n\n", EncodeJson(Value::Object{{"state", ended}})));
  to->stream.End();
  return false;
}

void LogFollowers::Run(const std::stop_token& stop) {
  std::vector<Follower> followers;
  Clock::Duration told = options_.clock->Now();
  Clock::Duration ticked = told;
  bool busy = false;
  while (!stop.stop_requested()) {
    std::set<std::string> touched;
    {
      MutexLock hold(&mu_);
      if (arrived_.empty() && touched_.empty() && !stopping_) {
        changed_.WaitFor(
            &mu_, busy ? std::chrono::nanoseconds(kBusyTick) : std::chrono::nanoseconds(kTick));
      }
      if (stopping_) break;
      touched.swap(touched_);
      for (Follower& one : arrived_) followers.push_back(std::move(one));
      arrived_.clear();
    }
    // By the clock, not by a wait that nobody cut short: a trial that writes all the time does.
    const bool tick = options_.clock->Now() - ticked >= kTick;
    if (tick) ticked = options_.clock->Now();
    const bool comment = options_.clock->Now() - told >= std::chrono::seconds(15);
    if (comment) told = options_.clock->Now();
    busy = false;
    const std::size_t before = followers.size();
    std::erase_if(followers, [&](Follower& one) {
      if (tick && !one.allowed()) {
        one.stream.End();
        return true;
      }
      if (comment && !one.stream.Write(": \n\n")) return true;
      // Every second also those that nobody spoke of: how a trial ended is known a little later.
      const bool due = one.busy || tick || touched.contains(one.query.trial);
      const bool over = due && !Serve(&one);
      busy = busy || (!over && one.busy);
      return over;
    });
    MutexLock hold(&mu_);
    count_ -= before - followers.size();
  }
  for (Follower& one : followers) one.stream.End();
}

}  // namespace cairn::master
