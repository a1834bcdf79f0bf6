// A follower that runs out of memory anywhere: the n-th allocation of a look fails, for every few
// n.

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <new>
#include <utility>

#include "base/log.h"
#include "base/manual_clock.h"
#include "serving/test_follower.h"
#include "storage/forwarding_store.h"
#include "storage/open_store.h"

namespace {

thread_local std::int64_t allocations_left = -1;  // negative: no end of them
std::int64_t after_opening = -1;                  // what it becomes when a file is opened

}  // namespace

// Not inlined: the compiler would see free() for what new gave, and warn.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  if (allocations_left >= 0 && allocations_left-- == 0) throw std::bad_alloc();
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace cairn::serving {
namespace {

class ArmingStore final : public ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  Result<std::unique_ptr<ObjectReader>> OpenReader(const std::string& name) override {
    auto reader = ForwardingStore::OpenReader(name);
    if (after_opening >= 0) allocations_left = std::exchange(after_opening, -1);
    return reader;
  }
};

TEST_F(FollowerTest, AnyAllocationOfAnUpdateMayFail) {
  SetLogSink([](LogLevel, std::string_view) {});
  TestWriter writer(path_, {.keep_last = 1});
  writer.Set({1, 2}, 1).Full(1);
  ManualClock clock;
  const std::unique_ptr<Store> local = OpenStore(path_, {.create = false}).value();
  Follow({.clock = &clock, .open = [&]() -> Result<std::unique_ptr<Store>> {
            return std::unique_ptr<Store>(std::make_unique<ArmingStore>(local.get()));
          }});
  ASSERT_EQ(LookInTurn().at(-2), 1);
  constexpr std::int64_t kStride = 3;
  std::int64_t step = 1;
  int failed = 0;
  for (std::int64_t n = 0;; n += kStride) {
    ++step;
    writer.Set({1, 3, 4 + step % 20}, static_cast<float>(step)).Erase({4 + (step + 7) % 20});
    step % 3 == 0 ? writer.Full(step) : writer.Increment(step);
    const RowMap before = Served();
    after_opening = n;
    follower_->LookInTurn().IgnoreError("what is served tells");
    const bool reached = allocations_left < 0;
    allocations_left = -1;
    const RowMap during = Served();
    ASSERT_TRUE(during == before || during.at(-2) == static_cast<float>(step)) << n;
    failed += during == before ? 1 : 0;
    clock.Advance(std::chrono::seconds(30));
    ASSERT_EQ(LookInTurn().at(-2), static_cast<float>(step)) << n;
    ASSERT_EQ(Served().at(1), static_cast<float>(step)) << n;
    if (!reached) break;
  }
  EXPECT_GT(failed, 10);
  EXPECT_EQ(Count(Kind::kRefused), 0);
  SetLogSink(nullptr);
}

/// Also one that is made before a file is opened: while directories are listed and records read.
TEST_F(FollowerTest, AnyAllocationOfALookMayFail) {
  SetLogSink([](LogLevel, std::string_view) {});
  TestWriter writer(path_, {.keep_last = 1});
  writer.Set({1, 2}, 1).Full(1);
  ManualClock clock;
  Follow({.clock = &clock});
  ASSERT_EQ(LookInTurn().at(-2), 1);
  constexpr std::int64_t kStride = 7;
  std::int64_t step = 1;
  for (std::int64_t n = 0;; n += kStride) {
    ++step;
    writer.Set({1, 3}, static_cast<float>(step)).Full(step);
    const RowMap before = Served();
    allocations_left = n;
    follower_->LookInTurn().IgnoreError("what is served tells");
    const bool reached = allocations_left < 0;
    allocations_left = -1;
    const RowMap during = Served();
    ASSERT_TRUE(during == before || during.at(-2) == static_cast<float>(step)) << n;
    clock.Advance(std::chrono::seconds(30));
    ASSERT_EQ(LookInTurn().at(-2), static_cast<float>(step)) << n;
    if (!reached) break;
  }
  EXPECT_GT(step, 20);
  EXPECT_EQ(Count(Kind::kRefused), 0);
  SetLogSink(nullptr);
}

/// What a watch cannot note for want of memory it tells as something that may be new.
TEST_F(FollowerTest, AWatchThatHasNoMemoryWakes) {
  std::filesystem::create_directory(path_);
  const auto watch = DirectoryWatch::Open(path_).value();
  for (std::int64_t n = 0; n < 8; ++n) {
    watch->Arm();
    const std::string made = path_ + "/checkpoint_of_a_long_name_" + std::to_string(n);
    std::filesystem::create_directory(made);
    std::ofstream(made + "/manifest.json") << "{}";
    allocations_left = n;
    watch->Wait(std::chrono::hours(1));
    allocations_left = -1;
  }
}

}  // namespace
}  // namespace cairn::serving
