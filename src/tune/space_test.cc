#include "tune/space.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "format/json.h"
#include "tune/rng.h"

namespace cairn::tune {
namespace {

Value Json(std::string_view text) { return DecodeJson(text).value(); }
SearchSpace Space(std::string_view text) { return SearchSpace::Parse(Json(text)).value(); }
std::string Problem(std::string_view text) {
  return std::string(SearchSpace::Parse(Json(text)).status().message());
}

/// `count` draws of the domain at "x".
std::vector<Value> Draws(std::string_view domain, int count = 20000) {
  const SearchSpace space = Space("{\"x\": " + std::string(domain) + "}");
  std::vector<Value> out;
  for (int i = 0; i < count; ++i) {
    out.push_back(*space.Draw(7, static_cast<std::uint64_t>(i), 0).Find("x"));
  }
  return out;
}
std::vector<double> Numbers(std::string_view domain, int count = 20000) {
  std::vector<double> out;
  for (const Value& value : Draws(domain, count)) out.push_back(value.AsDouble());
  return out;
}
double Mean(const std::vector<double>& x) {
  double sum = 0;
  for (const double v : x) sum += v;
  return sum / static_cast<double>(x.size());
}
double Deviation(const std::vector<double>& x) {
  const double mean = Mean(x);
  double sum = 0;
  for (const double v : x) sum += (v - mean) * (v - mean);
  return std::sqrt(sum / static_cast<double>(x.size()));
}

TEST(RngTest, StreamsAreFixedForEver) {
  Rng rng(1, 2, "lr");
  const std::uint64_t first = rng.Next();
  EXPECT_EQ(first, Rng(1, 2, "lr").Next());
  std::set<std::uint64_t> others = {first, Rng(2, 2, "lr").Next(), Rng(1, 3, "lr").Next(),
                                    Rng(1, 2, "lR").Next(), Rng(1, 2, "").Next()};
  EXPECT_EQ(others.size(), 5U);
  // Written down when it was made: experiments that are extended years later draw what they would
  // have.
  EXPECT_EQ(first, 16080698018363152496ULL);
}

TEST(RngTest, BelowReachesEveryNumberAlike) {
  Rng rng(3, 0, "");
  std::map<std::uint64_t, int> counts;
  for (int i = 0; i < 30000; ++i) ++counts[rng.Below(3)];
  ASSERT_EQ(counts.size(), 3U);
  for (const auto& [number, count] : counts) EXPECT_NEAR(count, 10000, 400) << number;
}

TEST(SpaceTest, UniformFillsItsRangeEvenly) {
  const std::vector<double> x = Numbers(R"({"__domain__": "uniform", "lower": -2, "upper": 6})");
  EXPECT_NEAR(Mean(x), 2, 0.06);
  EXPECT_NEAR(Deviation(x), 8 / std::sqrt(12.0), 0.05);
  EXPECT_GE(*std::ranges::min_element(x), -2);
  EXPECT_LT(*std::ranges::max_element(x), 6);
}

TEST(SpaceTest, LoguniformHasTheSameWeightInEveryDecade) {
  std::map<int, int> decades;
  for (const double x : Numbers(R"({"__domain__": "loguniform", "lower": 1e-4, "upper": 1e-1})")) {
    ASSERT_GE(x, 1e-4);
    ASSERT_LT(x, 1e-1);
    ++decades[static_cast<int>(std::floor(std::log10(x) + 1e-12))];
  }
  ASSERT_EQ(decades.size(), 3U);
  for (const auto& [decade, count] : decades) EXPECT_NEAR(count, 20000 / 3.0, 300) << decade;
}

TEST(SpaceTest, QuantizedOnesAreMultiplesWithinTheirBounds) {
  std::set<double> seen;
  for (const double x :
       Numbers(R"({"__domain__": "quniform", "lower": 0, "upper": 1, "q": 0.25})")) {
    seen.insert(x);
  }
  EXPECT_EQ(seen, (std::set<double>{0, 0.25, 0.5, 0.75, 1}));
  std::map<std::int64_t, int> counts;
  for (const Value& x : Draws(R"({"__domain__": "qrandint", "lower": 4, "upper": 12, "q": 4})")) {
    ASSERT_TRUE(x.is_int());
    ++counts[x.AsInt()];
  }
  ASSERT_EQ(counts.size(), 3U);  // both ends are included
  for (const auto& [number, count] : counts) EXPECT_NEAR(count, 20000 / 3.0, 300) << number;
  for (const double x :
       Numbers(R"({"__domain__": "qloguniform", "lower": 1, "upper": 100, "q": 0.5})")) {
    ASSERT_EQ(x * 2, std::round(x * 2));
    ASSERT_GE(x, 1);
    ASSERT_LE(x, 100);
  }
  for (const Value& x :
       Draws(R"({"__domain__": "qlograndint", "lower": 2, "upper": 64, "q": 2})")) {
    ASSERT_TRUE(x.is_int() && x.AsInt() % 2 == 0 && x.AsInt() >= 2 && x.AsInt() <= 64);
  }
}

TEST(SpaceTest, EndsOfIntegersNeedNotBeMultiples) {
  const auto drawn = [](const char* domain) {
    std::set<std::int64_t> seen;
    for (const Value& x : Draws(domain)) seen.insert(x.AsInt());
    return seen;
  };
  EXPECT_EQ(drawn(R"({"__domain__": "qlograndint", "lower": 1, "upper": 10, "q": 2})"),
            (std::set<std::int64_t>{2, 4, 6, 8, 10}));
  EXPECT_EQ(drawn(R"({"__domain__": "qrandint", "lower": -7, "upper": 8, "q": 3})"),
            (std::set<std::int64_t>{-6, -3, 0, 3, 6}));
  EXPECT_EQ(drawn(R"({"__domain__": "qrandint", "lower": 9223372036854775800,
                      "upper": 9223372036854775807, "q": 5})"),
            (std::set<std::int64_t>{9223372036854775800, 9223372036854775805}));
  EXPECT_NE(Problem(R"({"x": {"__domain__": "qrandint", "lower": 7, "upper": 8, "q": 5}})")
                .find("no multiple of q"),
            std::string::npos);
}

TEST(SpaceTest, IntegersLeaveTheUpperEndOut) {
  std::map<std::int64_t, int> counts;
  for (const Value& x : Draws(R"({"__domain__": "randint", "lower": -1, "upper": 3})"))
    ++counts[x.AsInt(99)];
  EXPECT_EQ(counts.size(), 4U);
  EXPECT_EQ(counts.begin()->first, -1);
  EXPECT_EQ(counts.rbegin()->first, 2);
  for (const auto& [number, count] : counts) EXPECT_NEAR(count, 5000, 250) << number;
  int small = 0;
  for (const Value& x : Draws(R"({"__domain__": "lograndint", "lower": 1, "upper": 100})")) {
    ASSERT_TRUE(x.AsInt() >= 1 && x.AsInt() < 100);
    if (x.AsInt() < 10) ++small;
  }
  EXPECT_NEAR(small, 10000, 300);
}

TEST(SpaceTest, IntegersAreExactOverTheWholeRange) {
  const std::vector<Value> x = Draws(
      R"({"__domain__": "randint", "lower": 9223372036854775800, "upper": 9223372036854775807})",
      200);
  std::set<std::int64_t> seen;
  for (const Value& v : x) seen.insert(v.AsInt());
  EXPECT_EQ(seen.size(), 7U);
  EXPECT_EQ(*seen.begin(), 9223372036854775800);
  EXPECT_EQ(*seen.rbegin(), 9223372036854775806);
  const std::vector<Value> whole = Draws(
      R"({"__domain__": "randint", "lower": -9223372036854775808, "upper": 9223372036854775807})",
      2000);
  EXPECT_NEAR(static_cast<double>(
                  std::ranges::count_if(whole, [](const Value& v) { return v.AsInt() < 0; })),
              1000, 100);
}

TEST(SpaceTest, RandnIsNormal) {
  const std::vector<double> x = Numbers(R"({"__domain__": "randn", "mean": 10, "sd": 2})");
  EXPECT_NEAR(Mean(x), 10, 0.05);
  EXPECT_NEAR(Deviation(x), 2, 0.04);
  const auto within = std::ranges::count_if(x, [](double v) { return std::abs(v - 10) < 2; });
  EXPECT_NEAR(static_cast<double>(within), 0.6827 * 20000, 250);
}

TEST(SpaceTest, ChoicesMayHoldAnything) {
  const SearchSpace space =
      Space(R"({"layers": {"__domain__": "choice", "categories": [[64, 64], [32],
      {"lr": {"__domain__": "uniform", "lower": 1, "upper": 2}}, null]}})");
  std::map<std::string, int> kinds;
  for (std::uint64_t i = 0; i < 400; ++i) {
    const Value drawn = space.Draw(1, i, 0);
    const Value& layers = *drawn.Find("layers");
    if (layers.is_object()) {
      const double lr = layers.Find("lr")->AsDouble();
      EXPECT_TRUE(lr >= 1 && lr < 2);
      ++kinds["object"];
    } else {
      ++kinds[EncodeJson(layers)];
    }
  }
  EXPECT_EQ(kinds.size(), 4U);
  for (const auto& [kind, count] : kinds) EXPECT_NEAR(count, 100, 35) << kind;
}

