#include "trial/event_writer.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <future>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/manual_clock.h"
#include "trial/kill_point.h"

namespace cairn {
namespace {

using std::chrono_literals::operator""min;

/// Each group takes two minutes of the clock and waits for the test's word.
class SlowLog final : public EventLog {
 public:
  explicit SlowLog(ManualClock* clock) : clock_(clock) {}

  Status Append(std::span<const Event> events) override {
    MutexLock lock(&mu_);
    groups_.push_back(events.size());
    changed_.NotifyAll();
    while (allowed_ < groups_.size()) changed_.Wait(&mu_);
    clock_->Advance(2min);
    return Status::Ok();
  }
  Status Replay(std::uint64_t, const Visitor&) override { return Status::Ok(); }

  void AwaitGroup(std::size_t number) {
    MutexLock lock(&mu_);
    while (groups_.size() < number) changed_.Wait(&mu_);
  }
  void Allow(std::size_t groups) {
    MutexLock lock(&mu_);
    allowed_ = groups;
    changed_.NotifyAll();
  }
  std::vector<std::size_t> groups() {
    MutexLock lock(&mu_);
    return groups_;
  }

 private:
  ManualClock* const clock_;
  Mutex mu_;
  CondVar changed_;
  std::size_t allowed_ GUARDED_BY(mu_) = 0;
  std::vector<std::size_t> groups_ GUARDED_BY(mu_);
};

class EventWriterTest : public testing::Test {
 protected:
  void Give(int events) {
    for (int i = 0; i < events; ++i) {
      writer_->Enqueue({.seq = ++given_, .trial = "t", .run = 1, .kind = EventKind::kReport});
    }
  }
  /// Returns when all that was given is durable.
  void Settle() {
    std::promise<Status> told;
    writer_->AfterDurable(given_, Clock::Duration::zero(),
                          [&](const Status& status) { told.set_value(status); });
    EXPECT_TRUE(told.get_future().get().ok());
  }

  ManualClock clock_;
  SlowLog log_{&clock_};
  // Real time passes only when the writer waits in vain, which ends a test that is wrong.
  std::unique_ptr<EventWriter> writer_ = std::make_unique<EventWriter>(
      EventWriterOptions{.log = &log_, .clock = &clock_, .longest_gathering = 1min});
  std::uint64_t given_ = 0;
};

TEST_F(EventWriterTest, WhoWasAnsweredTogetherIsWrittenTogether) {
  Give(1);
  log_.AwaitGroup(1);
  Give(3);  // gather while the first is written
  log_.Allow(2);
  Settle();
  Give(1);
  Give(2);  // the second group's three again, one after the other
  log_.Allow(3);
  Settle();
  EXPECT_EQ(log_.groups(), (std::vector<std::size_t>{1, 3, 3}));
}

TEST_F(EventWriterTest, WhatIsHeldIsWrittenTogetherWhenTheLastOneLetsGo) {
  Give(1);
  log_.AwaitGroup(1);
  Give(3);
  log_.Allow(2);
  Settle();
  writer_->Hold();
  Give(2);
  writer_->Hold();
  Give(2);  // more than came together before: still held
  writer_->Release();
  Give(1);
  writer_->Release();
  log_.Allow(3);
  Settle();
  for (int i = 0; i < 5; ++i) {  // each on its own, as a tuner's loop gives them
    writer_->Hold();
    Give(1);
    writer_->Release();
  }
  log_.Allow(4);
  Settle();
  EXPECT_EQ(log_.groups(), (std::vector<std::size_t>{1, 3, 5, 5}));
}

TEST_F(EventWriterTest, OneAloneWaitsForNobody) {
  log_.Allow(3);
  for (int i = 0; i < 3; ++i) {
    Give(1);
    Settle();
  }
  EXPECT_EQ(log_.groups(), (std::vector<std::size_t>{1, 1, 1}));
}

TEST_F(EventWriterTest, TheEndDoesNotWaitForThoseWhoDoNotComeAgain) {
  Give(1);
  log_.AwaitGroup(1);
  Give(3);
  log_.Allow(3);
  Settle();
  Give(1);
  writer_.reset();
  EXPECT_EQ(log_.groups(), (std::vector<std::size_t>{1, 3, 1}));
}

Event Of(std::uint64_t seq, EventKind kind, Value body = Value::Object{}) {
  return {.seq = seq, .trial = "t", .run = 1, .kind = kind, .body = std::move(body)};
}

TEST(KillPointDeathTest, TheProcessEndsWithThatEventAndNoneAfterIt) {
  KillPoint point("durable:report:2");
  std::vector<Event> group = {Of(1, EventKind::kReport), Of(2, EventKind::kProgress),
                              Of(3, EventKind::kReport), Of(4, EventKind::kReport)};
  for (const Event& event : group) point.Taken(event);
  std::vector<Event> earlier(group.begin(), group.begin() + 2);
  EXPECT_FALSE(point.Cut(&earlier));
  EXPECT_TRUE(point.Cut(&group));
  EXPECT_EQ(group.size(), 3u);
  point.Told();  // is not what it waits for
  EXPECT_EXIT(point.Durable(), testing::KilledBySignal(SIGKILL), "");
}

TEST(KillPointDeathTest, NotesAreToldApartAndATakenEventIsNotDurable) {
  KillPoint point("taken:paused:1");
  point.Taken(Of(1, EventKind::kNote, Value::Object{{"what", "opened"}}));
  EXPECT_EXIT(point.Taken(Of(2, EventKind::kNote, Value::Object{{"what", "paused"}})),
              testing::KilledBySignal(SIGKILL), "");
}

TEST(KillPoint, WithoutAWordOrWithANonsenseOneNobodyDies) {
  for (const char* text : {"", "report", "soon:report:1", "taken:report:0", "taken:report:x"}) {
    KillPoint point(text);
    std::vector<Event> group = {Of(1, EventKind::kReport)};
    point.Taken(group[0]);
    EXPECT_FALSE(point.Cut(&group)) << text;
  }
}

}  // namespace
}  // namespace cairn
