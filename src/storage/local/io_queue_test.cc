#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "storage/local/aligned_buffer.h"
#include "storage/local/posix_fs.h"
#include "storage/local/temp_directory.h"
#include "storage/local/thread_queue.h"
#include "storage/local/uring_queue.h"

namespace cairn {
namespace {

std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}
std::span<std::byte> Writable(std::string& text) { return std::as_writable_bytes(std::span(text)); }

/// What both queues promise.
class IoQueueTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (GetParam() == std::string("uring") && !UringWorks()) {
      GTEST_SKIP() << "this kernel gives no io_uring";
    }
  }
  std::unique_ptr<IoQueue> NewQueue(int depth) {
    auto queue = GetParam() == std::string("uring") ? NewUringQueue(depth) : NewThreadQueue(depth);
    EXPECT_TRUE(queue.ok()) << queue.status().ToString();
    return *std::move(queue);
  }
  std::unique_ptr<FsFile> NewFile(const std::string& name,
                                  OpenMode mode = {.write = true, .create = true}) {
    auto file = PosixFs()->Open(dir_ / name, mode);
    EXPECT_TRUE(file.ok()) << file.status().ToString();
    return *std::move(file);
  }

  TempDirectory dir_;
};

TEST_P(IoQueueTest, ManyWritesInFlightAllArriveAndAreReadBack) {
  constexpr int kDepth = 8;
  constexpr std::size_t kPart = 10000;
  auto queue = NewQueue(kDepth);
  auto file = NewFile("f");
  std::vector<std::string> parts;
  for (int i = 0; i < 100; ++i)
    parts.push_back(std::string(kPart, static_cast<char>('A' + i % 50)));
  std::map<std::uint64_t, int> seen;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (queue->in_flight() == kDepth) {
      auto done = queue->Wait();
      ASSERT_TRUE(done.ok() && done->status.ok());
      EXPECT_EQ(done->bytes, kPart);
      ++seen[done->tag];
    }
    ASSERT_TRUE(queue->SubmitWrite(file.get(), i * kPart, Bytes(parts[i]), i).ok());
  }
  while (queue->in_flight() > 0) ++seen[queue->Wait()->tag];
  EXPECT_EQ(seen.size(), parts.size());
  std::vector<std::string> back(parts.size(), std::string(kPart, '\0'));
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (queue->in_flight() == kDepth) {
      ASSERT_TRUE(queue->Wait()->status.ok());
    }
    ASSERT_TRUE(queue->SubmitRead(file.get(), i * kPart, Writable(back[i]), i).ok());
  }
  while (queue->in_flight() > 0) ASSERT_TRUE(queue->Wait()->status.ok());
  EXPECT_EQ(back, parts);
}

TEST_P(IoQueueTest, SubmissionsBeyondTheDepthAreRefused) {
  auto file = NewFile("f");  // borrowed: outlives the queue
  const std::string text = "x";
  auto queue = NewQueue(2);
  EXPECT_EQ(queue->depth(), 2);
  ASSERT_TRUE(queue->SubmitWrite(file.get(), 0, Bytes(text), 1).ok());
  ASSERT_TRUE(queue->SubmitWrite(file.get(), 1, Bytes(text), 2).ok());
  EXPECT_EQ(queue->in_flight(), 2);
  EXPECT_EQ(queue->SubmitWrite(file.get(), 2, Bytes(text), 3).code(), Code::kInvalidArgument);
  ASSERT_TRUE(queue->Wait().ok());
  EXPECT_TRUE(queue->SubmitWrite(file.get(), 2, Bytes(text), 3).ok());
}

TEST_P(IoQueueTest, WaitingForNothingIsAnError) {
  auto queue = NewQueue(2);
  EXPECT_EQ(queue->Wait().status().code(), Code::kInvalidArgument);
}

TEST_P(IoQueueTest, ReadsAreShortOnlyAtTheEndOfTheFile) {
  auto queue = NewQueue(4);
  auto file = NewFile("f");
  ASSERT_TRUE(file->WriteAt(0, Bytes(std::string(10000, 'x'))).ok());
  std::string into(8192, '\0');
  ASSERT_TRUE(queue->SubmitRead(file.get(), 8192, Writable(into), 0).ok());
  EXPECT_EQ(queue->Wait()->bytes, 10000u - 8192u);
  ASSERT_TRUE(queue->SubmitRead(file.get(), 20000, Writable(into), 0).ok());
  auto beyond = queue->Wait();
  EXPECT_TRUE(beyond->status.ok());
  EXPECT_EQ(beyond->bytes, 0u);
}

