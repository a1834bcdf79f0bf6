#include "storage/sim/faulty_store.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/manual_clock.h"
#include "storage/conformance.h"
#include "storage/memory/memory_store.h"

namespace cairn {
namespace {

constexpr std::uint64_t kNoLimit = std::uint64_t{1} << 40;

std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

StoreFactory Factory(std::string name, MemoryStore::Options options) {
  return {.name = std::move(name), .make = [options] {
            struct Ground {
              std::unique_ptr<MemoryStore> memory;
            };
            auto ground = std::make_shared<Ground>();
            ground->memory = *MemoryStore::Open(options);
            StoreUnderTest under_test;
            under_test.ground = ground;
            // Two faulty stores on one memory store are two wrappers around it.
            under_test.open = [ground]() -> Result<std::unique_ptr<Store>> {
              return std::unique_ptr<Store>(std::make_unique<FaultyStore>(ground->memory.get()));
            };
            under_test.plant = [ground](const std::string& name) {
              ground->memory->Plant(name, "x");
            };
            return under_test;
          }};
}

// Unarmed, it is as good as what it wraps.
INSTANTIATE_TEST_SUITE_P(Faulty, StoreConformance,
                         ::testing::Values(Factory("object_store", {.object_store = true}),
                                           Factory("plain", {.object_store = false})),
                         StoreConformance::Name);

class FaultyStoreTest : public ::testing::Test {
 protected:
  std::unique_ptr<MemoryStore> memory_ = *MemoryStore::Open({.part_bytes = 4096});
  FaultyStore store_{memory_.get()};
};

TEST_F(FaultyStoreTest, CountsOperationsByKind) {
  ASSERT_TRUE(store_.Put("a", "x").ok());
  ASSERT_TRUE(store_.Get("a", 10).ok());
  ASSERT_TRUE(store_.Get("a", 10).ok());
  auto session = *store_.NewWriteSession(WriteMode::kAuto);
  const std::uint32_t object = *session->Open("b", {.bytes = 1});
  ASSERT_TRUE(session->Append(object, Bytes("b"), false, 1).ok());
  ASSERT_TRUE(session->Close(object).ok());
  ASSERT_TRUE(session->Drain().ok());
  EXPECT_EQ(store_.operations(), 7u);
  EXPECT_EQ(store_.operations(StoreOp::Kind::kGet), 2u);
  EXPECT_EQ(store_.operations(StoreOp::Kind::kAppend), 1u);
}

TEST_F(FaultyStoreTest, FailsBeforeTheOperation) {
  store_.Arm({.status = UnavailableError("no route"), .trigger = {.at = 1}});
  EXPECT_TRUE(store_.Put("a", "1").ok());
  EXPECT_EQ(store_.Put("a", "2").code(), Code::kUnavailable);
  EXPECT_EQ(*memory_->Get("a", kNoLimit), "1");
  EXPECT_TRUE(store_.Put("a", "3").ok());
  EXPECT_EQ(store_.failures(), 1u);
}

TEST_F(FaultyStoreTest, LosesTheAnswerOfACreateThatWentThrough) {
  store_.Arm({.status = UnavailableError("connection reset"),
              .when = StoreFault::When::kAfter,
              .trigger = {.at = 0, .kind = StoreOp::Kind::kCreate}});
  EXPECT_EQ(store_.Create("a", "mine").code(), Code::kUnavailable);
  EXPECT_EQ(store_.Create("a", "mine").code(), Code::kAlreadyExists);
  EXPECT_EQ(*store_.Get("a", kNoLimit), "mine");
}

TEST_F(FaultyStoreTest, FailsFromThenOnUntilDisarmed) {
  store_.Arm({.status = UnavailableError("gone"),
              .trigger = {.at = 0, .kind = StoreOp::Kind::kList, .from_then_on = true}});
  EXPECT_EQ(store_.List("").status().code(), Code::kUnavailable);
  EXPECT_EQ(store_.List("").status().code(), Code::kUnavailable);
  EXPECT_TRUE(store_.Put("a", "x").ok());
  store_.Disarm();
  EXPECT_TRUE(store_.List("").ok());
}

TEST_F(FaultyStoreTest, CondemnsTheSessionItHits) {
  for (const auto when : {StoreFault::When::kBefore, StoreFault::When::kAfter}) {
    auto session = *store_.NewWriteSession(WriteMode::kAuto);
    const std::uint32_t object = *session->Open("a", {.bytes = 3});
    store_.Arm({.status = ResourceExhaustedError("full"),
                .when = when,
                .trigger = {.at = 0, .kind = StoreOp::Kind::kAppend}});
    {
      const std::string part = "abc";
      EXPECT_EQ(session->Append(object, Bytes(part), false, 1).code(), Code::kResourceExhausted);
    }
    EXPECT_EQ(session->Close(object).code(), Code::kResourceExhausted);
    EXPECT_EQ(session->Drain().code(), Code::kResourceExhausted);
    EXPECT_EQ(session->part_bytes(), 4096u);
    EXPECT_FALSE(memory_->Stat("a").ok());
  }
}

TEST_F(FaultyStoreTest, LosesTheAnswerOfADrain) {
  auto session = *store_.NewWriteSession(WriteMode::kAuto);
  const std::uint32_t object = *session->Open("a", {.bytes = 0});
  ASSERT_TRUE(session->Close(object).ok());
  store_.Arm({.status = UnavailableError("reset"),
              .when = StoreFault::When::kAfter,
              .trigger = {.at = 0, .kind = StoreOp::Kind::kDrain}});
  EXPECT_FALSE(session->Drain().ok());
  EXPECT_TRUE(memory_->Stat("a").ok());
}

TEST_F(FaultyStoreTest, QueueReportsFailuresInTheCompletion) {
  ASSERT_TRUE(store_.Put("a", "x").ok());
  auto reader = *store_.OpenReader("a");
  auto queue = *store_.NewReadQueue(1);
  store_.Arm({.status = CorruptionError("bits"), .trigger = {.at = 0}});
  std::byte byte{};
  ASSERT_TRUE(queue->Submit(reader.get(), 0, {&byte, 1}, 5).ok());
  EXPECT_EQ(queue->in_flight(), 1);
  auto done = queue->Wait();
  ASSERT_TRUE(done.ok());
  EXPECT_EQ(done->tag, 5u);
  EXPECT_EQ(done->status.code(), Code::kCorruption);
}

TEST_F(FaultyStoreTest, DelaysThroughTheClock) {
  ManualClock clock;
  const Clock::Duration began = clock.Now();
  store_.SetDelay(&clock, [](StoreOp::Kind) { return std::chrono::milliseconds(10); });
  ASSERT_TRUE(store_.Put("a", "x").ok());
  ASSERT_TRUE(store_.Stat("a").ok());
  EXPECT_EQ(clock.Now() - began, std::chrono::milliseconds(20));
}

}  // namespace
}  // namespace cairn