TEST(SpaceTest, GridsAreEnumeratedTheFirstRunningFastest) {
  const SearchSpace space =
      Space(R"({"b": {"x": {"grid_search": [1, 2, 3]}}, "a": {"grid_search": ["u", "v"]},
                                      "fixed": 5, "list": [{"grid_search": [true, false]}]})");
  ASSERT_EQ(space.grid_size(), 12U);
  EXPECT_EQ(space.grids()[0].first, "a");
  EXPECT_EQ(space.grids()[1].first, "b/x");
  EXPECT_EQ(space.grids()[2].first, "list/0");
  EXPECT_EQ(space.Draw(0, 0, 0), Json(R"({"a": "u", "b": {"x": 1}, "fixed": 5, "list": [true]})"));
  EXPECT_EQ(space.Draw(0, 0, 1), Json(R"({"a": "v", "b": {"x": 1}, "fixed": 5, "list": [true]})"));
  EXPECT_EQ(space.Draw(0, 0, 11),
            Json(R"({"a": "v", "b": {"x": 3}, "fixed": 5, "list": [false]})"));
  std::set<std::string> all;
  for (std::uint64_t i = 0; i < 12; ++i) all.insert(EncodeJson(space.Draw(0, 0, i)));
  EXPECT_EQ(all.size(), 12U);
}

