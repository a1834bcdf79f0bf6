#include "tune/result_text.h"

#include <gtest/gtest.h>

#include <limits>

namespace cairn::tune {
namespace {

using Object = Value::Object;
using List = Value::List;

TEST(ResultText, AResultIsFilledWithWhereItCameFrom) {
  const Value filled = FillResult(Object{{"loss", 1.5}, {"timestamp", 0}, {"trial_id", "x"}},
                                  "net_00001", Object{{"lr", 0.1}});
  EXPECT_EQ(*filled.Find("trial_id"), Value("net_00001"));
  EXPECT_EQ(*filled.Find("experiment_tag"), Value("net_00001"));
  EXPECT_EQ(*filled.Find("done"), Value(false));
  EXPECT_EQ(*filled.Find("config/lr"), Value(0.1));
  EXPECT_EQ(filled.Find("date")->if_string()->size(), 19u);
}

TEST(ResultText, ALineIsWhatPythonReads) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(
      ResultLine(Object{{"a", std::numeric_limits<double>::quiet_NaN()},
                        {"b", List{infinity, -infinity}},
                        {"c", Object{{"d", "x\n\"y\""}, {"e", Object{}}, {"f", List{}}}},
                        {"g", std::int64_t{9007199254740993}},
                        {"h", true},
                        {"i", nullptr},
                        {"j", 2.0}}),
      "{\"a\": NaN, \"b\": [Infinity, -Infinity], \"c\": {\"d\": \"x\\n\\\"y\\\"\", \"e\": {}, "
      "\"f\": []}, \"g\": 9007199254740993, \"h\": true, \"i\": null, \"j\": 2.0}\n");
  EXPECT_EQ(ParamsText(Object{{"lr", 0.5}, {"layers", List{1, 2}}}),
            "{\n  \"layers\": [1, 2],\n  \"lr\": 0.5\n}\n");
  EXPECT_EQ(ParamsText(Object{}), "{}\n");
}

TEST(ResultText, NestedMembersAreColumns) {
  const FlatResult row = Flatten(
      Object{{"a", Object{{"b", 1}, {"c", Object{{"d", 2}}}}}, {"e", Object{}}, {"f", "text"}});
  std::vector<std::string> names;
  for (const auto& [name, value] : row) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{"a/b", "a/c/d", "e", "f"}));
}

TEST(ResultText, RowsHaveNothingWhereThereIsNothing) {
  const std::vector<std::string> columns = {"a", "b", "c", "d"};
  EXPECT_EQ(CsvHeader(columns), "a,b,c,d\n");
  EXPECT_EQ(CsvRow(columns, Flatten(Object{{"a", 1}, {"d", 2.5}})), "1,,,2.5\n");
  EXPECT_EQ(CsvRow(columns, Flatten(Object{{"a", "x,y"},
                                           {"b", "say \"z\""},
                                           {"c", List{1, 2}},
                                           {"d", std::numeric_limits<double>::quiet_NaN()}})),
            "\"x,y\",\"say \"\"z\"\"\",\"[1, 2]\",nan\n");
  EXPECT_EQ(CsvRow({"a"}, {}), "\"\"\n");
  EXPECT_EQ(CsvRow(columns, Flatten(Object{{"a", true}, {"b", nullptr}, {"c", false}})),
            "True,,False,\n");
}

}  // namespace
}  // namespace cairn::tune
