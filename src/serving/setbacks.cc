#include "serving/setbacks.h"

#include <algorithm>

namespace cairn::serving {
namespace {

constexpr int kReads = 2;       // of bytes that are wrong
constexpr int kVanishings = 5;  // retention removes files while they are read; not so often
constexpr std::chrono::seconds kFirstWait{1};
constexpr std::chrono::seconds kLongestWait{30};
constexpr int kDoublings = 20;

/// Codes that also stand for what a checkpoint is: others are worth a try before it passes.
bool MayBeTheCheckpoint(Code code) {
  switch (code) {
    case Code::kInvalidArgument:
    case Code::kFailedPrecondition:
    case Code::kUnimplemented:
    case Code::kInternal:
      return true;
    default:
      return false;
  }
}

}  // namespace

Setbacks::Setbacks(Clock* clock, std::chrono::nanoseconds first)
    : clock_(clock), first_(std::min<std::chrono::nanoseconds>(first, kFirstWait)) {}

void Setbacks::Delay(Noted* noted) const {
  const int doublings = std::min(noted->failures, kDoublings);
  ++noted->failures;
  noted->due = clock_->Now() + std::min<std::chrono::nanoseconds>(
                                   first_ * (std::int64_t{1} << doublings), kLongestWait);
}

Setback Setbacks::Note(const std::string& id, const Status& failure, bool guard) {
  if (failure.Is(Code::kCancelled)) return {};
  if (guard || failure.reason() == Reason::kMismatch) {
    noted_.erase(id);
    return {.refused = true, .told = true};
  }
  Noted& noted = noted_[id];
  if (failure.Is(Code::kNotFound) && ++noted.vanished < kVanishings) return {};
  if (failure.Is(Code::kCorruption) && ++noted.damaged >= kReads) {
    noted_.erase(id);
    return {.refused = true, .told = true};
  }
  Delay(&noted);
  if (failure.Is(Code::kCorruption)) return {.aside = true};
  noted.told = true;
  const bool aside = failure.Is(Code::kNotFound) || MayBeTheCheckpoint(failure.code());
  return {.aside = aside, .told = true};
}

void Setbacks::KeepOnly(const std::set<std::string>& ids) {
  std::erase_if(noted_, [&](const auto& item) { return !ids.contains(item.first); });
}

std::set<std::string> Setbacks::NotDue() const {
  std::set<std::string> ids;
  const Clock::Duration now = clock_->Now();
  for (const auto& [id, noted] : noted_) {
    if (noted.due > now) ids.insert(id);
  }
  return ids;
}

bool Setbacks::HoldsTold() const {
  const Clock::Duration now = clock_->Now();
  return std::any_of(noted_.begin(), noted_.end(),
                     [&](const auto& item) { return item.second.told && item.second.due > now; });
}

std::chrono::nanoseconds Setbacks::UntilNext(std::chrono::nanoseconds at_most) const {
  const Clock::Duration now = clock_->Now();
  for (const auto& [id, noted] : noted_) {
    if (noted.due > now) at_most = std::min<std::chrono::nanoseconds>(at_most, noted.due - now);
  }
  return at_most;
}

}  // namespace cairn::serving
