#include "trial/trial_state.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace cairn {
namespace {

using S = TrialState;
using I = TrialInput;

bool HasRun(S state) {
  return state == S::kStarting || state == S::kRunning || state == S::kPausing ||
         state == S::kStopping;
}

TrialCore At(S state) {
  return {.state = state, .run = 1, .live = HasRun(state), .max_restarts = 2};
}

struct Row {
  S from;
  I input;
  std::optional<S> to;  // nullopt: refused
};

/// Every state with every input.
const std::vector<Row> kTable = {
    {S::kQueued, I::kActivate, S::kQueued},
    {S::kQueued, I::kPause, S::kPaused},
    {S::kQueued, I::kCancel, S::kCanceled},
    {S::kQueued, I::kKill, S::kCanceled},
    {S::kQueued, I::kRunStarted, S::kStarting},
    {S::kQueued, I::kReady, {}},
    {S::kQueued, I::kAcknowledge, {}},
    {S::kQueued, I::kSignalled, {}},
    {S::kQueued, I::kExitSuccess, {}},
    {S::kQueued, I::kExitFailure, {}},
    {S::kQueued, I::kStopped, {}},

    {S::kStarting, I::kActivate, S::kStarting},
    {S::kStarting, I::kPause, S::kPausing},
    {S::kStarting, I::kCancel, S::kStopping},
    {S::kStarting, I::kKill, S::kStopping},
    {S::kStarting, I::kRunStarted, {}},
    {S::kStarting, I::kReady, S::kRunning},
    {S::kStarting, I::kAcknowledge, {}},
    {S::kStarting, I::kSignalled, {}},
    {S::kStarting, I::kExitSuccess, S::kCompleted},
    {S::kStarting, I::kExitFailure, S::kQueued},
    {S::kStarting, I::kStopped, S::kQueued},

    {S::kRunning, I::kActivate, S::kRunning},
    {S::kRunning, I::kPause, S::kPausing},
    {S::kRunning, I::kCancel, S::kStopping},
    {S::kRunning, I::kKill, S::kStopping},
    {S::kRunning, I::kRunStarted, {}},
    {S::kRunning, I::kReady, S::kRunning},
    {S::kRunning, I::kAcknowledge, {}},
    {S::kRunning, I::kSignalled, {}},
    {S::kRunning, I::kExitSuccess, S::kCompleted},
    {S::kRunning, I::kExitFailure, S::kQueued},
    {S::kRunning, I::kStopped, S::kQueued},

    {S::kPausing, I::kActivate, S::kPausing},
    {S::kPausing, I::kPause, S::kPausing},
    {S::kPausing, I::kCancel, S::kStopping},
    {S::kPausing, I::kKill, S::kStopping},
    {S::kPausing, I::kRunStarted, {}},
    {S::kPausing, I::kReady, S::kPausing},
    {S::kPausing, I::kAcknowledge, S::kPausing},
    {S::kPausing, I::kSignalled, S::kPausing},
    {S::kPausing, I::kExitSuccess, S::kCompleted},
    {S::kPausing, I::kExitFailure, S::kPaused},
    {S::kPausing, I::kStopped, S::kPaused},

    {S::kPaused, I::kActivate, S::kQueued},
    {S::kPaused, I::kPause, S::kPaused},
    {S::kPaused, I::kCancel, S::kCanceled},
    {S::kPaused, I::kKill, S::kCanceled},
    {S::kPaused, I::kRunStarted, {}},
    {S::kPaused, I::kReady, {}},
    {S::kPaused, I::kAcknowledge, {}},
    {S::kPaused, I::kSignalled, {}},
    {S::kPaused, I::kExitSuccess, {}},
    {S::kPaused, I::kExitFailure, {}},
    {S::kPaused, I::kStopped, {}},

    {S::kStopping, I::kActivate, {}},
    {S::kStopping, I::kPause, {}},
    {S::kStopping, I::kCancel, S::kStopping},
    {S::kStopping, I::kKill, S::kStopping},
    {S::kStopping, I::kRunStarted, {}},
    {S::kStopping, I::kReady, S::kStopping},
    {S::kStopping, I::kAcknowledge, S::kStopping},
    {S::kStopping, I::kSignalled, S::kStopping},
    {S::kStopping, I::kExitSuccess, S::kCompleted},
    {S::kStopping, I::kExitFailure, S::kCanceled},
    {S::kStopping, I::kStopped, S::kCanceled},

    {S::kCompleted, I::kActivate, S::kQueued},
    {S::kCompleted, I::kPause, {}},
    {S::kCompleted, I::kCancel, S::kCompleted},
    {S::kCompleted, I::kKill, S::kCompleted},
    {S::kCompleted, I::kRunStarted, {}},
    {S::kCompleted, I::kReady, {}},
    {S::kCompleted, I::kAcknowledge, {}},
    {S::kCompleted, I::kSignalled, {}},
    {S::kCompleted, I::kExitSuccess, {}},
    {S::kCompleted, I::kExitFailure, {}},
    {S::kCompleted, I::kStopped, {}},

    {S::kCanceled, I::kActivate, S::kQueued},
    {S::kCanceled, I::kPause, {}},
    {S::kCanceled, I::kCancel, S::kCanceled},
    {S::kCanceled, I::kKill, S::kCanceled},
    {S::kCanceled, I::kRunStarted, {}},
    {S::kCanceled, I::kReady, {}},
    {S::kCanceled, I::kAcknowledge, {}},
    {S::kCanceled, I::kSignalled, {}},
    {S::kCanceled, I::kExitSuccess, {}},
    {S::kCanceled, I::kExitFailure, {}},
    {S::kCanceled, I::kStopped, {}},

    {S::kError, I::kActivate, S::kQueued},
    {S::kError, I::kPause, {}},
    {S::kError, I::kCancel, S::kError},
    {S::kError, I::kKill, S::kError},
    {S::kError, I::kRunStarted, {}},
    {S::kError, I::kReady, {}},
    {S::kError, I::kAcknowledge, {}},
    {S::kError, I::kSignalled, {}},
    {S::kError, I::kExitSuccess, {}},
    {S::kError, I::kExitFailure, {}},
    {S::kError, I::kStopped, {}},
};

TEST(TrialState, EveryTransitionIsAsTheTableSays) {
  std::set<std::pair<S, I>> seen;
  for (const Row& row : kTable) {
    seen.emplace(row.from, row.input);
    const auto next = Next(At(row.from), row.input);
    const std::string what =
        std::string(TrialStateName(row.from)) + " + " + std::string(TrialInputName(row.input));
    ASSERT_EQ(next.ok(), row.to.has_value()) << what;
    if (next.ok()) {
      EXPECT_EQ(TrialStateName(next->state), TrialStateName(*row.to)) << what;
    } else {
      EXPECT_TRUE(next.status().Is(Code::kFailedPrecondition)) << what;
    }
  }
  EXPECT_EQ(seen.size(), static_cast<std::size_t>(kTrialStates * kTrialInputs));
}

TrialCore Do(TrialCore core, std::initializer_list<I> inputs) {
  for (const I input : inputs) {
    auto next = Next(core, input);
    EXPECT_TRUE(next.ok()) << next.status().ToString();
    if (next.ok()) core = *next;
  }
  return core;
}

TEST(TrialState, ExitAfterAcknowledgingIsAPause) {
  EXPECT_EQ(Do(At(S::kRunning), {I::kPause, I::kAcknowledge, I::kExitSuccess}).state, S::kPaused);
  EXPECT_EQ(Do(At(S::kRunning), {I::kCancel, I::kAcknowledge, I::kExitSuccess}).state,
            S::kCanceled);
  EXPECT_EQ(Do(At(S::kRunning), {I::kPause, I::kAcknowledge, I::kActivate, I::kExitSuccess}).state,
            S::kQueued);
}

TEST(TrialState, AScriptThatNeverAsksIsPausedWithoutCountingARestart) {
  const TrialCore ended = Do(At(S::kRunning), {I::kPause, I::kSignalled, I::kExitFailure});
  EXPECT_EQ(ended.state, S::kPaused);
  EXPECT_EQ(ended.restarts, 0u);
  // It caught SIGTERM and left with 0: not completed, it was told to go.
  EXPECT_EQ(Do(At(S::kRunning), {I::kPause, I::kSignalled, I::kExitSuccess}).state, S::kPaused);
}

TEST(TrialState, FailuresAreRetriedAsOftenAsAllowed) {
  TrialCore core = At(S::kQueued);
  for (int i = 0; i < 2; ++i) {
    core = Do(core, {I::kRunStarted, I::kReady, I::kExitFailure});
    EXPECT_EQ(core.state, S::kQueued);
  }
  core = Do(core, {I::kRunStarted, I::kExitFailure});
  EXPECT_EQ(core.state, S::kError);
  EXPECT_EQ(core.run, 4u);
  core = Do(core, {I::kActivate});
  EXPECT_EQ(core.restarts, 0u);
}

TEST(TrialState, ADetachedTrialWaitsForItsProcessToJoinAgain) {
  TrialCore core = At(S::kRunning);
  core.detached = true;
  core = Do(core, {I::kExitFailure});
  EXPECT_EQ(core.state, S::kPaused);
  core = Do(core, {I::kRunStarted, I::kReady});
  EXPECT_EQ(core.state, S::kRunning);
  EXPECT_EQ(Do(core, {I::kRunStarted}).run, 3u);  // the old process is replaced
}

/// The engine around the machine, with a crash between any two durable events: the durable core is
/// all that is left, and what the engine then does follows from it and from the processes alone.
struct World {
  TrialCore durable;
  // The truth about processes, which a crash of the engine does not change: runs that live.
  std::set<std::uint64_t> processes;
  std::uint64_t submitted = 0;  // newest run that the launcher was given
  int failures = 0;
  int requests = 0;  // of users so far
  auto Key() const {
    const TrialCore& c = durable;
    return std::tuple(c.state, c.run, c.live, c.acknowledged, c.signalled, c.killed, c.requeue,
                      c.restarts, processes, submitted, failures, requests);
  }
};

TEST(TrialState, NoTwoRunsLiveAndNoneIsForgottenWhateverCrashesWhen) {
  std::map<decltype(World().Key()), bool> seen;
  std::deque<World> open;
  World first;
  first.durable.max_restarts = 1;
  open.push_back(first);
  std::size_t ended = 0;
  const auto push = [&](World world) {
    ASSERT_LE(world.processes.size(), 1u) << "two live runs of one trial";
    for (const std::uint64_t run : world.processes) {
      ASSERT_EQ(run, world.durable.run) << "a process of a run that was replaced";
      ASSERT_TRUE(world.durable.live) << "a process that the engine holds for dead";
    }
    if (seen.emplace(world.Key(), true).second) open.push_back(std::move(world));
  };
  const auto take = [&](const World& from, I input, auto then) {
    const auto next = Next(from.durable, input);
    if (!next.ok()) return;
    World world = from;
    world.durable = *next;  // the event is durable; a crash here loses what `then` does
    push(world);
    then(&world);
    push(world);
  };
  const auto nothing = [](World*) {};
  while (!open.empty()) {
    const World world = open.front();
    open.pop_front();
    const TrialCore& core = world.durable;
    if (IsEnded(core.state)) ++ended;
    if (core.run < 4 && !core.live && core.state == S::kQueued) {
      take(world, I::kRunStarted, [](World* w) {
        w->submitted = w->durable.run;
        w->processes.insert(w->durable.run);
      });
    }
    if (world.requests < 3) {
      for (const I input : {I::kActivate, I::kPause, I::kCancel, I::kKill}) {
        World asked = world;
        ++asked.requests;
        take(asked, input, nothing);
      }
    }
    if (core.live && world.processes.contains(core.run)) {
      take(world, I::kReady, nothing);
      take(world, I::kAcknowledge, nothing);
      take(world, I::kSignalled, nothing);
      // The process ends: first in truth, then the engine learns of it, perhaps after a crash.
      World dead = world;
      dead.processes.clear();
      push(dead);
    }
    if (core.live && world.processes.empty()) {
      // What a re-opened engine asks the launcher: never given, or ended.
      if (world.submitted < core.run) {
        take(world, I::kStopped, nothing);
      } else {
        take(world, I::kExitSuccess, nothing);
        take(world, I::kExitFailure, nothing);
      }
    }
  }
  EXPECT_GT(seen.size(), 1000u);
  EXPECT_GT(ended, 50u);
  // From everywhere the trial can still come to rest: a live run always has an exit.
  for (const auto& [key, unused] : seen) {
    TrialCore core;
    core.state = std::get<0>(key);
    core.live = std::get<2>(key);
    ASSERT_EQ(core.live, HasRun(core.state));
  }
  std::cout << seen.size() << " worlds\n";
}

}  // namespace
}  // namespace cairn
