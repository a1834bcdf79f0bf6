#include "master/verifications.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>

#include <cairn/checkpoint_manager.h>

namespace cairn::master {
namespace {
constexpr std::size_t kMostRemembered = 10'000;
constexpr auto kToldEach = std::chrono::milliseconds(250);
}  // namespace

Verifications::~Verifications() {
  stopping_ = true;
  threads_.Stop();
}

Value Verifications::Get(const std::string& checkpoint) const {
  MutexLock hold(&mu_);
  const auto found = entries_.find(checkpoint);
  if (found == entries_.end()) {
    return Value::Object{{"state", "NONE"},
                         {"bytes_done", 0},
                         {"bytes_total", 0},
                         {"problems", Value::List{}},
                         {"time", Value()}};
  }
  const Entry& entry = *found->second;
  return Value::Object{
      {"state", entry.state},
      {"bytes_done", entry.done.load()},
      {"bytes_total", entry.total.load()},
      {"problems", Value::List(entry.problems.begin(), entry.problems.end())},
      {"time", entry.time == 0 ? Value() : Value(static_cast<double>(entry.time) / 1e9)}};
}

Status Verifications::Begin(const std::string& checkpoint, const std::string& path) {
  const auto entry = std::make_shared<Entry>();
  {
    MutexLock hold(&mu_);
    const auto found = entries_.find(checkpoint);
    if (found != entries_.end() && found->second->state == "RUNNING") return Status::Ok();
    if (entries_.size() >= kMostRemembered) {
      std::erase_if(entries_, [](const auto& item) { return item.second->state != "RUNNING"; });
    }
    entries_[checkpoint] = entry;
  }
  if (threads_.Post([this, checkpoint, path, entry] { Run(checkpoint, path, entry.get()); })) {
    return Status::Ok();
  }
  MutexLock hold(&mu_);
  entries_.erase(checkpoint);
  return UnavailableError("too many verifications wait: try again later");
}

void Verifications::Run(const std::string& checkpoint, const std::string& path, Entry* entry) {
  Clock::Duration told{};
  const auto report = Verify(path, true, [&](std::uint64_t done, std::uint64_t total) {
    entry->done = done;
    entry->total = total;
    const Clock::Duration now = clock_->Now();
    if (on_change_ && now - told >= kToldEach) {
      told = now;
      on_change_(checkpoint);
    }
    return !stopping_.load();
  });
  Finish(report, entry);
  if (on_change_ && !stopping_.load()) on_change_(checkpoint);
}

void Verifications::Finish(const Result<VerifyReport>& report, Entry* entry) {
  MutexLock hold(&mu_);
  entry->time = clock_->WallNanos();
  if (!report.ok()) {
    entry->state = "FAILED";
    entry->problems = {std::string(report.status().message())};
    return;
  }
  entry->state = report->ok() ? "GOOD" : "DAMAGED";
  entry->done = entry->total = report->bytes;
  for (const VerifyProblem& problem : report->problems) {
    entry->problems.push_back(fmt::format("{}: {}", problem.checkpoint, problem.what));
  }
}

}  // namespace cairn::master
