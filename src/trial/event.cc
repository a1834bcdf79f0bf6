#include "trial/event.h"

#include <fmt/format.h>

#include <array>
#include <iterator>
#include <utility>

#include "base/status_macros.h"
#include "format/json.h"
#include "format/member_reader.h"

namespace cairn {
namespace {

constexpr std::array<std::string_view, 21> kNames = {"trial_created",
                                                     "activated",
                                                     "pause_requested",
                                                     "cancel_requested",
                                                     "kill_requested",
                                                     "run_started",
                                                     "run_ready",
                                                     "report",
                                                     "progress",
                                                     "status",
                                                     "preempt_acknowledged",
                                                     "signalled",
                                                     "run_exited",
                                                     "checkpoint_started",
                                                     "checkpoint_completed",
                                                     "checkpoint_abandoned",
                                                     "checkpoint_deleted",
                                                     "checkpoint_pinned",
                                                     "retention_changed",
                                                     "repository_chosen",
                                                     "note"};
static_assert(kNames.size() == static_cast<std::size_t>(EventKind::kNote) + 1);

}  // namespace

std::string_view EventKindName(EventKind kind) { return kNames[static_cast<std::size_t>(kind)]; }

std::optional<EventKind> EventKindFromName(std::string_view name) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<EventKind>(i);
  }
  return std::nullopt;
}

std::string EncodeEvent(const Event& event) {
  // As an object of these members would be encoded, without a copy of the body in one.
  std::string text = "{\"body\":";
  AppendJson(event.body, &text);
  text += ",\"kind\":";
  AppendJsonString(EventKindName(event.kind), &text);
  fmt::format_to(std::back_inserter(text),
                 ",\"run\":{},\"seq\":{},\"time\":{},\"trial\":", event.run, event.seq, event.time);
  AppendJsonString(event.trial, &text);
  text += '}';
  return text;
}

Result<Event> DecodeEvent(std::string_view bytes) {
  const Result<Value> value = DecodeJson(bytes);
  if (!value.ok() || !value->is_object()) return CorruptionError("event: not a JSON object");
  const MemberReader members(*value->if_object());
  Event event;
  std::string kind;
  RETURN_IF_ERROR(members.Uint("seq", &event.seq));
  RETURN_IF_ERROR(members.OptionalInt("time", &event.time));
  RETURN_IF_ERROR(members.OptionalText("trial", &event.trial));
  RETURN_IF_ERROR(members.OptionalUint("run", &event.run));
  RETURN_IF_ERROR(members.Text("kind", &kind));
  RETURN_IF_ERROR(members.OptionalObject("body", &event.body));
  if (event.seq == 0) return CorruptionError("event: seq is 0");
  if (const auto known = EventKindFromName(kind)) {
    event.kind = *known;
    return event;
  }
  return UnimplementedError(
      fmt::format("event {}: kind {} is not known; the log was written by a newer program",
                  event.seq, QuoteForMessage(kind)));
}

}  // namespace cairn
