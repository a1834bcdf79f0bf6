#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <cairn/status.h>
#include <cairn/value.h>

#include "base/clock.h"
#include "base/thread_annotations.h"
#include "net/http_server.h"
#include "trial/event_log.h"
#include "trial/trial_engine.h"

namespace cairn::master {

struct EventFeedOptions {
  EventLog* log = nullptr;  // borrowed, as all pointers here; Replay from any thread
  TrialEngine* engine = nullptr;
  Clock* clock = Clock::System();
  std::string instance;
  std::function<std::string(const std::string& trial)> experiment_of;
  /// An experiment's state now, for those who missed how it changed; null: not known.
  std::function<Value(const std::string& experiment)> experiment_now;
  /// Beyond so many missed events a client is told to read everything again.
  std::uint64_t max_replay = 10'000;
  std::size_t max_subscribers = 500;
  std::chrono::nanoseconds keep_alive = std::chrono::seconds(15);
};

/// What happens, told to whoever listens: GET /api/v1/events. A thread of its own maps the engine's
/// events to what the contract calls them and writes to all streams in the same order. May be
/// called from any thread.
class EventFeed {
 public:
  using Options = EventFeedOptions;
  struct Filter {
    std::string experiment;       // "": all
    std::string trial;            // "": all
    std::set<std::string> kinds;  // empty: all
  };

  explicit EventFeed(Options options) : options_(std::move(options)) {}
  ~EventFeed();
  EventFeed(const EventFeed&) = delete;
  EventFeed& operator=(const EventFeed&) = delete;

  /// `last`: the number of the last event that is durable.
  void Start(std::uint64_t last);
  void Stop();

  /// Quick: queued.
  void OnEvent(const Event& event);
  void OnExperiment(std::int64_t experiment, Value::Object what);
  /// The state of a trial may look different although no event says so: it got its slots.
  void OnTrial(const std::string& trial);
  /// More is known of a completed checkpoint than was.
  void OnCheckpoint(const std::string& trial, const std::string& checkpoint);
  /// Of the kinds that are no events of the engine's: service, verification.
  void Publish(std::string kind, Value::Object body);

  /// Answers with a stream. `after`: what came after that one first. `allowed` is asked about every
  /// second, on the feed's thread: the stream of who may not look any more ends.
  void Subscribe(HttpReply reply, Filter filter, std::optional<std::uint64_t> after,
                 std::function<bool()> allowed);
  std::size_t subscribers() const;

 private:
  struct Item {
    std::string kind;
    std::string experiment;
    std::string trial;
    std::uint64_t seq = 0;
    std::int64_t time = 0;
    std::uint64_t run = 0;
    Value::Object body;
  };
  struct Subscriber {
    HttpStream stream;
    Filter filter;
    std::function<bool()> allowed;
  };

  void Run(const std::stop_token& stop);
  std::vector<Item> Map(const Event& event);
  Item TrialItem(const std::string& trial, Value::Object body);
  static std::string Encode(const Item& item);
  static bool Wanted(const Filter& filter, const Item& item);
  void Send(const std::vector<Item>& items);
  void Welcome(const HttpReply& reply, Filter filter, std::optional<std::uint64_t> after,
               std::function<bool()> allowed);
  void EndOfThoseNotAllowed();

  const Options options_;
  mutable Mutex mu_;
  CondVar changed_;
  bool stopping_ GUARDED_BY(mu_) = false;
  std::deque<std::function<void()>> queue_ GUARDED_BY(mu_);
  std::size_t count_ GUARDED_BY(mu_) = 0;

  // Of the thread alone.
  std::uint64_t last_ = 0;
  std::vector<Subscriber> subscribers_;
  std::jthread thread_;
};

}  // namespace cairn::master
