#include "trial/kill_point.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "base/log.h"

namespace cairn {
namespace {

constexpr const char* kVariable = "CAIRN_KILL_AT";

/// Notes are told apart by what they say.
std::string_view NameOf(const Event& event) {
  const Value* what = event.kind == EventKind::kNote ? event.body.Find("what") : nullptr;
  if (what != nullptr && what->if_string() != nullptr) return *what->if_string();
  return EventKindName(event.kind);
}

void Die() { ::kill(getpid(), SIGKILL); }

}  // namespace

KillPoint::KillPoint(std::string_view text) {
  if (text.empty()) return;
  const std::size_t first = text.find(':');
  const std::size_t last = text.rfind(':');
  const std::string_view when = text.substr(0, first);
  const std::string_view digits = text.substr(last == std::string_view::npos ? 0 : last + 1);
  std::uint64_t number = 0;
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  const bool known = when == "taken" || when == "durable" || when == "told";
  if (!known || first == last || parsed.ec != std::errc() || number == 0) {
    LogWarning(fmt::format("{}: \"{}\" is not WHEN:WHAT:N; nothing is killed", kVariable, text));
    return;
  }
  MutexLock hold(&mu_);
  left_ = number;
  when_ = when;
  what_ = text.substr(first + 1, last - first - 1);
  LogWarning(fmt::format("{} is set: this process ends by SIGKILL at {}", kVariable, text));
}

KillPoint KillPoint::FromEnvironment() {
  const char* text = std::getenv(kVariable);
  return KillPoint(text == nullptr ? "" : text);
}

void KillPoint::Taken(const Event& event) {
  if (when_.empty() || NameOf(event) != what_) return;
  MutexLock hold(&mu_);
  if (seq_ != 0 || --left_ > 0) return;
  seq_ = event.seq;
  if (when_ == "taken") Die();
}

bool KillPoint::Cut(std::vector<Event>* group) {
  if (when_.empty()) return false;
  MutexLock hold(&mu_);
  if (seq_ == 0) return false;
  const auto found = std::find_if(group->begin(), group->end(),
                                  [seq = seq_](const Event& event) { return event.seq == seq; });
  if (found == group->end()) return false;
  group->erase(found + 1, group->end());
  return true;
}

void KillPoint::Durable() const {
  if (when_ == "durable") Die();
}

void KillPoint::Told() const {
  if (when_ == "told") Die();
}

}  // namespace cairn