TEST(SpaceTest, OneHyperparameterDoesNotDependOnTheOthers) {
  const std::string lr = R"("lr": {"__domain__": "uniform", "lower": 0, "upper": 1})";
  const SearchSpace small = Space("{" + lr + "}");
  const SearchSpace large =
      Space("{" + lr + R"(, "a": {"__domain__": "randn", "mean": 0, "sd": 1}})");
  for (std::uint64_t i = 0; i < 10; ++i) {
    EXPECT_EQ(*small.Draw(4, i, 0).Find("lr"), *large.Draw(4, i, 0).Find("lr"));
  }
}

TEST(SpaceTest, FixedPlacesAreNotDrawnNorEnumerated) {
  const SearchSpace space = Space(
      R"({"a": {"grid_search": [1, 2]}, "b": {"c": {"__domain__": "randint", "lower": 0, "upper": 9}},
                                      "d": {"grid_search": [1, 2, 3]}})");
  const SearchSpace fixed = space.Fix(Json(R"({"a": 7, "b": {"c": 100}})")).value();
  EXPECT_EQ(fixed.grid_size(), 3U);
  EXPECT_EQ(fixed.Draw(0, 0, 2), Json(R"({"a": 7, "b": {"c": 100}, "d": 3})"));
  EXPECT_EQ(space.Fix(Json(R"({"b/c": 3})")).value().Draw(0, 0, 0).Find("b/c")->AsInt(), 3);
  const Status status = space.Fix(Json(R"({"b": {"typo": 1}})")).status();
  EXPECT_TRUE(status.Is(Code::kInvalidArgument));
  EXPECT_NE(status.message().find("b/typo"), std::string_view::npos) << status.message();
}

