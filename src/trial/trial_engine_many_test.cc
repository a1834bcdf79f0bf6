// One engine with 1,000 and 10,000 trials: all of them end, the engine that comes back has all of
// them, and what it writes and looks at for a trial does not grow with how many there are.
#include <gtest/gtest.h>

#include <chrono>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "trial/test_engine.h"

namespace cairn {
namespace {

using std::chrono::steady_clock;

class TrialEngineManyTest : public TrialEngineTest {
 protected:
  /// Creates `count` trials, each of which reports twice, is restarted once when its number is a
  /// multiple of ten, and completes. Seconds for each.
  double LiveAll(int count) {
    const auto begun = steady_clock::now();
    for (int i = 1; i <= count; ++i) {
      ids_.push_back(std::to_string(count) + "-" + std::to_string(i));
      EXPECT_TRUE(engine_->Create(Config(), ids_.back()).ok());
    }
    for (std::size_t i = 0; i < ids_.size(); ++i) {
      const std::string& id = ids_[i];
      RunKey run{id, 1};
      launcher_.WaitFor(id + ".1");
      Ready(run);
      Report(run, 1, 10, Value::Object{{"x", 1}});
      if (i % 10 == 0) {
        launcher_.End(id + ".1", {.code = 1});
        run.run = 2;
        launcher_.WaitFor(id + ".2");
        Ready(run);
        Report(run, 1, 10, Value::Object{{"x", 1}});
      }
      Report(run, 2, 20, Value::Object{{"x", 2}});
      launcher_.End(id + "." + std::to_string(run.run), {.code = 0});
    }
    for (const std::string& id : ids_) WaitState(id, TrialState::kCompleted);
    const std::chrono::duration<double> took = steady_clock::now() - begun;
    return took.count() / count;
  }

  std::vector<std::string> ids_;
};

TEST_F(TrialEngineManyTest, AThousandTrialsAndTenThousand) {
  std::vector<std::size_t> events;
  std::vector<int> lists;
  for (const int count : {1'000, 10'000}) {
    SCOPED_TRACE(count);
    ids_.clear();
    log_.Cut(0);
    Open();
    const int before = repositories_.lists();
    const double each = LiveAll(count);
    events.push_back(log_.events().size() / static_cast<std::size_t>(count));
    lists.push_back((repositories_.lists() - before) / count);
    const auto begun = steady_clock::now();
    Restart();
    const std::chrono::duration<double> replayed = steady_clock::now() - begun;
    std::cout << count << " trials: " << each * 1e6 << " us for each, replayed in "
              << replayed.count() << " s\n";
    int restarts = 0;
    for (const std::string& id : ids_) {
      const auto view = engine_->Get(id).value();
      ASSERT_EQ(view.record.core.state, TrialState::kCompleted) << id;
      restarts += static_cast<int>(view.record.core.run) - 1;
      int counts = 0;
      for (const MetricPoint& point : view.record.reports) counts += point.archived ? 0 : 1;
      ASSERT_EQ(counts, 2) << id;
    }
    EXPECT_EQ(restarts, count / 10);
    EXPECT_EQ(launcher_.running(), 0u);
    Crash();
  }
  EXPECT_EQ(events[1], events[0]);
  EXPECT_EQ(lists[1], lists[0]);
}

}  // namespace
}  // namespace cairn
