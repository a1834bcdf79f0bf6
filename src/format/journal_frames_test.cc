#include "format/journal_frames.h"

#include <gtest/gtest.h>

#include <string>

namespace cairn {
namespace {

SegmentHeader Header() {
  SegmentHeader header{.number = 3, .first_index = 7, .previous_bytes = 200};
  for (int i = 0; i < 16; ++i) header.writer[i] = static_cast<std::byte>(i);
  return header;
}

std::string Segment() {
  std::string bytes = EncodeSegmentHeader(Header());
  AppendFrame(Header(), {.index = 7, .durable = 6, .payload = "one"}, &bytes);
  AppendFrame(Header(), {.index = 8, .durable = 7, .payload = ""}, &bytes);
  AppendFrame(Header(), {.index = 9, .durable = 8, .payload = "three"}, &bytes);
  return bytes;
}

TEST(JournalFrames, ASegmentComesBack) {
  const std::string bytes = Segment();
  const auto contents = ReadSegment(bytes, bytes.size(), false);
  ASSERT_TRUE(contents.ok()) << contents.status().ToString();
  EXPECT_EQ(contents->header, Header());
  ASSERT_EQ(contents->frames.size(), 3u);
  EXPECT_EQ(contents->frames[0].payload, "one");
  EXPECT_EQ(contents->frames[2].index, 9u);
  EXPECT_EQ(contents->durable, 8u);
  EXPECT_EQ(contents->ends.back(), bytes.size());
}

TEST(JournalFrames, CutAnywhereItShowsTheWholeFramesBeforeTheCut) {
  const std::string bytes = Segment();
  const auto whole = ReadSegment(bytes, bytes.size(), false).value();
  for (std::size_t cut = kSegmentHeaderBytes; cut < bytes.size(); ++cut) {
    const auto contents = ReadSegment(std::string_view(bytes).substr(0, cut), cut, true);
    ASSERT_TRUE(contents.ok()) << cut;
    std::size_t expected = 0;
    while (expected < whole.ends.size() && whole.ends[expected] <= cut) ++expected;
    EXPECT_EQ(contents->frames.size(), expected) << cut;
  }
  for (std::size_t cut = 0; cut < kSegmentHeaderBytes; ++cut) {
    EXPECT_TRUE(ReadSegment(std::string_view(bytes).substr(0, cut), cut, true)
                    .status()
                    .Is(Code::kCorruption));
  }
}

TEST(JournalFrames, AFlippedBitIsNeverReadAsARecord) {
  const std::string good = Segment();
  for (std::size_t at = 0; at < good.size(); ++at) {
    std::string bytes = good;
    bytes[at] = static_cast<char>(bytes[at] ^ 0x10);
    EXPECT_FALSE(ReadSegment(bytes, bytes.size(), false).ok()) << at;
    const auto contents = ReadSegment(bytes, bytes.size(), true);
    // Only the last record was not vouched for by a later one.
    if (contents.ok()) {
      EXPECT_EQ(contents->frames.size(), 2u) << at;
    }
  }
}

TEST(JournalFrames, AFrameOfAnotherSegmentIsNone) {
  SegmentHeader other = Header();
  other.number = 4;
  std::string bytes = EncodeSegmentHeader(Header());
  AppendFrame(other, {.index = 7, .durable = 6, .payload = "stale"}, &bytes);
  EXPECT_TRUE(ReadSegment(bytes, bytes.size(), true)->frames.empty());
}

TEST(JournalFrames, ANewerVersionIsRefusedAsSuch) {
  std::string bytes = Segment();
  bytes[8] = 2;
  EXPECT_TRUE(DecodeSegmentHeader(bytes).status().Is(Code::kUnimplemented));
}

}  // namespace
}  // namespace cairn
