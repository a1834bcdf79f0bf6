// What somebody sees on a terminal while a long command runs.

#include "cli/console.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <termios.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "base/manual_clock.h"

namespace cairn::cli {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

/// Standard error is a terminal of so many columns for as long as it lives.
class Terminal {
 public:
  explicit Terminal(unsigned short columns) {
    winsize size{};
    size.ws_row = 24;
    size.ws_col = columns;
    EXPECT_EQ(openpty(&far_, &near_, nullptr, nullptr, &size), 0);
    termios raw{};
    EXPECT_EQ(tcgetattr(near_, &raw), 0);
    cfmakeraw(&raw);  // what is written is what is read
    EXPECT_EQ(tcsetattr(near_, TCSANOW, &raw), 0);
    std::fflush(stderr);
    before_ = dup(STDERR_FILENO);
    EXPECT_EQ(dup2(near_, STDERR_FILENO), STDERR_FILENO);
  }
  ~Terminal() {
    std::fflush(stderr);
    dup2(before_, STDERR_FILENO);
    close(before_);
    close(near_);
    close(far_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  /// What was written since it was last asked.
  std::string Read() {
    // A mark of our own, because an empty terminal would be waited for.
    const std::string mark = "\x01";
    EXPECT_EQ(write(near_, mark.data(), mark.size()), 1);
    std::string text;
    while (!text.ends_with(mark)) {
      char buffer[1024];
      const ssize_t n = read(far_, buffer, sizeof buffer);
      if (n <= 0) break;
      text.append(buffer, static_cast<std::size_t>(n));
    }
    text.resize(text.size() - mark.size());
    return text;
  }

 private:
  int far_ = -1;
  int near_ = -1;
  int before_ = -1;
};

constexpr std::uint64_t kMiB = 1u << 20;

TEST(ProgressBar, AppearsAfterASecondAndGoesAway) {
  Terminal terminal(100);
  ManualClock clock;
  {
    ProgressBar bar("verify", &clock, true);
    bar.Update(10 * kMiB, 100 * kMiB);
    clock.Advance(milliseconds(999));
    bar.Update(20 * kMiB, 100 * kMiB);
    EXPECT_EQ(terminal.Read(), "") << "short work needs no bar";
    clock.Advance(milliseconds(1001));
    bar.Update(50 * kMiB, 100 * kMiB);
    const std::string line = terminal.Read();
    EXPECT_TRUE(line.starts_with("\r\033[Kverify [")) << line;
    EXPECT_THAT(line, HasSubstr("[" + std::string(20, '#') + std::string(20, '.') + "]  50 %"));
    EXPECT_THAT(line, HasSubstr("2 s left"));
    EXPECT_EQ(line.find('\n'), line.npos);
    clock.Advance(milliseconds(99));
    bar.Update(60 * kMiB, 100 * kMiB);
    EXPECT_EQ(terminal.Read(), "") << "it is not drawn more than ten times a second";
    clock.Advance(milliseconds(1));
    bar.Update(200 * kMiB, 100 * kMiB);
    EXPECT_THAT(terminal.Read(), HasSubstr("] 100 %"));
  }
  EXPECT_EQ(terminal.Read(), "\r\033[K") << "nothing of it stays";
}

TEST(ProgressBar, ANarrowTerminalHasTheNumbersAlone) {
  Terminal terminal(50);
  ManualClock clock;
  ProgressBar bar("verify", &clock, true);
  clock.Advance(milliseconds(2000));
  bar.Update(50 * kMiB, 100 * kMiB);
  const std::string line = terminal.Read();
  EXPECT_THAT(line, HasSubstr("verify   50 %"));
  EXPECT_EQ(line.find('#'), line.npos);
}

TEST(ProgressBar, ThereIsNoneWhereNobodyLooks) {
  {
    const Terminal terminal(80);
    EXPECT_TRUE(Console(/*json=*/false).progress_enabled());
  }
  Terminal terminal(80);
  ManualClock clock;
  {
    ProgressBar bar("verify", &clock, /*enabled=*/false);
    clock.Advance(milliseconds(2000));
    bar.Update(50 * kMiB, 100 * kMiB);
  }
  EXPECT_EQ(terminal.Read(), "");
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const int before = dup(STDERR_FILENO);
  ASSERT_EQ(dup2(ends[1], STDERR_FILENO), STDERR_FILENO);
  const bool enabled = Console(/*json=*/false).progress_enabled();
  dup2(before, STDERR_FILENO);
  for (const int end : {before, ends[0], ends[1]}) close(end);
  EXPECT_FALSE(enabled) << "a file or a pipe is no terminal";
}

}  // namespace
}  // namespace cairn::cli
