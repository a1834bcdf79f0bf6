#include "launch/log_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace cairn {
namespace {

using ::testing::ElementsAre;

std::string Encoded(const LaunchLogLine& line) {
  std::string text;
  AppendLogLine(line, &text);
  return text;
}

TEST(LogLineTest, LooksAsThePageSays) {
  LaunchLogLine line;
  line.time = 1'794'733'451'123'456'789;
  line.rank = 3;
  line.from_stderr = true;
  line.level = LineLevel::kWarning;
  line.text = "loss is NaN ";
  EXPECT_EQ(Encoded(line), "2026-11-15T09:04:11.123456789Z 3 err W . loss is NaN \n");
}

TEST(LogLineTest, ComesBackAsItWas) {
  for (const std::string text : {"", " ", "plain", "a\rb\377", "2026 out I . inside"}) {
    LaunchLogLine line;
    line.time = 951'782'400'000'000'001;  // 29 February 2000
    line.rank = -1;
    line.unfinished = true;
    line.level = LineLevel::kDebug;
    line.text = text;
    std::string encoded = Encoded(line);
    encoded.pop_back();
    const LaunchLogLine back = ParseLogLine(encoded);
    EXPECT_EQ(Encoded(back), Encoded(line));
    EXPECT_EQ(back.time, line.time);
    EXPECT_EQ(back.text, text);
  }
}

TEST(LogLineTest, WhatIsNoLineIsTextOfNobody) {
  for (const std::string text : {"", "2026-13-15T09:04:11.123456789Z 0 out I . x",
                                 "2026-11-15T09:04:11.123456789Z 0 out I x",
                                 "2026-11-15T09:04:11.123456789Z 9999999 out I . x",
                                 "2026-11-15T09:04:11.123456789Z 0 oops I . x",
                                 "9999-11-15T09:04:11.123456789Z 0 out I . x"}) {
    const LaunchLogLine line = ParseLogLine(text);
    EXPECT_EQ(line.rank, -1) << text;
    EXPECT_EQ(line.time, 0) << text;
    EXPECT_EQ(line.text, text);
  }
}

TEST(LogLineTest, LevelsAreGuessedFromWhatLoggersWrite) {
  EXPECT_EQ(GuessLevel("2026-11-15 09:04:11 ERROR trainer: no data"), LineLevel::kError);
  EXPECT_EQ(GuessLevel("[WARNING] slow"), LineLevel::kWarning);
  EXPECT_EQ(GuessLevel("DEBUG:root:x"), LineLevel::kDebug);
  EXPECT_EQ(GuessLevel("E1115 09:04:11.000000 17 x.cc:3] bad"), LineLevel::kError);
  EXPECT_EQ(GuessLevel("Traceback (most recent call last):"), LineLevel::kError);
  EXPECT_EQ(GuessLevel("torch.cuda.OutOfMemoryError: no"), LineLevel::kError);
  EXPECT_EQ(GuessLevel("step 3: TerrorError happened"), LineLevel::kInfo);
  EXPECT_EQ(GuessLevel("INFO about an ERROR"), LineLevel::kInfo);
  EXPECT_EQ(GuessLevel("E11"), LineLevel::kInfo);
  EXPECT_EQ(GuessLevel(""), LineLevel::kInfo);
}

TEST(LineCutterTest, CutsAtNewlinesWhereverTheBytesAreSplit) {
  const std::string bytes = "one\n\ntwo\nthree";
  for (std::size_t cut = 0; cut <= bytes.size(); ++cut) {
    std::vector<std::string> lines;
    const auto sink = [&](std::string_view text, bool unfinished) {
      lines.push_back(std::string(text) + (unfinished ? "+" : ""));
    };
    LineCutter cutter;
    cutter.Feed(bytes.substr(0, cut), sink);
    cutter.Feed(bytes.substr(cut), sink);
    cutter.Finish(sink);
    cutter.Finish(sink);
    EXPECT_THAT(lines, ElementsAre("one", "", "two", "three+"));
  }
}

TEST(LineCutterTest, HoldsNoMoreThanALine) {
  std::vector<std::size_t> sizes;
  LineCutter cutter;
  const auto sink = [&](std::string_view text, bool) { sizes.push_back(text.size()); };
  cutter.Feed(std::string(2 * kMaxLogText + 5, 'x') + "\n", sink);
  EXPECT_THAT(sizes, ElementsAre(kMaxLogText, kMaxLogText, 5));
}

}  // namespace
}  // namespace cairn
