#include "base/signal_watch.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

namespace cairn {
namespace {

using Handler = void (*)(int);

Handler HandlerOf(int number) {
  struct sigaction now = {};
  sigaction(number, nullptr, &now);
  return now.sa_handler;
}

/// What is done with a signal is as the test says, and afterwards as it was.
class Disposition {
 public:
  Disposition(int number, Handler handler) : number_(number) {
    sigaction(number, nullptr, &before_);
    signal(number, handler);
  }
  ~Disposition() { sigaction(number_, &before_, nullptr); }
  Disposition(const Disposition&) = delete;
  Disposition& operator=(const Disposition&) = delete;

 private:
  const int number_;
  struct sigaction before_ = {};
};

TEST(SignalWatch, CountsItsSignalsAndPutsBackWhatItFound) {
  const Disposition term(SIGTERM, SIG_DFL);
  const Disposition user(SIGUSR1, SIG_IGN);
  {
    const SignalWatch watch({.signals = {SIGTERM, SIGUSR1}});
    EXPECT_FALSE(watch.received());
    raise(SIGTERM);
    EXPECT_EQ(watch.count(), 1U);
    raise(SIGUSR1);
    raise(SIGTERM);
    EXPECT_EQ(watch.count(), 3U);
    EXPECT_TRUE(watch.received());
  }
  EXPECT_EQ(HandlerOf(SIGTERM), SIG_DFL);
  EXPECT_EQ(HandlerOf(SIGUSR1), SIG_IGN);
}

TEST(SignalWatch, WithoutSignalsNothingIsChanged) {
  const Disposition term(SIGTERM, SIG_DFL);
  const SignalWatch watch({});
  EXPECT_EQ(HandlerOf(SIGTERM), SIG_DFL);
  EXPECT_EQ(watch.count(), 0U);
}

TEST(SignalWatch, WhatCameBeforeIsNotCounted) {
  const Disposition term(SIGTERM, SIG_DFL);
  const SignalWatch first({.signals = {SIGTERM}});
  raise(SIGTERM);
  const SignalWatch second({.signals = {SIGTERM}});
  EXPECT_EQ(second.count(), 0U);
  raise(SIGTERM);
  EXPECT_EQ(first.count(), 2U);
  EXPECT_EQ(second.count(), 1U);
}

TEST(SignalWatch, AllWhoWatchASignalSeeItInWhicheverOrderTheyEnd) {
  const Disposition term(SIGTERM, SIG_DFL);
  const Disposition user(SIGUSR1, SIG_DFL);
  auto outer = std::make_unique<SignalWatch>(SignalWatchOptions{.signals = {SIGTERM, SIGUSR1}});
  auto inner = std::make_unique<SignalWatch>(SignalWatchOptions{.signals = {SIGTERM}});
  raise(SIGTERM);
  EXPECT_EQ(outer->count(), 1U);
  EXPECT_EQ(inner->count(), 1U);
  outer.reset();
  EXPECT_EQ(HandlerOf(SIGUSR1), SIG_DFL) << "nobody watches it any more";
  raise(SIGTERM);
  EXPECT_EQ(inner->count(), 2U);
  inner.reset();
  EXPECT_EQ(HandlerOf(SIGTERM), SIG_DFL) << "a process without watches can be ended";
}

TEST(SignalWatch, AnIgnoredSignalIsLeftOrWatchedAsItIsAskedFor) {
  const Disposition ignored(SIGINT, SIG_IGN);
  const SignalWatch leaves({.signals = {SIGINT}, .leave_ignored = true});
  raise(SIGINT);
  EXPECT_EQ(HandlerOf(SIGINT), SIG_IGN);
  EXPECT_EQ(leaves.count(), 0U);
  {
    const SignalWatch watches({.signals = {SIGINT}});
    const SignalWatch leaves_too({.signals = {SIGINT}, .leave_ignored = true});
    raise(SIGINT);
    EXPECT_EQ(watches.count(), 1U);
    EXPECT_EQ(leaves_too.count(), 0U) << "it was ignored before there was a watch";
  }
  EXPECT_EQ(HandlerOf(SIGINT), SIG_IGN);
}

TEST(SignalWatch, OnesThatAreMadeAndDestroyedInManyThreadsEndAsTheyBegan) {
  const Disposition term(SIGTERM, SIG_DFL);
  const SignalWatch whole({.signals = {SIGTERM}});
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] {
      for (int round = 0; round < 200; ++round) {
        const SignalWatch watch({.signals = {SIGTERM}});
        raise(SIGTERM);
        if (!watch.received()) std::abort();
      }
    });
  }
  threads.clear();
  EXPECT_EQ(whole.count(), 800U);
}

void RaiseTimes(int number, int times) {
  for (int i = 0; i < times; ++i) raise(number);
}

TEST(SignalWatchDeathTest, SoManyAreCountedBeforeASigintEndsTheProcess) {
  const Disposition interrupt(SIGINT, SIG_DFL);
  for (const std::uint32_t limit : {1U, 2U}) {
    const SignalWatchOptions options{.signals = {SIGINT, SIGTERM}, .sigint_ends_after = limit};
    const int counted = static_cast<int>(limit);
    EXPECT_EXIT(
        {
          const SignalWatch watch(options);
          RaiseTimes(SIGTERM, counted);
          RaiseTimes(SIGTERM, 1);  // only SIGINT ends it
          std::_Exit(watch.count() == limit + 1 ? 7 : 1);
        },
        testing::ExitedWithCode(7), "");
    EXPECT_EXIT(
        {
          const SignalWatch watch(options);
          RaiseTimes(SIGINT, counted);
          if (watch.count() != limit) std::_Exit(1);
          RaiseTimes(SIGINT, 1);
          std::_Exit(2);
        },
        testing::KilledBySignal(SIGINT), "");
  }
}

TEST(SignalWatchDeathTest, ASigintEndsTheProcessWhenAllWhoWatchItAllowIt) {
  const Disposition interrupt(SIGINT, SIG_DFL);
  EXPECT_EXIT(
      {
        const SignalWatch impatient({.signals = {SIGINT}, .sigint_ends_after = 1});
        const SignalWatch patient({.signals = {SIGINT}, .sigint_ends_after = 3});
        RaiseTimes(SIGINT, 3);
        if (patient.count() != 3) std::_Exit(1);
        RaiseTimes(SIGINT, 1);
        std::_Exit(2);
      },
      testing::KilledBySignal(SIGINT), "");
  EXPECT_EXIT(
      {
        const SignalWatch impatient({.signals = {SIGINT}, .sigint_ends_after = 1});
        const SignalWatch never({.signals = {SIGINT}});
        RaiseTimes(SIGINT, 5);
        std::_Exit(never.count() == 5 ? 7 : 1);
      },
      testing::ExitedWithCode(7), "");
}

}  // namespace
}  // namespace cairn