TEST_P(IoQueueTest, DirectReadsStopAtAnOddEnd) {
  auto queue = NewQueue(4);
  auto file = NewFile("f");
  ASSERT_TRUE(file->WriteAt(0, Bytes(std::string(10000, 'x'))).ok());
  auto direct = PosixFs()->Open(dir_ / "f", {.direct = true});
  if (direct.status().Is(Code::kInvalidArgument)) GTEST_SKIP() << direct.status().ToString();
  AlignedBuffer buffer(16384);
  ASSERT_TRUE(queue->SubmitRead(direct->get(), 0, buffer.span(), 0).ok());
  auto done = queue->Wait();
  EXPECT_TRUE(done->status.ok()) << done->status.ToString();
  EXPECT_EQ(done->bytes, 10000u);
}

TEST_P(IoQueueTest, AFailedOperationReportsWhatAndWhere) {
  auto queue = NewQueue(4);
  {
    NewFile("f");
  }
  auto file = NewFile("f", {});  // read only
  const std::string text = "x";
  ASSERT_TRUE(queue->SubmitWrite(file.get(), 0, Bytes(text), 7).ok());
  auto done = queue->Wait();
  EXPECT_EQ(done->tag, 7u);
  EXPECT_FALSE(done->status.ok());
  EXPECT_NE(done->status.message().find("write"), std::string::npos);
  EXPECT_NE(done->status.message().find(dir_ / "f"), std::string::npos);
}

TEST_P(IoQueueTest, SyncIsAnOperationLikeOthers) {
  auto queue = NewQueue(4);
  auto file = NewFile("f");
  ASSERT_TRUE(file->WriteAt(0, Bytes("x")).ok());
  ASSERT_TRUE(queue->SubmitSync(file.get(), "test", 9).ok());
  auto done = queue->Wait();
  EXPECT_EQ(done->tag, 9u);
  EXPECT_TRUE(done->status.ok());
}

TEST_P(IoQueueTest, SyncsOfDirectoriesGoBesideOthers) {
  auto queue = NewQueue(4);
  auto file = NewFile("f");
  ASSERT_TRUE(queue->SubmitSyncDirectory(dir_ / "", "test", 1).ok());
  ASSERT_TRUE(queue->SubmitSync(file.get(), "test", 2).ok());
  std::uint64_t tags = 0;
  for (int i = 0; i < 2; ++i) {
    auto done = queue->Wait();
    EXPECT_TRUE(done->status.ok()) << done->status.ToString();
    tags += done->tag;
  }
  EXPECT_EQ(tags, 3u);
}

TEST_P(IoQueueTest, ADirectoryThatIsNotThereIsNotFound) {
  auto queue = NewQueue(4);
  Status status = queue->SubmitSyncDirectory(dir_ / "gone", "test", 1);
  if (status.ok()) status = queue->Wait()->status;
  EXPECT_EQ(status.code(), Code::kNotFound);
  EXPECT_EQ(queue->in_flight(), 0);
}

TEST_P(IoQueueTest, TheDestructorWaitsForWhatIsInFlight) {
  auto file = NewFile("f");
  std::string text(1 << 20, 'y');
  {
    auto queue = NewQueue(8);
    for (std::uint64_t i = 0; i < 8; ++i) {
      ASSERT_TRUE(queue->SubmitWrite(file.get(), i << 20, Bytes(text), i).ok());
    }
  }
  std::fill(text.begin(), text.end(), 'n');  // nobody may still be reading it
  EXPECT_EQ(file->Stat()->bytes, 8u << 20);
  std::string back(8 << 20, '\0');
  ASSERT_TRUE(file->ReadAt(0, Writable(back)).ok());
  EXPECT_EQ(back, std::string(8 << 20, 'y'));
}

TEST_P(IoQueueTest, ADepthThatMakesNoSenseIsRefused) {
  for (const int depth : {0, -1, 1 << 20}) {
    auto queue = GetParam() == std::string("uring") ? NewUringQueue(depth) : NewThreadQueue(depth);
    EXPECT_EQ(queue.status().code(), Code::kInvalidArgument) << depth;
  }
}

TEST_P(IoQueueTest, EmptyOperationsComplete) {
  auto queue = NewQueue(4);
  auto file = NewFile("f");
  ASSERT_TRUE(queue->SubmitWrite(file.get(), 0, {}, 1).ok());
  auto written = queue->Wait();
  EXPECT_TRUE(written->status.ok()) << written->status.ToString();
  ASSERT_TRUE(queue->SubmitRead(file.get(), 0, {}, 2).ok());
  EXPECT_TRUE(queue->Wait()->status.ok());
}

INSTANTIATE_TEST_SUITE_P(Queues, IoQueueTest, ::testing::Values("uring", "threads"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace cairn
