#include "master/event_feed.h"

#include <fmt/format.h>

#include <utility>

#include "base/log.h"
#include "base/status_macros.h"
#include "format/json.h"

namespace cairn::master {
namespace {

constexpr auto kJudge = std::chrono::seconds(1);
constexpr std::size_t kMostQueued = 100'000;

Value MemberOf(const Event& event, std::string_view name) {
  const Value* found = event.body.Find(name);
  return found == nullptr ? Value() : *found;
}

}  // namespace

EventFeed::~EventFeed() { Stop(); }

void EventFeed::Start(std::uint64_t last) {
  last_ = last;
  thread_ = std::jthread([this](const std::stop_token& stop) { Run(stop); });
}

void EventFeed::Stop() {
  {
    MutexLock hold(&mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.request_stop();
  if (thread_.joinable()) thread_.join();
}

std::size_t EventFeed::subscribers() const {
  MutexLock hold(&mu_);
  return count_;
}

void EventFeed::OnEvent(const Event& event) {
  MutexLock hold(&mu_);
  // Nobody may be slow enough for that; if the thread is, clients find a gap and read again.
  if (queue_.size() >= kMostQueued) return;
  queue_.push_back([this, event] {
    last_ = event.seq;
    if (!subscribers_.empty()) Send(Map(event));
  });
  if (queue_.size() == 1) changed_.NotifyAll();  // many come at once: they wake it once
}

void EventFeed::OnExperiment(std::int64_t experiment, Value::Object what) {
  MutexLock hold(&mu_);
  if (queue_.size() >= kMostQueued) return;
  queue_.push_back([this, experiment, what = std::move(what)] {
    Send({Item{.kind = "experiment",
               .experiment = std::to_string(experiment),
               .seq = last_,
               .time = options_.clock->WallNanos(),
               .body = what}});
  });
  changed_.NotifyAll();
}

void EventFeed::OnTrial(const std::string& trial) {
  MutexLock hold(&mu_);
  if (queue_.size() >= kMostQueued) return;
  queue_.push_back([this, trial] { Send({TrialItem(trial, {})}); });
  changed_.NotifyAll();
}

void EventFeed::OnCheckpoint(const std::string& trial, const std::string& checkpoint) {
  MutexLock hold(&mu_);
  if (queue_.size() >= kMostQueued) return;
  queue_.push_back([this, trial, checkpoint] {
    Send({Item{.kind = "checkpoint",
               .experiment = options_.experiment_of(trial),
               .trial = trial,
               .seq = last_,
               .time = options_.clock->WallNanos(),
               .body = {{"id", checkpoint}, {"state", "COMPLETED"}}}});
  });
  changed_.NotifyAll();
}

void EventFeed::Publish(std::string kind, Value::Object body) {
  MutexLock hold(&mu_);
  if (queue_.size() >= kMostQueued) return;
  queue_.push_back([this, kind = std::move(kind), body = std::move(body)] {
    Send({Item{.kind = kind, .seq = last_, .time = options_.clock->WallNanos(), .body = body}});
  });
  changed_.NotifyAll();
}

void EventFeed::Subscribe(HttpReply reply, Filter filter, std::optional<std::uint64_t> after,
                          std::function<bool()> allowed) {
  {
    MutexLock hold(&mu_);
    if (count_ < options_.max_subscribers && !stopping_) {
      queue_.push_back([this, reply = std::move(reply), filter = std::move(filter), after,
                        allowed = std::move(allowed)] { Welcome(reply, filter, after, allowed); });
      changed_.NotifyAll();
      return;
    }
  }
  reply.Send(ErrorResponse(503, "unavailable", "too many listeners: try again later"));
}

EventFeed::Item EventFeed::TrialItem(const std::string& trial, Value::Object body) {
  Item item{.kind = "trial",
            .experiment = options_.experiment_of(trial),
            .trial = trial,
            .seq = last_,
            .time = options_.clock->WallNanos()};
  if (const auto view = options_.engine->Summary(trial); view.ok()) {
    body["state"] = std::string(TrialStateName(view->state));
    item.run = view->record.core.run;
  }
  item.body = std::move(body);
  return item;
}

std::vector<EventFeed::Item> EventFeed::Map(const Event& event) {
  std::vector<Item> out;
  const auto add = [&](std::string kind, Value::Object body) {
    out.push_back({.kind = std::move(kind),
                   .experiment = options_.experiment_of(event.trial),
                   .trial = event.trial,
                   .seq = event.seq,
                   .time = event.time,
                   .run = event.run,
                   .body = std::move(body)});
  };
  const auto trial = [&](Value::Object body) {
    Item item = TrialItem(event.trial, std::move(body));
    item.seq = event.seq;
    item.time = event.time;
    out.push_back(std::move(item));
  };
  const auto checkpoint = [&](std::string_view state) {
    Value::Object body{{"id", MemberOf(event, "id")}, {"state", state}};
    if (!MemberOf(event, "steps_completed").is_null()) {
      body["steps_completed"] = MemberOf(event, "steps_completed");
    }
    if (state == "COMPLETED") {
      const Value kind = MemberOf(event, "kind");
      const Value base = MemberOf(event, "base");
      const bool increment = kind.if_string() != nullptr && *kind.if_string() == "increment";
      body["kind"] = increment ? kind : Value("full");
      body["base"] = increment ? base : Value();
    }
    add("checkpoint", std::move(body));
  };
  switch (event.kind) {
    case EventKind::kReport:
      add("metrics", {{"group", MemberOf(event, "group")},
                      {"steps_completed", MemberOf(event, "steps_completed")},
                      {"values", MemberOf(event, "metrics")}});
      break;
    case EventKind::kProgress:
      add("progress", {{"progress", MemberOf(event, "progress")}});
      break;
    case EventKind::kStatus:
      trial({{"status", MemberOf(event, "status")}});
      break;
    case EventKind::kRunStarted:
      add("run", {{"run_id", event.run}, {"live", true}});
      trial({});
      break;
    case EventKind::kRunExited:
      add("run", {{"run_id", event.run}, {"live", false}});
      trial({});
      break;
    case EventKind::kCheckpointStarted:
      checkpoint("ACTIVE");
      break;
    case EventKind::kCheckpointCompleted:
      checkpoint("COMPLETED");
      break;
    case EventKind::kCheckpointAbandoned:
      checkpoint("ERROR");
      break;
    case EventKind::kCheckpointDeleted:
      checkpoint("DELETED");
      break;
    case EventKind::kCheckpointPinned:
      add("checkpoint", {{"id", MemberOf(event, "id")},
                         {"state", "COMPLETED"},
                         {"pinned", MemberOf(event, "pinned")}});
      break;
    case EventKind::kRetentionChanged:
      add("policy", {});
      break;
    default:
      trial({});
      break;
  }
  return out;
}

std::string EventFeed::Encode(const Item& item) {
  Value::Object data{{"seq", item.seq},     {"time", static_cast<double>(item.time) / 1e9},
                     {"kind", item.kind},   {"experiment", item.experiment},
                     {"trial", item.trial}, {"body", item.body}};
  if (item.run > 0) data["run_id"] = item.run;
  return fmt::format("id: {}\nevent: {}\ndata: {}\n\n", item.seq, item.kind,
                     EncodeJson(Value(std::move(data))));
}

bool EventFeed::Wanted(const Filter& filter, const Item& item) {
  return (filter.experiment.empty() || filter.experiment == item.experiment) &&
         (filter.trial.empty() || item.trial.empty() || filter.trial == item.trial) &&
         (filter.kinds.empty() || filter.kinds.contains(item.kind));
}

void EventFeed::Send(const std::vector<Item>& items) {
  for (const Item& item : items) {
    const std::string text = Encode(item);
    std::erase_if(subscribers_, [&](Subscriber& to) {
      return Wanted(to.filter, item) && !to.stream.Write(text);
    });
  }
  MutexLock hold(&mu_);
  count_ = subscribers_.size();
}

void EventFeed::Welcome(const HttpReply& reply, Filter filter, std::optional<std::uint64_t> after,
                        std::function<bool()> allowed) {
  HttpStream stream = reply.Stream(200, "text/event-stream",
                                   {{"Cache-Control", "no-store"}, {"X-Accel-Buffering", "no"}});
  const auto hello = [&](std::string_view event) {
    return stream.Write(
        fmt::format("id: {}\nevent: {}\ndata: {}\n\n", last_, event,
                    EncodeJson(Value::Object{{"seq", last_}, {"instance", options_.instance}})));
  };
  if (!hello("hello")) return;
  if (after && (*after > last_ || last_ - *after > options_.max_replay)) {
    if (!hello("reset")) return;
  } else if (after && *after < last_) {
    std::set<std::string> touched;
    const Status replayed = options_.log->Replay(*after + 1, [&](const Event& event) -> Status {
      if (event.seq > last_) return CancelledError("the rest comes by itself");
      for (const Item& item : Map(event)) {
        if (item.kind == "trial") touched.insert(item.experiment);
        if (Wanted(filter, item) && !stream.Write(Encode(item))) return CancelledError("gone");
      }
      return Status::Ok();
    });
    if (!replayed.ok() && !replayed.Is(Code::kCancelled)) {
      LogWarning(fmt::format("events for a client that came back: {}", replayed.ToString()));
      if (!hello("reset")) return;
    }
    for (const std::string& experiment : touched) {
      Value now = options_.experiment_now(experiment);
      if (!now.is_object()) continue;
      const Item item{.kind = "experiment",
                      .experiment = experiment,
                      .seq = last_,
                      .time = options_.clock->WallNanos(),
                      .body = std::move(*now.if_object())};
      if (Wanted(filter, item) && !stream.Write(Encode(item))) return;
    }
  }
  subscribers_.push_back({std::move(stream), std::move(filter), std::move(allowed)});
  MutexLock hold(&mu_);
  count_ = subscribers_.size();
}

void EventFeed::EndOfThoseNotAllowed() {
  std::erase_if(subscribers_, [](Subscriber& to) {
    if (to.allowed()) return false;
    to.stream.End();
    return true;
  });
  MutexLock hold(&mu_);
  count_ = subscribers_.size();
}

void EventFeed::Run(const std::stop_token& stop) {
  Clock::Duration told = options_.clock->Now();
  Clock::Duration judged = told;
  while (!stop.stop_requested()) {
    std::deque<std::function<void()>> todo;
    {
      MutexLock hold(&mu_);
      if (queue_.empty() && !stopping_) changed_.WaitFor(&mu_, std::chrono::seconds(1));
      if (stopping_) break;
      todo.swap(queue_);
    }
    // First: what came since is not for those who may not look any more.
    if (options_.clock->Now() - judged >= kJudge) {
      judged = options_.clock->Now();
      EndOfThoseNotAllowed();
    }
    for (const auto& task : todo) task();
    if (options_.clock->Now() - told >= options_.keep_alive) {
      told = options_.clock->Now();
      std::erase_if(subscribers_, [](Subscriber& to) { return !to.stream.Write(": \n\n"); });
      MutexLock hold(&mu_);
      count_ = subscribers_.size();
    }
  }
  for (Subscriber& to : subscribers_) to.stream.End();
  subscribers_.clear();
}

}  // namespace cairn::master
