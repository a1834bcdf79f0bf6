// A segment of a journal of version 1, as it was written once: it must read as what it held, and be
// written as the same bytes. CAIRN_WRITE_GOLDEN=1 writes the file when it does not exist.

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "format/journal_frames.h"

namespace cairn {
namespace {

const std::filesystem::path kFile = "tests/compat/journal_v1/000003.journal";

SegmentHeader GoldenHeader() {
  SegmentHeader header{.number = 3, .first_index = 41, .previous_bytes = 1234};
  for (std::size_t i = 0; i < header.writer.size(); ++i) {
    header.writer[i] = static_cast<std::byte>(0xa0 + i);
  }
  return header;
}

std::string Encoded() {
  std::string bytes = EncodeSegmentHeader(GoldenHeader());
  AppendFrame(GoldenHeader(), {.index = 41, .durable = 40, .payload = "a record"}, &bytes);
  AppendFrame(GoldenHeader(), {.index = 42, .durable = 41, .payload = ""}, &bytes);
  AppendFrame(GoldenHeader(),
              {.index = 43, .durable = 41, .payload = std::string_view("\0\xff", 2)}, &bytes);
  return bytes;
}

TEST(JournalV1, TheGoldenSegmentReadsAndIsWrittenAgainToTheSameBytes) {
  if (std::getenv("CAIRN_WRITE_GOLDEN") != nullptr && !std::filesystem::exists(kFile)) {
    std::filesystem::create_directories(kFile.parent_path());
    std::ofstream(kFile, std::ios::binary) << Encoded();
  }
  std::ifstream in(kFile, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), {});
  ASSERT_FALSE(bytes.empty()) << kFile;
  const auto contents = ReadSegment(bytes, bytes.size(), false);
  ASSERT_TRUE(contents.ok()) << contents.status().ToString();
  EXPECT_EQ(contents->header, GoldenHeader());
  ASSERT_EQ(contents->frames.size(), 3u);
  EXPECT_EQ(contents->frames[0].payload, "a record");
  EXPECT_EQ(contents->frames[2].payload, std::string_view("\0\xff", 2));
  EXPECT_EQ(contents->frames[2].durable, 41u);
  EXPECT_EQ(Encoded(), bytes);
}

TEST(JournalV1, TheGoldenSummaryReadsAndIsWrittenAgainToTheSameBytes) {
  const std::filesystem::path file = "tests/compat/journal_v1/000040.summary";
  const JournalSummary golden{.index = 40, .payload = "what records 1 to 40 say"};
  if (std::getenv("CAIRN_WRITE_GOLDEN") != nullptr && !std::filesystem::exists(file)) {
    std::ofstream(file, std::ios::binary) << EncodeSummary(golden);
  }
  std::ifstream in(file, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), {});
  const auto summary = DecodeSummary(bytes);
  ASSERT_TRUE(summary.ok()) << summary.status().ToString();
  EXPECT_EQ(summary->index, golden.index);
  EXPECT_EQ(summary->payload, golden.payload);
  EXPECT_EQ(EncodeSummary(golden), bytes);
}

}  // namespace
}  // namespace cairn
