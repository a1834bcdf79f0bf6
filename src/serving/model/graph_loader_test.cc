// What a loader does with its runtime, told by one that counts.

#include "serving/model/graph_loader.h"

#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <functional>
#include <thread>

#include "serving/follower.h"
#include "serving/model/test_graph.h"
#include "serving/test_writer.h"
#include "storage/local/temp_directory.h"

namespace cairn::serving {
namespace {

constexpr std::uint32_t kDim = 4;

/// What happened to a runtime and those made of it.
struct Happened {
  struct Warming {
    std::vector<std::uint64_t> shape;
    std::size_t at_once = 0;
    std::int64_t served = -1;  // the step that was visible
  };
  std::vector<Warming> warmings;
  int compiled = 0;
  Status unfit;  // what new weights give
  std::function<std::int64_t()> served;
  std::function<void()> running = [] {};
};

class CountingRuntime final : public Runtime {
 public:
  explicit CountingRuntime(Happened* to) : to_(to) {}
  Result<std::vector<OwnedTensor>> Run(const Inputs&,
                                       const std::vector<TensorSignature>&) override {
    to_->running();
    return std::vector<OwnedTensor>();
  }
  Status Warm(const Inputs& inputs, std::size_t at_once) override {
    to_->warmings.push_back({inputs[0].second->shape, at_once, to_->served()});
    return Status::Ok();
  }
  Result<std::unique_ptr<Runtime>> WithWeights(const std::vector<Weight>&) override {
    ++to_->compiled;
    if (!to_->unfit.ok()) return to_->unfit;
    return std::unique_ptr<Runtime>(std::make_unique<CountingRuntime>(to_));
  }

 private:
  Happened* const to_;
};

class GraphLoaderTest : public ::testing::Test {
 protected:
  GraphLoaderTest() {
    ExportRequest request;
    request.directory = directory_ / "export";
    request.model = SumGraph(kDim);
    request.feed_names = {"rows"};
    request.target_names = {"y"};
    request.tables = {{"rows", ExportTable::Of(*writer_.table())}};
    request.increments = true;
    const Exported made = Export(request).value();
    const OpenExport exported = OpenNewestExport(made.path).value();
    runner_ = std::make_unique<GraphRunner>(exported, &versions_, 0);
    happened_.served = [this] {
      const auto snapshot = versions_.Acquire();
      return snapshot ? snapshot.facts().step : -1;
    };
    loader_ = std::make_unique<GraphLoader>(
        std::make_shared<CountingRuntime>(&happened_), ReadWeights(exported.save).value(),
        std::map<std::string, std::string>(), runner_.get(), std::vector<Probe>(), true);
    follower_ = Follower::Open({.repository = directory_ / "run"}, &versions_, loader_.get(),
                               [this](const UpdateReport& report) { reports_.push_back(report); })
                    .value();
  }
  void Ask(const std::vector<std::int64_t>& ids) {
    const auto snapshot = versions_.Acquire();
    EXPECT_TRUE(runner_->Run(snapshot, {{"rows", {DType::kI64, {ids.size()}, ids.data()}}}).ok());
  }

  TempDirectory directory_;
  TestWriter writer_{directory_ / "run"};
  Versions versions_{{{.name = "t", .dim = kDim}}, {}};
  Happened happened_;
  std::unique_ptr<GraphRunner> runner_;
  std::unique_ptr<GraphLoader> loader_;
  std::vector<UpdateReport> reports_;
  std::unique_ptr<Follower> follower_;
};

TEST_F(GraphLoaderTest, ARuntimeIsReadyBeforeAnybodySeesIt) {
  writer_.Set({1}, 1).Full(1);
  ASSERT_TRUE(follower_->Look().ok());
  ASSERT_EQ(happened_.warmings.size(), 1u);
  EXPECT_EQ(happened_.warmings[0].shape, (std::vector<std::uint64_t>{1, kDim})) << "nobody asked";
  EXPECT_EQ(happened_.warmings[0].at_once, 1u);
  EXPECT_EQ(happened_.warmings[0].served, -1);

  Ask({1, 2, 3});
  Ask({1, 2, 3, 4, 5, 6, 7});
  writer_.Set({1}, 2).Increment(2);
  ASSERT_TRUE(follower_->Look().ok());
  ASSERT_EQ(happened_.warmings.size(), 2u);
  EXPECT_EQ(happened_.warmings[1].shape, (std::vector<std::uint64_t>{7, kDim})) << "as asked last";
  EXPECT_EQ(happened_.warmings[1].at_once, 1u);
  EXPECT_EQ(happened_.warmings[1].served, 1) << "the version before is still shown";
  EXPECT_EQ(versions_.Acquire().facts().step, 2);
}

TEST_F(GraphLoaderTest, ItIsReadyForAsManyAtOnceAsThereWere) {
  writer_.Set({1}, 1).Full(1);
  ASSERT_TRUE(follower_->Look().ok());
  std::barrier all(3);  // each waits inside of Run for the others
  happened_.running = [&] { all.arrive_and_wait(); };
  {
    std::vector<std::jthread> askers;
    for (int i = 0; i < 3; ++i) askers.emplace_back([this] { Ask({1, 2}); });
  }
  happened_.running = [] {};
  writer_.Set({1}, 2).Increment(2);
  ASSERT_TRUE(follower_->Look().ok());
  EXPECT_EQ(happened_.warmings.back().at_once, 3u);
  Ask({1, 2});
  writer_.Set({1}, 3).Increment(3);
  ASSERT_TRUE(follower_->Look().ok());
  EXPECT_EQ(happened_.warmings.back().at_once, 1u) << "since the last update";
}

TEST_F(GraphLoaderTest, RowsAloneNeedNoNewRuntime) {
  writer_.Weight(5).Set({1}, 1).Full(1);
  ASSERT_TRUE(follower_->Look().ok());
  writer_.Weight(5).Set({1}, 2).Increment(2);
  ASSERT_TRUE(follower_->Look().ok());
  EXPECT_EQ(versions_.Acquire().facts().step, 2);
  EXPECT_EQ(happened_.compiled, 1);
  EXPECT_EQ(happened_.warmings.size(), 1u);
}

TEST_F(GraphLoaderTest, WeightsThatTheGraphCannotTakeAreRefusedAndAShortageIsNot) {
  writer_.Set({1}, 1).Full(1);
  ASSERT_TRUE(follower_->Look().ok());
  happened_.unfit = ResourceExhaustedError("OpenVINO has no memory");
  writer_.Set({1}, 2).Increment(2);
  ASSERT_TRUE(follower_->Look().ok());
  EXPECT_EQ(reports_.back().kind, UpdateReport::Kind::kUnreachable);
  happened_.unfit = Status::Ok();
  ASSERT_TRUE(follower_->Look().ok());
  EXPECT_EQ(versions_.Acquire().facts().step, 2);
  happened_.unfit = InvalidArgumentError("a whole number that does not fit in 32 bits");
  writer_.Set({1}, 3).Increment(3);
  ASSERT_TRUE(follower_->Look().ok());
  EXPECT_EQ(reports_.back().kind, UpdateReport::Kind::kRefused);
}

}  // namespace
}  // namespace cairn::serving
