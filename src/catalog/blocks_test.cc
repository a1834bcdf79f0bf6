// The bytes of report and log blocks, and the thinning of curves.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <sstream>

#include "catalog/log_block.h"
#include "catalog/metrics.h"
#include "catalog/packed_columns.h"
#include "catalog/report_block.h"
#include "format/json.h"

namespace cairn {
namespace {

constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

std::vector<StoredReport> SomeReports() {
  using O = Value::Object;
  std::vector<StoredReport> reports;
  const auto add = [&](Value body) {
    const std::uint64_t n = reports.size();
    reports.push_back({.seq = 10 + n * n,
                       .time = 1700000000000000000 - static_cast<std::int64_t>(n),
                       .run = 1 + n / 3,
                       .body = std::move(body)});
  };
  const auto usual = [&](std::int64_t steps, Value metrics) {
    add(O{{"sequence", static_cast<std::int64_t>(reports.size() + 1)},
          {"group", "training"},
          {"steps_completed", steps},
          {"metrics", std::move(metrics)}});
  };
  usual(1, O{{"loss", 0.5}, {"n", 3}, {"mixed", 1}});
  usual(kMax, O{{"loss", -0.0}, {"n", kMin}, {"mixed", 1.5}});
  usual(kMin, O{{"loss", "NaN"}, {"n", kMax}, {"deep", O{{"er", 1}, {"text", "x"}}}});
  usual(0, O{});
  usual(5, O{{"loss", "-Infinity"}, {"flag", true}, {"list", Value::List{1, 2}}, {"", 1.25}});
  add(O{{"group", "training"}, {"metrics", O{{"loss", 2.5}}}});  // not of the usual form
  add(O{});
  add(O{{"sequence", 8},
        {"group", "training"},
        {"steps_completed", 6},
        {"metrics", O{{"loss", 1e-300}}},
        {"later", Value::List{"a member that came later"}}});
  return reports;
}

std::vector<LogLine> SomeLines() {
  return {{.id = 7, .run = 1, .time = 5, .rank = -1, .level = LineLevel::kError, .text = "a"},
          {.id = 8, .run = 2, .time = kMin, .rank = 4095, .from_stderr = true, .text = ""},
          {.id = 9,
           .run = 2,
           .time = kMax,
           .level = LineLevel::kDebug,
           .text = std::string("\0\xff\n", 3) + std::string(500, 'z')},
          {.id = 10, .run = 2, .time = 6, .level = LineLevel::kWarning, .text = "ü"}};
}

TEST(ReportBlock, EveryBodyComesBackAsItWasWritten) {
  const auto reports = SomeReports();
  auto block = ReportBlock::Decode(EncodeReportBlock("training", reports), "training");
  ASSERT_TRUE(block.ok()) << block.status().ToString();
  ASSERT_EQ(block->size(), reports.size());
  for (std::size_t i = 0; i < reports.size(); ++i) {
    EXPECT_EQ(block->seq()[i], static_cast<std::int64_t>(reports[i].seq));
    EXPECT_EQ(block->time()[i], reports[i].time);
    EXPECT_EQ(block->run()[i], static_cast<std::int64_t>(reports[i].run));
    EXPECT_EQ(block->steps()[i], StepsOf(reports[i].body));
    const auto body = block->Body(i);
    ASSERT_TRUE(body.ok()) << body.status().ToString();
    EXPECT_EQ(EncodeJson(*body), EncodeJson(reports[i].body));
  }
}

TEST(ReportBlock, MetricsAreReadByNameWhereverTheyAreKept) {
  const auto reports = SomeReports();
  auto block = ReportBlock::Decode(EncodeReportBlock("training", reports), "training").value();
  for (const std::string name : {"loss", "n", "mixed", "deep/er", "deep/text", "flag", "none"}) {
    const auto values = block.Metric(name);
    ASSERT_TRUE(values.ok());
    for (std::size_t i = 0; i < reports.size(); ++i) {
      const Value* metrics = reports[i].body.Find("metrics");
      const auto expected = metrics == nullptr ? std::nullopt : MetricOf(*metrics, name);
      ASSERT_EQ((*values)[i].has_value(), expected.has_value()) << name << " " << i;
      if (!expected) continue;
      EXPECT_TRUE(*(*values)[i] == *expected ||
                  (std::isnan(*expected) && std::isnan(*(*values)[i])))
          << name << " " << i;
    }
  }
  EXPECT_EQ(block.Names().value(), (std::vector<std::string>{"", "deep/er", "loss", "mixed", "n"}));
}

TEST(LogBlock, LinesComeBack) {
  const auto lines = SomeLines();
  EXPECT_EQ(DecodeLogBlock(EncodeLogBlock(lines)).value(), lines);
  EXPECT_TRUE(DecodeLogBlock(EncodeLogBlock({})).value().empty());
}

TEST(PackedColumns, EveryFlippedBitAndEveryCutIsSeen) {
  const std::string good = EncodeReportBlock("training", SomeReports());
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 1 << (i % 8));
    EXPECT_TRUE(PackedReader::Open(bad).status().Is(Code::kCorruption)) << i;
    EXPECT_FALSE(PackedReader::Open(good.substr(0, i)).ok()) << i;
  }
}

