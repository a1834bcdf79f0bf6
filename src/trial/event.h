#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <cairn/status.h>
#include <cairn/value.h>

namespace cairn {

/// Kinds of events; what their bodies hold is in docs/format/events.md.
enum class EventKind : std::uint8_t {
  kTrialCreated,
  kActivated,
  kPauseRequested,
  kCancelRequested,
  kKillRequested,
  kRunStarted,
  kRunReady,
  kReport,
  kProgress,
  kStatus,
  kPreemptAcknowledged,
  kSignalled,
  kRunExited,
  kCheckpointStarted,
  kCheckpointCompleted,
  kCheckpointAbandoned,
  kCheckpointDeleted,
  kCheckpointPinned,
  kRetentionChanged,
  kRepositoryChosen,
  kNote,
};

std::string_view EventKindName(EventKind kind);
std::optional<EventKind> EventKindFromName(std::string_view name);

/// Something that happened, durable before anybody is told. A value.
struct Event {
  std::uint64_t seq = 0;  // 1, 2, 3 … over the whole log
  std::int64_t time = 0;  // nanoseconds since 1970
  std::string trial;
  std::uint64_t run = 0;
  EventKind kind = EventKind::kTrialCreated;
  Value body = Value::Object{};

  friend bool operator==(const Event&, const Event&) = default;
};

/// One line of JSON.
std::string EncodeEvent(const Event& event);
/// Corruption for what is no event; Unimplemented for a kind that this program does not know.
Result<Event> DecodeEvent(std::string_view bytes);

}  // namespace cairn
