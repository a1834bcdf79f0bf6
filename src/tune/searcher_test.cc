#include "tune/searcher.h"

#include <gtest/gtest.h>

#include <vector>

#include "format/json.h"

namespace cairn::tune {
namespace {

Value Json(std::string_view text) { return DecodeJson(text).value(); }

VariantOptions Options(std::string_view space, std::int64_t num_samples, std::uint64_t seed = 1) {
  VariantOptions options;
  options.space = SearchSpace::Parse(Json(space)).value();
  options.num_samples = num_samples;
  options.seed = seed;
  return options;
}

constexpr std::string_view kMixed =
    R"({"a": {"grid_search": [1, 2]}, "lr": {"__domain__": "loguniform", "lower": 1e-5, "upper": 1}})";

std::vector<Value> All(Searcher& searcher) {
  std::vector<Value> configs;
  for (int i = 0; i < 1000; ++i) {
    Suggestion suggestion = searcher.Suggest("t" + std::to_string(i)).value();
    if (suggestion.kind != Suggestion::Kind::kConfig) break;
    configs.push_back(std::move(suggestion.config));
  }
  return configs;
}

TEST(VariantSearcherTest, SamplesAreTakenOfEveryCombination) {
  auto searcher = MakeVariantSearcher(Options(kMixed, 3)).value();
  EXPECT_EQ(searcher->total(), 6U);
  const std::vector<Value> configs = All(*searcher);
  ASSERT_EQ(configs.size(), 6U);
  std::vector<double> rates;
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(configs[i].Find("a")->AsInt(), i % 2 == 0 ? 1 : 2);
    for (const double rate : rates) EXPECT_NE(configs[i].Find("lr")->AsDouble(), rate);
    rates.push_back(configs[i].Find("lr")->AsDouble());
  }
  EXPECT_EQ(searcher->Suggest("x").value().kind, Suggestion::Kind::kFinished);
  EXPECT_EQ(All(*MakeVariantSearcher(Options(kMixed, 3)).value()), configs);
  EXPECT_NE(All(*MakeVariantSearcher(Options(kMixed, 3, 2)).value()), configs);
}

TEST(VariantSearcherTest, ASampleMayBeHeldConstantOverTheGrid) {
  VariantOptions options = Options(kMixed, 2);
  options.constant_grid_search = true;
  const std::vector<Value> configs = All(*MakeVariantSearcher(std::move(options)).value());
  EXPECT_EQ(*configs[0].Find("lr"), *configs[1].Find("lr"));
  EXPECT_NE(*configs[1].Find("lr"), *configs[2].Find("lr"));
}

TEST(VariantSearcherTest, PointsComeFirstEachInThePlaceOfASample) {
  VariantOptions options = Options(kMixed, 3);
  options.points_to_evaluate = {Json(R"({"lr": 0.5})"), Json(R"({"a": 9, "lr": 0.25})")};
  auto searcher = MakeVariantSearcher(options).value();
  EXPECT_EQ(searcher->total(), 2U + 1U + 2U);
  const std::vector<Value> configs = All(*searcher);
  ASSERT_EQ(configs.size(), 5U);
  EXPECT_EQ(configs[0], Json(R"({"a": 1, "lr": 0.5})"));
  EXPECT_EQ(configs[1], Json(R"({"a": 2, "lr": 0.5})"));
  EXPECT_EQ(configs[2], Json(R"({"a": 9, "lr": 0.25})"));
  options.num_samples = 1;  // every point is evaluated all the same
  EXPECT_EQ(All(*MakeVariantSearcher(options).value()).size(), 3U);
  options.points_to_evaluate = {Json(R"({"typo": 1})")};
  EXPECT_TRUE(MakeVariantSearcher(options).status().Is(Code::kInvalidArgument));
  options.points_to_evaluate = {};
  options.num_samples = -2;
  EXPECT_TRUE(MakeVariantSearcher(options).status().Is(Code::kInvalidArgument));
}

TEST(VariantSearcherTest, SavedAnywhereItGoesOnAsIfNothingHappened) {
  const std::vector<Value> whole = All(*MakeVariantSearcher(Options(kMixed, 4)).value());
  for (std::size_t cut = 0; cut <= whole.size(); ++cut) {
    auto first = MakeVariantSearcher(Options(kMixed, 4)).value();
    for (std::size_t i = 0; i < cut; ++i) ASSERT_TRUE(first->Suggest("t").ok());
    auto second = MakeVariantSearcher(Options(kMixed, 4)).value();
    ASSERT_TRUE(second->Load(DecodeJson(EncodeJson(first->Save())).value()).ok());
    EXPECT_EQ(All(*second),
              std::vector<Value>(whole.begin() + static_cast<std::ptrdiff_t>(cut), whole.end()));
  }
}

TEST(VariantSearcherTest, AFinishedSearchCanBeExtended) {
  const std::vector<Value> whole = All(*MakeVariantSearcher(Options(kMixed, 5)).value());
  auto searcher = MakeVariantSearcher(Options(kMixed, 2)).value();
  std::vector<Value> configs = All(*searcher);
  ASSERT_TRUE(searcher->Extend(3).ok());
  for (Value& config : All(*searcher)) configs.push_back(std::move(config));
  EXPECT_EQ(configs, whole);
}

TEST(VariantSearcherTest, DamagedStateIsRefused) {
  auto searcher = MakeVariantSearcher(Options(kMixed, 2)).value();
  for (const std::string_view text :
       {"3", "{}", R"({"sample": -1, "grid": 0, "made": 0, "num_samples": 2})",
        R"({"sample": 0, "grid": 2, "made": 0, "num_samples": 2})"}) {
    EXPECT_TRUE(searcher->Load(Json(text)).Is(Code::kCorruption)) << text;
  }
  EXPECT_EQ(All(*searcher).size(), 4U);
}

TEST(VariantSearcherTest, WithoutEndThereIsAlwaysAnother) {
  auto searcher = MakeVariantSearcher(Options(kMixed, -1)).value();
  EXPECT_EQ(searcher->total(), std::nullopt);
  EXPECT_EQ(All(*searcher).size(), 1000U);
}

/// Remembers what it is told.
class Recorder : public Searcher {
 public:
  explicit Recorder(std::vector<std::string>* told) : told_(told) {}
  Result<Suggestion> Suggest(const std::string& trial) override {
    if (made_ == 5) return Suggestion{};
    return Suggestion{Suggestion::Kind::kConfig, Value::Object{{"n", ++made_}, {"trial", trial}}};
  }
  Status OnResult(const std::string& trial, const Value&) override {
    told_->push_back("result " + trial);
    return Status::Ok();
  }
  Status OnComplete(const std::string& trial, const Value&, bool error) override {
    told_->push_back((error ? "error " : "end ") + trial);
    return Status::Ok();
  }
  Value Save() const override { return made_; }
  Status Load(const Value& state) override {
    made_ = static_cast<int>(state.AsInt());
    return Status::Ok();
  }

