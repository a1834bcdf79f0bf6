#include "checkpoint/read_chunks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/checksum.h"
#include "base/status_macros.h"
#include "base/thread_annotations.h"
#include "checkpoint/test_checkpoint.h"
#include "storage/forwarding_store.h"

namespace cairn {
namespace {

constexpr std::size_t kChunks = 20;
constexpr char kFile[] = "__model__/rank_0-00001.safetensors";

/// Has every chunk read when it is asked for, and gives it back after a pause.
class PausingQueue final : public ReadQueue {
 public:
  PausingQueue(std::unique_ptr<ReadQueue> inner, std::chrono::milliseconds pause)
      : inner_(std::move(inner)), pause_(pause) {}
  int depth() const override { return inner_->depth(); }
  int in_flight() const override { return static_cast<int>(read_.size()); }
  Status Submit(ObjectReader* reader, std::uint64_t offset, std::span<std::byte> into,
                std::uint64_t tag) override {
    RETURN_IF_ERROR(inner_->Submit(reader, offset, into, tag));
    ASSIGN_OR_RETURN(Done done, inner_->Wait());
    read_.push_back(std::move(done));
    return Status::Ok();
  }
  Result<Done> Wait() override {
    if (pause_ > pause_.zero()) std::this_thread::sleep_for(pause_);
    Done done = std::move(read_.front());
    read_.pop_front();
    return done;
  }

 private:
  const std::unique_ptr<ReadQueue> inner_;
  const std::chrono::milliseconds pause_;
  std::deque<Done> read_;
};

class PausingStore final : public ForwardingStore {
 public:
  PausingStore(Store* inner, std::chrono::milliseconds pause)
      : ForwardingStore(inner), pause_(pause) {}
  Result<std::unique_ptr<ReadQueue>> NewReadQueue(int depth) override {
    ASSIGN_OR_RETURN(auto queue, inner()->NewReadQueue(depth));
    return std::unique_ptr<ReadQueue>(std::make_unique<PausingQueue>(std::move(queue), pause_));
  }

 private:
  const std::chrono::milliseconds pause_;
};

/// Says that it is far away, and notes how many reads were in flight at once.
class FarStore final : public ForwardingStore {
 public:
  FarStore(Store* inner, int requests) : ForwardingStore(inner), requests_(requests) {}
  StoreTraits traits() const override {
    StoreTraits traits = inner()->traits();
    traits.parallel_requests = requests_;
    return traits;
  }
  Result<std::unique_ptr<ReadQueue>> NewReadQueue(int depth) override {
    deepest_ = std::max(deepest_, depth);
    return inner()->NewReadQueue(depth);
  }
  int deepest() const { return deepest_; }

 private:
  const int requests_;
  int deepest_ = 0;
};

class ReadChunksTest : public testing::Test {
 protected:
  ReadChunksTest() {
    std::string bytes(kChunks * kChunkBytes - kSafetensorsAlign, 'x');
    for (std::size_t at = 0; at < bytes.size(); at += kChunkBytes / 2) {
      bytes[at] = static_cast<char>(at / kChunkBytes);
    }
    const std::uint64_t count = bytes.size();
    checkpoint_.Tensor(kFile, "w", DType::kU8, {count}, std::move(bytes));
    checkpoint_.Write(store_.get());
  }

  /// Reads all chunks concurrently, each of which takes its reader `work`, and returns how many
  /// threads read.
  std::size_t ThreadsThatRead(std::chrono::milliseconds pause, std::chrono::milliseconds work) {
    PausingStore store(store_.get(), pause);
    auto open = checkpoint_.Open(&store);
    EXPECT_TRUE(open.ok()) << open.status().ToString();
    const auto file = static_cast<std::size_t>((*open)->FindFile(kFile));
    std::vector<ChunkRequest> requests;
    for (std::size_t chunk = 0; chunk < kChunks; ++chunk) requests.push_back({file, chunk});
    Mutex mu;
    std::set<std::thread::id> threads;
    std::vector<int> times(kChunks);
    const Status read = ReadChunks(
        &store, **open, requests,
        {.delivery = ReadChunksOptions::Delivery::kConcurrent, .at_once = 4},
        [&](std::size_t request, const Status& outcome, std::span<const std::byte> bytes) {
          if (work > work.zero()) std::this_thread::sleep_for(work);
          EXPECT_EQ(bytes.size(), kChunkBytes);
          MutexLock lock(&mu);
          threads.insert(std::this_thread::get_id());
          ++times[request];
          return outcome;
        });
    EXPECT_TRUE(read.ok()) << read.ToString();
    EXPECT_EQ(times, std::vector<int>(kChunks, 1));
    return threads.size();
  }

  /// Reads all chunks with the default settings; how many were asked for at once.
  int DepthOn(int parallel_requests) {
    FarStore store(store_.get(), parallel_requests);
    auto open = checkpoint_.Open(&store);
    EXPECT_TRUE(open.ok()) << open.status().ToString();
    const auto file = static_cast<std::size_t>((*open)->FindFile(kFile));
    std::vector<ChunkRequest> requests;
    for (std::size_t chunk = 0; chunk < kChunks; ++chunk) requests.push_back({file, chunk});
    std::size_t delivered = 0;
    const Status read =
        ReadChunks(&store, **open, requests, {},
                   [&](std::size_t, const Status& outcome, std::span<const std::byte>) {
                     ++delivered;
                     return outcome;
                   });
    EXPECT_TRUE(read.ok()) << read.ToString();
    EXPECT_EQ(delivered, kChunks);
    return store.deepest();
  }

  std::unique_ptr<MemoryStore> store_ = NewTestStore();
  TestCheckpoint checkpoint_;
};

TEST_F(ReadChunksTest, ASecondThreadHelpsOneThatFallsBehindTheReads) {
  EXPECT_EQ(ThreadsThatRead(/*pause=*/{}, /*work=*/std::chrono::milliseconds(5)), 2u);
}

TEST_F(ReadChunksTest, OneThreadIsEnoughForReadsThatItWaitsFor) {
  EXPECT_EQ(ThreadsThatRead(/*pause=*/std::chrono::milliseconds(2), /*work=*/{}), 1u);
}

TEST_F(ReadChunksTest, NoMoreChunksAreInMemoryThanAStoreFarAwayAnswersAtOnce) {
  EXPECT_EQ(DepthOn(/*parallel_requests=*/3), 3);
  EXPECT_EQ(DepthOn(/*parallel_requests=*/1), static_cast<int>(kChunks));  // a disk
}

}  // namespace
}  // namespace cairn
