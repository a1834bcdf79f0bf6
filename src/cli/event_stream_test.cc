#include "cli/event_stream.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace cairn::cli {
namespace {

struct Seen {
  std::string id, kind, data;
  friend bool operator==(const Seen&, const Seen&) = default;
};

TEST(EventStream, EveryCutOfTheBytesGivesTheSameEvents) {
  const std::string text =
      ": a comment\n\nid: 1\nevent: log\ndata: {\"a\": 1}\n\r\nid:2\r\ndata:x\r\ndata: y\r\n\r\n"
      "event: end\ndata\n\nid: 9\nunknown: z\n\nretry: 3\ndata: cut";
  const std::vector<Seen> expected = {
      {"1", "log", "{\"a\": 1}"}, {"2", "message", "x\ny"}, {"", "end", ""}};
  for (std::size_t first = 0; first <= text.size(); ++first) {
    for (std::size_t second = first; second <= text.size(); second += 7) {
      std::vector<Seen> seen;
      EventStreamParser parser([&](const StreamEvent& event) {
        seen.push_back({event.id, event.kind, event.data});
        return true;
      });
      ASSERT_TRUE(parser.Feed(std::string_view(text).substr(0, first)));
      ASSERT_TRUE(parser.Feed(std::string_view(text).substr(first, second - first)));
      ASSERT_TRUE(parser.Feed(std::string_view(text).substr(second)));
      ASSERT_EQ(seen, expected) << first << " " << second;
    }
  }
}

TEST(EventStream, EndsWhenNoMoreIsWanted) {
  int seen = 0;
  EventStreamParser parser([&](const StreamEvent&) { return ++seen < 2; });
  EXPECT_FALSE(parser.Feed("data: 1\n\ndata: 2\n\ndata: 3\n\n"));
  EXPECT_EQ(seen, 2);
}

TEST(EventStream, LinesAndEventsWithoutEndAreRefused) {
  EventStreamParser lines([](const StreamEvent&) { return true; });
  const std::string piece(1u << 20, 'x');
  bool good = true;
  for (int i = 0; i < 9 && good; ++i) good = lines.Feed(piece);
  EXPECT_FALSE(good);
  EventStreamParser events([](const StreamEvent&) { return true; });
  good = true;
  for (int i = 0; i < 9 && good; ++i) good = events.Feed("data:" + piece + "\n");
  EXPECT_FALSE(good);
}

}  // namespace
}  // namespace cairn::cli
