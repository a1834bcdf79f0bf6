#include "storage/memory/paged_bytes.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <utility>

namespace cairn {
namespace {

void Write(PagedBytes* bytes, std::uint64_t offset, std::string_view text) {
  bytes->Write(offset, std::as_bytes(std::span(text.data(), text.size())));
}

std::string Text(const PagedBytes& bytes) {
  std::string text(bytes.size(), '?');
  EXPECT_EQ(bytes.Read(0, std::as_writable_bytes(std::span(text))), bytes.size());
  return text;
}

TEST(PagedBytes, ReadsZerosWhereNothingWasWritten) {
  PagedBytes bytes;
  Write(&bytes, 10'000, "x");
  EXPECT_EQ(Text(bytes), std::string(10'000, '\0') + "x");
  bytes.Resize(20'000);
  EXPECT_EQ(Text(bytes), std::string(10'000, '\0') + "x" + std::string(9'999, '\0'));
}

TEST(PagedBytes, WritesAcrossPages) {
  PagedBytes bytes;
  const std::string text(9'000, 'a');
  Write(&bytes, 4'000, text);
  Write(&bytes, 8'190, "bbbb");
  std::string expected = std::string(4'000, '\0') + text;
  expected.replace(8'190, 4, "bbbb");
  EXPECT_EQ(Text(bytes), expected);
}

TEST(PagedBytes, WhatIsCutOffDoesNotComeBack) {
  for (const std::uint64_t cut : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{4095},
                                  std::uint64_t{4096}, std::uint64_t{4097}}) {
    PagedBytes bytes;
    Write(&bytes, 0, std::string(9'000, 'x'));
    bytes.Resize(cut);
    bytes.Resize(9'000);
    EXPECT_EQ(Text(bytes), std::string(cut, 'x') + std::string(9'000 - cut, '\0')) << cut;
  }
}

TEST(PagedBytes, CutInAHoleStaysAHole) {
  PagedBytes bytes;
  bytes.Resize(10'000);
  bytes.Resize(5'000);
  Write(&bytes, 6'000, "x");
  bytes.Resize(6'000);
  EXPECT_EQ(Text(bytes), std::string(6'000, '\0'));
}

TEST(PagedBytes, SharedCopiesDoNotSeeEachOthersWrites) {
  PagedBytes original;
  Write(&original, 0, std::string(5'000, 'o'));
  PagedBytes copy = original.Share();
  Write(&original, 0, "A");
  Write(&copy, 4'999, "B");
  PagedBytes third = copy.Share();
  Write(&copy, 0, "C");
  third.Resize(1);
  EXPECT_EQ(Text(original), "A" + std::string(4'999, 'o'));
  EXPECT_EQ(Text(copy), "C" + std::string(4'998, 'o') + "B");
  EXPECT_EQ(Text(third), "o");
}

TEST(PagedBytes, ReadsOnlyToTheEnd) {
  PagedBytes bytes;
  Write(&bytes, 0, "12345");
  std::string text(10, '?');
  EXPECT_EQ(bytes.Read(3, std::as_writable_bytes(std::span(text))), 2u);
  EXPECT_EQ(bytes.Read(5, std::as_writable_bytes(std::span(text))), 0u);
  EXPECT_EQ(bytes.Read(~std::uint64_t{0}, std::as_writable_bytes(std::span(text))), 0u);
}

TEST(PagedBytes, EmptyWriteChangesNothing) {
  PagedBytes bytes;
  Write(&bytes, 100, "");
  EXPECT_EQ(bytes.size(), 0u);
}

}  // namespace
}  // namespace cairn
