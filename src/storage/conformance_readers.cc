// Readers of ranges, and queues of many reads.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "storage/conformance.h"
#include "storage/conformance_checks.h"

namespace cairn {

TEST_P(StoreConformance, ReaderReadsRanges) {
  const std::string text = Pattern(20'000, 8);
  ASSERT_OK(store().Put("r/a", text));
  Result<std::unique_ptr<ObjectReader>> reader = store().OpenReader("r/a");
  ASSERT_HAS(reader);
  EXPECT_EQ((*reader)->name(), "r/a");
  EXPECT_EQ((*reader)->bytes(), text.size());
  const std::vector<std::pair<std::size_t, std::size_t>> ranges = {
      {0, 20'000}, {0, 1}, {19'999, 1}, {4096, 4096}, {4095, 4098}, {20'000, 0}, {0, 0}};
  for (const auto& [offset, bytes] : ranges) {
    SCOPED_TRACE(offset);
    std::string got(bytes, '?');
    EXPECT_OK((*reader)->Read(offset, std::as_writable_bytes(std::span(got))));
    EXPECT_TRUE(got == text.substr(offset, bytes));
  }
}

TEST_P(StoreConformance, ReadPastTheEndIsCorruption) {
  ASSERT_OK(store().Put("a", "12345"));
  ASSERT_OK(store().Put("empty", ""));
  Result<std::unique_ptr<ObjectReader>> reader = store().OpenReader("a");
  ASSERT_HAS(reader);
  std::string got(6, '?');
  const std::span<std::byte> into = std::as_writable_bytes(std::span(got));
  EXPECT_EQ((*reader)->Read(0, into).code(), Code::kCorruption);
  EXPECT_EQ((*reader)->Read(4, into.first(2)).code(), Code::kCorruption);
  EXPECT_EQ((*reader)->Read(5, into.first(1)).code(), Code::kCorruption);
  EXPECT_EQ((*reader)->Read(1'000'000, into).code(), Code::kCorruption);
  Result<std::unique_ptr<ObjectReader>> empty = store().OpenReader("empty");
  ASSERT_HAS(empty);
  EXPECT_EQ((*empty)->bytes(), 0u);
  EXPECT_OK((*empty)->Read(0, {}));
  EXPECT_EQ((*empty)->Read(0, into).code(), Code::kCorruption);
}

TEST_P(StoreConformance, ReaderServesSeveralThreads) {
  const std::string text = Pattern(200'000, 9);
  ASSERT_OK(store().Put("a", text));
  Result<std::unique_ptr<ObjectReader>> reader = store().OpenReader("a");
  ASSERT_HAS(reader);
  RunInThreads(kThreads, [&](int t) {
    for (std::size_t i = 0; i < 20; ++i) {
      const std::size_t offset = (i * 7919 + static_cast<std::size_t>(t) * 104'729) % 150'000;
      std::string got(10'000, '?');
      EXPECT_OK((*reader)->Read(offset, std::as_writable_bytes(std::span(got))));
      EXPECT_TRUE(got == text.substr(offset, got.size()));
    }
  });
}

TEST_P(StoreConformance, ReaderOfADeletedObjectReadsItOrSaysNotFound) {
  ASSERT_OK(store().Put("a", "12345"));
  Result<std::unique_ptr<ObjectReader>> reader = store().OpenReader("a");
  ASSERT_HAS(reader);
  ASSERT_OK(store().Delete("a"));
  std::string got(5, '?');
  const Status read = (*reader)->Read(0, std::as_writable_bytes(std::span(got)));
  if (read.ok()) {
    EXPECT_EQ(got, "12345");
  } else {
    EXPECT_EQ(read.code(), Code::kNotFound) << read.ToString();
  }
}

TEST_P(StoreConformance, ReaderNeverMixesAnObjectWithItsSuccessor) {
  ASSERT_OK(store().Put("a", std::string(10'000, 'o')));
  Result<std::unique_ptr<ObjectReader>> reader = store().OpenReader("a");
  ASSERT_HAS(reader);
  ASSERT_OK(store().Put("a", std::string(10'000, 'n')));
  std::string got(10'000, '?');
  const Status read = (*reader)->Read(0, std::as_writable_bytes(std::span(got)));
  if (read.ok()) {
    EXPECT_TRUE(got == std::string(10'000, 'o'));
  } else {
    EXPECT_EQ(read.code(), Code::kNotFound) << read.ToString();
  }
}

TEST_P(StoreConformance, QueueReadsManyRangesAtOnce) {
  const std::size_t part = (*store().NewWriteSession(WriteMode::kAuto))->part_bytes();
  const std::vector<std::pair<std::string, std::string>> objects = {
      {"q/a", Pattern(std::max<std::size_t>(2 * part, 65'536) + 777, 10)},
      {"q/b", Pattern(70'000, 11)}};
  WriteObjects(objects, true);
  std::vector<std::unique_ptr<ObjectReader>> readers;
  for (const auto& [name, text] : objects) {
    Result<std::unique_ptr<ObjectReader>> reader = store().OpenReader(name);
    ASSERT_HAS(reader);
    readers.push_back(*std::move(reader));
  }
  Result<std::unique_ptr<ReadQueue>> queue = store().NewReadQueue(8);
  ASSERT_HAS(queue);
  EXPECT_GE((*queue)->depth(), 1);
  EXPECT_EQ((*queue)->in_flight(), 0);

  struct Range {
    std::size_t object;
    std::size_t offset;
    std::size_t bytes;
  };
  std::vector<Range> ranges;
  for (std::size_t object = 0; object < objects.size(); ++object) {
    const std::size_t size = objects[object].second.size();
    const std::size_t step = std::max<std::size_t>(kBlock, size / 20 / kBlock * kBlock);
    // Aligned ranges, the last one rounded up past the end, then odd ones.
    for (std::size_t at = 0; at < size; at += step) ranges.push_back({object, at, step});
    for (std::size_t i = 1; i < 30; ++i) ranges.push_back({object, i * 977, i * 1031});
  }
  std::vector<std::unique_ptr<AlignedMemory>> buffers;
  std::vector<bool> seen(ranges.size(), false);
  const auto wait = [&] {
    Result<ReadQueue::Done> done = (*queue)->Wait();
    ASSERT_HAS(done);
    ASSERT_OK(done->status);
    ASSERT_LT(done->tag, ranges.size());
    const Range& range = ranges[done->tag];
    EXPECT_FALSE(seen[done->tag]) << "a tag came twice";
    seen[done->tag] = true;
    const std::string_view expected =
        std::string_view(objects[range.object].second).substr(range.offset, range.bytes);
    ASSERT_EQ(done->bytes, expected.size());
    EXPECT_TRUE(buffers[done->tag]->text(done->bytes) == expected);
  };
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    if ((*queue)->in_flight() == (*queue)->depth()) wait();
    ASSERT_FALSE(HasFatalFailure());
    buffers.push_back(std::make_unique<AlignedMemory>(ranges[i].bytes));
    ASSERT_OK(
        (*queue)->Submit(readers[ranges[i].object].get(), ranges[i].offset, buffers[i]->span(), i));
  }
  while ((*queue)->in_flight() > 0 && !HasFatalFailure()) wait();
  EXPECT_EQ(std::count(seen.begin(), seen.end(), true), static_cast<std::ptrdiff_t>(seen.size()));
}

TEST_P(StoreConformance, QueueMayBeDestroyedWithReadsInFlight) {
  const std::string text = Pattern(1u << 20, 12);
  ASSERT_OK(store().Put("a", text));
  Result<std::unique_ptr<ObjectReader>> reader = store().OpenReader("a");
  ASSERT_HAS(reader);
  AlignedMemory memory(text.size());
  Result<std::unique_ptr<ReadQueue>> queue = store().NewReadQueue(4);
  ASSERT_HAS(queue);
  for (std::uint64_t i = 0; i < 3; ++i) {
    ASSERT_OK((*queue)->Submit(reader->get(), 0, memory.span(), i));
  }
  queue->reset();
}

TEST_P(StoreConformance, QueueReportsADeletedObjectInTheCompletion) {
  ASSERT_OK(store().Put("a", "12345"));
  Result<std::unique_ptr<ObjectReader>> reader = store().OpenReader("a");
  ASSERT_HAS(reader);
  ASSERT_OK(store().Delete("a"));
  Result<std::unique_ptr<ReadQueue>> queue = store().NewReadQueue(1);
  ASSERT_HAS(queue);
  std::string got(5, '?');
  ASSERT_OK((*queue)->Submit(reader->get(), 0, std::as_writable_bytes(std::span(got)), 9));
  Result<ReadQueue::Done> done = (*queue)->Wait();
  ASSERT_HAS(done);
  EXPECT_EQ(done->tag, 9u);
  if (done->status.ok()) {
    EXPECT_EQ(done->bytes, 5u);
    EXPECT_EQ(got, "12345");
  } else {
    EXPECT_EQ(done->status.code(), Code::kNotFound) << done->status.ToString();
  }
}

}  // namespace cairn
