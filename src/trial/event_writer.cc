#include "trial/event_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/log.h"
#include "trial/kill_point.h"

namespace cairn {
namespace {

constexpr std::size_t kMaxGroup = 4096;
constexpr auto kFirstRetry = std::chrono::milliseconds(10);
constexpr auto kLastRetry = std::chrono::milliseconds(500);

/// Of this process: it dies once.
KillPoint& Death() {
  static KillPoint point = KillPoint::FromEnvironment();
  return point;
}

Status Lost(const Status& why) {
  return UnavailableError(fmt::format("the event log is another engine's now: {}", why.message()));
}

}  // namespace

EventWriter::EventWriter(EventWriterOptions options) : options_(std::move(options)) {
  durable_ = options_.durable;
  thread_ = std::jthread([this](const std::stop_token& stop) { Run(stop); });
}

EventWriter::~EventWriter() {
  {
    MutexLock hold(&mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.request_stop();
  thread_.join();
  TellAll(CancelledError("the trial engine stops"));
}

void EventWriter::Enqueue(Event event) {
  bool wake = false;
  {
    MutexLock hold(&mu_);
    Death().Taken(event);
    queue_.push_back(std::move(event));
    wake = ReadyToWrite();
  }
  // Not under the lock, at which the writer would have to wait at once.
  if (wake) changed_.NotifyAll();
}

bool EventWriter::ReadyToWrite() const {
  return holders_ == 0 && !queue_.empty() && queue_.size() >= awaited_;
}

void EventWriter::Hold() {
  MutexLock hold(&mu_);
  ++holders_;
}

void EventWriter::Release() {
  bool wake = false;
  {
    MutexLock hold(&mu_);
    --holders_;
    wake = ReadyToWrite();
  }
  if (wake) changed_.NotifyAll();
}

void EventWriter::AfterDurable(std::uint64_t seq, Clock::Duration timeout, Done done) {
  Status now;
  {
    MutexLock hold(&mu_);
    if (stopping_) {
      now = CancelledError("the trial engine stops");
    } else if (trouble_.Is(Code::kAborted)) {
      now = Lost(trouble_);
    } else if (seq > durable_) {
      const Clock::Duration until =
          timeout == Clock::Duration::zero() ? timeout : options_.clock->Now() + timeout;
      waiters_.push_back({seq, until, std::move(done)});
      return;
    }
  }
  done(now);
}

void EventWriter::AfterDurableElsewhere(std::uint64_t seq, Done done) {
  MutexLock hold(&mu_);
  waiters_.push_back({seq, Clock::Duration::zero(), std::move(done)});
  poked_ = true;
  changed_.NotifyAll();
}

Clock::Duration EventWriter::Expire() {
  std::vector<Done> over;
  Status why;
  Clock::Duration next = std::chrono::seconds(1);
  {
    MutexLock hold(&mu_);
    const Clock::Duration now = options_.clock->Now();
    std::erase_if(waiters_, [&](Waiter& waiter) {
      if (waiter.until == Clock::Duration::zero()) return false;
      if (waiter.until > now) {
        next = std::min(next, waiter.until - now);
        return false;
      }
      over.push_back(std::move(waiter.done));
      return true;
    });
    why = trouble_;
  }
  for (const Done& done : over) {
    done(why.ok() ? UnavailableError("the event log takes too long; ask again")
                  : Status(why.Is(Code::kResourceExhausted) ? Code::kResourceExhausted
                                                            : Code::kUnavailable,
                           fmt::format("the event log cannot be written now: {}", why.message())));
  }
  return next;
}

std::uint64_t EventWriter::durable() const {
  MutexLock hold(&mu_);
  return durable_;
}

bool EventWriter::lost() const {
  MutexLock hold(&mu_);
  return trouble_.Is(Code::kAborted);
}

Status EventWriter::trouble() const {
  MutexLock hold(&mu_);
  return trouble_;
}

void EventWriter::TellDurable(std::uint64_t durable) {
  std::vector<Done> ready;
  {
    MutexLock hold(&mu_);
    durable_ = durable;
    trouble_ = Status::Ok();
    // Not sorted by seq when an answer to an older event is asked for late; there are few.
    std::erase_if(waiters_, [&](Waiter& waiter) {
      if (waiter.seq > durable) return false;
      ready.push_back(std::move(waiter.done));
      return true;
    });
  }
  for (const Done& done : ready) done(Status::Ok());
}

void EventWriter::TellAll(const Status& status) {
  std::deque<Waiter> all;
  {
    MutexLock hold(&mu_);
    all.swap(waiters_);
  }
  for (const Waiter& waiter : all) waiter.done(status);
}

void EventWriter::TellLost(const Status& why) {
  for (;;) {
    TellAll(Lost(why));
    MutexLock hold(&mu_);
    while (!stopping_ && !poked_) changed_.Wait(&mu_);
    if (stopping_) return;
    poked_ = false;
  }
}

void EventWriter::Gather(std::size_t count, Clock::Duration longest) {
  const Clock::Duration end = options_.clock->Now() + longest;
  awaited_ = count;
  while ((queue_.size() < count || holders_ > 0) && !stopping_ && !poked_) {
    const Clock::Duration left = end - options_.clock->Now();
    if (left <= Clock::Duration::zero() || !changed_.WaitFor(&mu_, left)) break;
  }
  awaited_ = 1;
}

void EventWriter::Run(const std::stop_token& stop) {
  std::vector<Event> group;
  std::size_t together = 0;  // the size of the last group that was written
  Clock::Duration took{};    // … and what that took
  for (;;) {
    bool last = false;  // this process is to end with this group
    {
      MutexLock hold(&mu_);
      while ((queue_.empty() || holders_ > 0) && !stopping_ && !poked_) changed_.Wait(&mu_);
      Gather(together, std::min(took / 2, options_.longest_gathering));
      if (queue_.empty() && !poked_) return;
      poked_ = false;
      const std::size_t ready = holders_ > 0 && !stopping_ ? 0 : queue_.size();
      const auto count = static_cast<std::ptrdiff_t>(std::min(ready, kMaxGroup));
      group.assign(std::make_move_iterator(queue_.begin()),
                   std::make_move_iterator(queue_.begin() + count));
      queue_.erase(queue_.begin(), queue_.begin() + count);
      if (count > 0) together = group.size();
      last = Death().Cut(&group);
    }
    Clock::Duration pause = kFirstRetry;
    std::optional<Clock::Duration> failing;  // since when
    while (!group.empty()) {
      const Clock::Duration began = options_.clock->Now();
      const Status status = options_.log->Append(group);
      took = options_.clock->Now() - began;
      if (status.ok() && failing) {
        LogWarning(fmt::format("trial engine: the event log is written again, after {:.1f} s",
                               std::chrono::duration<double>(began - *failing).count()));
      }
      if (status.ok()) break;
      if (!failing) failing = began;
      bool first = false;
      {
        MutexLock hold(&mu_);
        first = trouble_.ok();
        trouble_ = status;
        if (stopping_ || stop.stop_requested()) return;
      }
      if (status.Is(Code::kAborted)) {
        LogError(fmt::format("trial engine: {}", status.ToString()));
        return TellLost(status);
      }
      if (first) {
        LogWarning(fmt::format("trial engine: the event log cannot be written, trying again: {}",
                               status.ToString()));
      }
      {
        MutexLock hold(&mu_);
        if (!stopping_) changed_.WaitFor(&mu_, pause);
      }
      Expire();
      pause = std::min<Clock::Duration>(pause * 2, kLastRetry);
    }
    if (last) Death().Durable();
    const std::uint64_t written = group.empty() ? durable() : group.back().seq;
    if (options_.on_event) {
      for (Event& event : group) options_.on_event(std::move(event));
    }
    TellDurable(written);
    if (last) Death().Told();
  }
}

}  // namespace cairn