TEST(SpaceTest, FunctionsOfTheCallerAreLeftToHim) {
  const SearchSpace space = Space(
      R"({"a": {"__domain__": "sample_from", "id": 1}, "b": [{"__domain__": "sample_from", "id": 2}],
                                      "c": {"__domain__": "choice", "categories": [{"__domain__": "sample_from", "id": 3}]}})");
  Value config = space.Draw(0, 0, 0);
  EXPECT_EQ(UnresolvedPaths(config), (std::vector<std::string>{"a", "b/0", "c"}));
  ASSERT_TRUE(Resolve(&config, "a", 1).ok());
  ASSERT_TRUE(Resolve(&config, "b/0", Value::List{2}).ok());
  ASSERT_TRUE(Resolve(&config, "c", "x").ok());
  EXPECT_EQ(config, Json(R"({"a": 1, "b": [[2]], "c": "x"})"));
  EXPECT_TRUE(Resolve(&config, "d", 1).Is(Code::kNotFound));
}

TEST(SpaceTest, MistakesAreNamedWithTheirPlace) {
  for (const auto& [text, part] : std::vector<std::pair<std::string, std::string>>{
           {R"({"a": {"b": {"__domain__": "uniform", "lower": 2, "upper": 1}}})", "a/b"},
           {R"({"a": {"__domain__": "uniform", "lower": 1, "upper": 1}})", "below upper"},
           {R"({"a": {"__domain__": "uniform", "lower": 1}})", "no upper"},
           {R"({"a": {"__domain__": "uniform", "lower": "x", "upper": 1}})", "finite number"},
           {R"({"a": {"__domain__": "uniform", "lower": 0, "upper": 1, "q": 1}})", "has no"},
           {R"({"a": {"__domain__": "loguniform", "lower": 0, "upper": 1}})", "above 0"},
           {R"({"a": {"__domain__": "randint", "lower": 0.5, "upper": 3}})", "an integer"},
           {R"({"a": {"__domain__": "quniform", "lower": 0, "upper": 1, "q": 0.3}})",
            "upper is not a multiple"},
           {R"({"a": {"__domain__": "qrandint", "lower": 0, "upper": 4, "q": 0}})",
            "q must be above 0"},
           {R"({"a": {"__domain__": "randn", "mean": 0, "sd": -1}})", "sd"},
           {R"({"a": {"__domain__": "choice", "categories": []}})", "at least one"},
           {R"({"a": {"grid_search": []}})", "at least one"},
           {R"({"a": {"__domain__": "choice", "categories": [{"grid_search": [1]}]}})",
            "inside of a choice"},
           {R"({"a": {"__domain__": "gauss"}})", "no domain is called"},
           {R"({"a": {"__domain__": 3}})", "must be a text"},
           {R"({"a/b": {"grid_search": [1]}, "a": {"b": {"grid_search": [1, 2]}}})", "same name"},
           {R"([1])", "must be an object"}}) {
    EXPECT_NE(Problem(text).find(part), std::string::npos) << text << "\n" << Problem(text);
  }
}

}  // namespace
}  // namespace cairn::tune