 private:
  std::vector<std::string>* told_;
  int made_ = 0;
};

TEST(ConcurrencyLimiterTest, NoMoreTrialsLiveThanAllowed) {
  std::vector<std::string> told;
  auto limiter = MakeConcurrencyLimiter(std::make_unique<Recorder>(&told), 2, false).value();
  EXPECT_EQ(limiter->Suggest("a").value().kind, Suggestion::Kind::kConfig);
  EXPECT_EQ(limiter->Suggest("b").value().kind, Suggestion::Kind::kConfig);
  EXPECT_EQ(limiter->Suggest("c").value().kind, Suggestion::Kind::kWait);
  ASSERT_TRUE(limiter->OnResult("a", {}).ok());
  ASSERT_TRUE(limiter->OnComplete("a", {}, true).ok());
  ASSERT_TRUE(limiter->OnComplete("a", {}, true).ok());  // told once
  // State in between: the one that was made anew holds back the same.
  auto again = MakeConcurrencyLimiter(std::make_unique<Recorder>(&told), 2, false).value();
  ASSERT_TRUE(again->Load(limiter->Save()).ok());
  EXPECT_EQ(again->Suggest("c").value().config.Find("n")->AsInt(), 3);
  EXPECT_EQ(again->Suggest("d").value().kind, Suggestion::Kind::kWait);
  EXPECT_EQ(told, (std::vector<std::string>{"result a", "error a"}));
  EXPECT_TRUE(MakeConcurrencyLimiter(std::make_unique<Recorder>(&told), 0, false)
                  .status()
                  .Is(Code::kInvalidArgument));
}

TEST(ConcurrencyLimiterTest, ABatchEndsTogether) {
  std::vector<std::string> told;
  auto limiter = MakeConcurrencyLimiter(std::make_unique<Recorder>(&told), 2, true).value();
  ASSERT_TRUE(limiter->Suggest("a").ok());
  ASSERT_TRUE(limiter->Suggest("b").ok());
  ASSERT_TRUE(limiter->OnComplete("b", {}, false).ok());
  EXPECT_EQ(limiter->Suggest("c").value().kind, Suggestion::Kind::kWait);
  EXPECT_TRUE(told.empty());
  auto again = MakeConcurrencyLimiter(std::make_unique<Recorder>(&told), 2, true).value();
  ASSERT_TRUE(again->Load(DecodeJson(EncodeJson(limiter->Save())).value()).ok());
  ASSERT_TRUE(again->OnComplete("a", {}, false).ok());
  EXPECT_EQ(told, (std::vector<std::string>{"end b", "end a"}));
  EXPECT_EQ(again->Suggest("c").value().kind, Suggestion::Kind::kConfig);
}

}  // namespace
}  // namespace cairn::tune
