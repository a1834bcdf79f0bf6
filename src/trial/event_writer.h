#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include <cairn/status.h>

#include "base/clock.h"
#include "base/thread_annotations.h"
#include "trial/event_log.h"

namespace cairn {

struct EventWriterOptions {
  EventLog* log = nullptr;         // borrowed
  Clock* clock = Clock::System();  // borrowed
  std::uint64_t durable = 0;       // the last event that is in the log
  /// For those who came together last time; never longer than half of what their sync took.
  Clock::Duration longest_gathering = std::chrono::milliseconds(2);
  /// Given each event once it is durable, in order, on the writer's thread; may be empty.
  std::function<void(Event)> on_event;
};

/// Writes events in the order in which they were given, as many at once as have gathered while the
/// ones before were being synced (group commit). Who was answered by the last sync often gives his
/// next event at once: the writer waits for as many as there were then, at most half as long as
/// that sync took, so that they do not fall into two groups that wait for each other. A log that
/// fails is tried again for as long as it takes: whoever waits is told after a while that it is not
/// known yet, and events are never given up or reordered. Only Aborted ends it: another engine owns
/// the log. Whoever waits is then told Unavailable: what he asked about may well be true there.
///
/// May be called from any thread; who gives events holds a lock of its own that orders them.
class EventWriter {
 public:
  using Done = std::function<void(Status)>;

  explicit EventWriter(EventWriterOptions options);
  /// Writes what is queued if the log takes it at once, and tells whoever still waits Cancelled.
  ~EventWriter();
  EventWriter(const EventWriter&) = delete;
  EventWriter& operator=(const EventWriter&) = delete;

  void Enqueue(Event event);
  /// Between Hold and Release nothing is written that was not begun before: events that are given
  /// one after the other get into the log by one sync. For moments; holders add up.
  void Hold();
  void Release();
  /// Calls `done` once: with OK when the event `seq` and all before it are durable (at once, on
  /// this thread, when they are), or with why that is not known after `timeout` (0: waits for
  /// ever). Otherwise it is called on the writer's thread or by Expire: it must be quick.
  void AfterDurable(std::uint64_t seq, Clock::Duration timeout, Done done);
  /// The same without end and never on this thread: for callers that hold a lock which `done`
  /// takes.
  void AfterDurableElsewhere(std::uint64_t seq, Done done);
  /// Tells those whose time is over. Returns when to be called again at the latest.
  Clock::Duration Expire();

  std::uint64_t durable() const;
  /// Why the log cannot be written now; OK when it can.
  Status trouble() const;
  /// Another engine owns the log: nothing becomes durable here any more.
  bool lost() const;

 private:
  struct Waiter {
    std::uint64_t seq = 0;
    Clock::Duration until{};  // zero: for ever
    Done done;
  };

  void Run(const std::stop_token& stop);
  /// There is something to write that the writer does not have to wait with.
  bool ReadyToWrite() const REQUIRES(mu_);
  /// Waits for `count` events, at most so long.
  void Gather(std::size_t count, Clock::Duration longest) REQUIRES(mu_);
  void TellDurable(std::uint64_t durable);
  void TellAll(const Status& status);
  /// Until the end: tells whoever comes that the log is gone.
  void TellLost(const Status& why);

  const EventWriterOptions options_;
  mutable Mutex mu_;
  CondVar changed_;
  bool stopping_ GUARDED_BY(mu_) = false;
  int holders_ GUARDED_BY(mu_) = 0;
  std::size_t awaited_ GUARDED_BY(mu_) = 1;  // events without which the writer need not wake
  bool poked_ GUARDED_BY(mu_) = false;       // somebody waits for what is durable already
  std::deque<Event> queue_ GUARDED_BY(mu_);
  std::deque<Waiter> waiters_ GUARDED_BY(mu_);
  std::uint64_t durable_ GUARDED_BY(mu_) = 0;
  Status trouble_ GUARDED_BY(mu_);
  std::jthread thread_;
};

}  // namespace cairn
