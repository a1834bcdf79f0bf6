#include "trial/event_log.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "storage/local/local_store.h"
#include "storage/sim/faulty_fs.h"
#include "storage/sim/sim_fs.h"

namespace cairn {
namespace {

Event Make(std::uint64_t seq) {
  return {.seq = seq,
          .time = 7,
          .trial = "t",
          .run = 1,
          .kind = EventKind::kReport,
          .body = Value::Object{{"sequence", seq}, {"metrics", Value::Object{{"x", 0.1}}}}};
}

std::vector<Event> Contents(EventLog* log) {
  std::vector<Event> events;
  EXPECT_TRUE(log->Replay(1,
                          [&](const Event& event) {
                            events.push_back(event);
                            return Status::Ok();
                          })
                  .ok());
  return events;
}

TEST(Event, ComesBackAndDamageIsSeen) {
  const Event event = Make(3);
  EXPECT_EQ(DecodeEvent(EncodeEvent(event)).value(), event);
  EXPECT_TRUE(DecodeEvent("[]").status().Is(Code::kCorruption));
  EXPECT_TRUE(DecodeEvent(R"({"seq":0,"kind":"report"})").status().Is(Code::kCorruption));
  EXPECT_TRUE(DecodeEvent(R"({"seq":1,"kind":"new"})").status().Is(Code::kUnimplemented));
  for (int kind = 0; kind <= static_cast<int>(EventKind::kNote); ++kind) {
    Event each = Make(1);
    each.kind = static_cast<EventKind>(kind);
    EXPECT_EQ(DecodeEvent(EncodeEvent(each)).value().kind, each.kind);
  }
}

TEST(JournalEventLog, RepeatedEventsAreKeptOnceWhateverFailedInBetween) {
  for (std::uint64_t at = 0; at < 12; ++at) {
    SimFs disk;
    FaultyFs faulty(&disk);
    auto store = LocalStore::Open({.root = "/s", .fs = &faulty}).value();
    {
      auto log = JournalEventLog::Open({.store = store.get(), .prefix = "log"}).value();
      faulty.Arm({.failure = FsFailure::kIoError, .trigger = {.at = at}});
      for (std::uint64_t seq = 1; seq <= 6; seq += 2) {
        const std::vector<Event> events = {Make(seq), Make(seq + 1)};
        Status appended;
        do appended = log->Append(events);
        while (!appended.ok());
      }
      faulty.Disarm();
    }
    auto log = JournalEventLog::Open({.store = store.get(), .prefix = "log"}).value();
    const std::vector<Event> events = Contents(log.get());
    ASSERT_EQ(events.size(), 6u) << at;
    for (std::uint64_t i = 0; i < 6; ++i) EXPECT_EQ(events[i], Make(i + 1));
    ASSERT_TRUE(log->Append(std::vector<Event>{Make(7)}).ok());
  }
}

}  // namespace
}  // namespace cairn