/// The bytes as they were written once stay readable. CAIRN_WRITE_GOLDEN=1 writes the files when
/// they do not exist.
TEST(PackedColumns, TheGoldenBlocksRead) {
  const std::filesystem::path folder = "tests/compat/catalog_v1";
  const auto golden = [&](const std::string& name, const std::string& bytes) {
    if (std::getenv("CAIRN_WRITE_GOLDEN") != nullptr && !std::filesystem::exists(folder / name)) {
      std::filesystem::create_directories(folder);
      std::ofstream(folder / name, std::ios::binary) << bytes;
    }
    std::ifstream in(folder / name, std::ios::binary);
    std::stringstream text;
    text << in.rdbuf();
    return text.str();
  };
  const auto reports = SomeReports();
  auto block = ReportBlock::Decode(
      golden("report_block.bin", EncodeReportBlock("training", reports)), "training");
  ASSERT_TRUE(block.ok()) << block.status().ToString();
  for (std::size_t i = 0; i < reports.size(); ++i) {
    EXPECT_EQ(EncodeJson(block->Body(i).value()), EncodeJson(reports[i].body));
  }
  const auto lines = DecodeLogBlock(golden("log_block.bin", EncodeLogBlock(SomeLines())));
  ASSERT_TRUE(lines.ok()) << lines.status().ToString();
  EXPECT_EQ(*lines, SomeLines());
}

std::vector<SeriesPoint> Curve(std::size_t size, const std::function<double(std::size_t)>& value) {
  std::vector<SeriesPoint> points(size);
  for (std::size_t i = 0; i < size; ++i) {
    points[i].steps = static_cast<std::int64_t>(i);
    points[i].value = value(i);
  }
  return points;
}

TEST(Downsample, KeepsEndsExtremesAndOrderWithinTheBound) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const std::uint64_t most : {4u, 5u, 10u, 100u, 1000u}) {
    const auto kept = Downsample(Curve(10'000,
                                       [&](std::size_t i) {
                                         if (i == 777) return 50.0;
                                         if (i == 778) return -50.0;
                                         if (i == 5000) return nan;
                                         return std::sin(static_cast<double>(i));
                                       }),
                                 most);
    EXPECT_LE(kept.size(), most);
    EXPECT_EQ(kept.front().steps, 0);
    EXPECT_EQ(kept.back().steps, 9999);
    int spikes = 0;
    int odd = 0;
    for (std::size_t i = 0; i < kept.size(); ++i) {
      if (i > 0) {
        EXPECT_GT(kept[i].steps, kept[i - 1].steps);
      }
      spikes += std::fabs(kept[i].value) == 50 ? 1 : 0;
      odd += std::isnan(kept[i].value) ? 1 : 0;
    }
    if (most > 4) {
      EXPECT_EQ(spikes, 2) << most;
      EXPECT_EQ(odd, 1) << most;
    }
  }
  EXPECT_EQ(Downsample(Curve(10, [](auto) { return 1; }), 10).size(), 10u);
  EXPECT_EQ(Downsample(Curve(1000, [](auto) { return 1; }), 0).size(), 1000u);
  EXPECT_LE(Downsample(Curve(1000, [&](auto) { return nan; }), 10).size(), 10u);
  EXPECT_TRUE(Downsample({}, 10).empty());
}

}  // namespace
}  // namespace cairn
