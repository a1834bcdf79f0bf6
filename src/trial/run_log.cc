#include "trial/run_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "launch/log_line.h"
#include "trial/client_run.h"

namespace cairn {
namespace {

/// Of one request; the protocol takes 4 MiB of JSON.
constexpr std::size_t kMaxBatchBytes = 512u << 10;
/// Before an engine that was away is asked again.
constexpr auto kAgain = std::chrono::milliseconds(500);

}  // namespace

RunLog::RunLog(Options options) : options_(options) {
  thread_ = std::jthread([this] { Run(); });
}

RunLog::~RunLog() { Close(std::chrono::seconds(2)); }

void RunLog::Write(bool from_stderr, std::string_view bytes) {
  MutexLock hold(&mu_);
  if (closing_ || given_up_) return;
  cutters_[from_stderr ? 1 : 0].Feed(bytes,
                                     [&](std::string_view text, bool)
                                         NO_THREAD_SAFETY_ANALYSIS { Add(from_stderr, text); });
}

void RunLog::Add(bool from_stderr, std::string_view text) {
  // A bar that draws itself over and over: what a terminal would show last.
  while (text.ends_with('\r')) text.remove_suffix(1);
  if (const std::size_t at = text.rfind('\r'); at != std::string_view::npos) {
    text.remove_prefix(at + 1);
  }
  lines_.push_back({options_.clock->WallNanos(), from_stderr, std::string(text)});
  bytes_ += text.size();
  Trim();
  if (lines_.size() == 1) changed_.NotifyAll();
}

void RunLog::Trim() {
  for (; bytes_ > options_.max_bytes && lines_.size() > 1; ++dropped_) {
    bytes_ -= lines_.front().text.size();
    lines_.pop_front();
  }
}

void RunLog::Close(std::chrono::nanoseconds longest) {
  {
    MutexLock hold(&mu_);
    for (const bool from_stderr : {false, true}) {
      if (closing_) break;
      cutters_[from_stderr ? 1 : 0].Finish(
          [&](std::string_view text, bool) NO_THREAD_SAFETY_ANALYSIS { Add(from_stderr, text); });
    }
    closing_ = true;
    changed_.NotifyAll();
    const Clock::Duration until = options_.clock->Now() + longest;
    while (!done_ && options_.clock->Now() < until) {
      changed_.WaitFor(&mu_, until - options_.clock->Now());
    }
    given_up_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

RunLog::Outcome RunLog::Send(const Batch& batch) {
  Value::List list;
  const auto add = [&](const Line& line) {
    list.push_back(Value::Object{{"time", static_cast<double>(line.time) * 1e-9},
                                 {"rank", options_.rank},
                                 {"level", LevelName(GuessLevel(line.text))},
                                 {"stream", line.from_stderr ? "stderr" : "stdout"},
                                 {"text", line.text}});
  };
  if (batch.dropped > 0) {
    const std::int64_t time =
        batch.lines.empty() ? options_.clock->WallNanos() : batch.lines.front().time;
    add({time, true,
         fmt::format("WARNING: here {} lines are missing: the master was away for long, or they "
                     "were too many",
                     batch.dropped)});
  }
  for (const Line& line : batch.lines) add(line);
  const Status sent = options_.client->SendLogs(std::move(list), [this] {
    MutexLock hold(&mu_);
    return given_up_;
  });
  if (sent.ok()) return Outcome::kSent;
  LogDebug(fmt::format("lines of the log were not sent: {}", sent.ToString()));
  const bool passes = sent.Is(Code::kUnavailable) || sent.Is(Code::kDeadlineExceeded);
  return passes ? Outcome::kLater : Outcome::kUnwanted;
}

RunLog::Batch RunLog::Take() {
  MutexLock hold(&mu_);
  while (lines_.empty() && !closing_) changed_.Wait(&mu_);
  if (!closing_) changed_.WaitFor(&mu_, options_.gather);
  Batch batch;
  if (given_up_) return batch;
  batch.dropped = std::exchange(dropped_, 0);
  for (std::size_t bytes = 0; !lines_.empty() && bytes < kMaxBatchBytes; lines_.pop_front()) {
    bytes += lines_.front().text.size() + 64;
    bytes_ -= lines_.front().text.size();
    batch.lines.push_back(std::move(lines_.front()));
  }
  return batch;
}

void RunLog::PutBack(Batch batch) {
  MutexLock hold(&mu_);
  dropped_ += batch.dropped;
  for (; !batch.lines.empty(); batch.lines.pop_back()) {
    bytes_ += batch.lines.back().text.size();
    lines_.push_front(std::move(batch.lines.back()));
  }
  Trim();
  const Clock::Duration until = options_.clock->Now() + kAgain;
  for (Clock::Duration now{}; !given_up_ && (now = options_.clock->Now()) < until;) {
    changed_.WaitFor(&mu_, until - now);
  }
}

void RunLog::Run() {
  for (;;) {
    Batch batch = Take();
    if (batch.lines.empty() && batch.dropped == 0) break;
    const Outcome outcome = Send(batch);
    if (outcome == Outcome::kUnwanted) break;
    if (outcome == Outcome::kLater) PutBack(std::move(batch));
  }
  MutexLock hold(&mu_);
  done_ = true;
  given_up_ = true;
  lines_.clear();
  changed_.NotifyAll();
}

}  // namespace cairn
