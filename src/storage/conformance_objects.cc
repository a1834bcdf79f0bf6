// Whole objects: put, created, got, looked at, deleted.
#include <gmock/gmock.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "storage/conformance.h"
#include "storage/conformance_checks.h"

namespace cairn {
namespace {

using ::testing::SizeIs;

}  // namespace

TEST_P(StoreConformance, PutStoresAnyBytes) {
  std::string every;
  for (int i = 0; i < 256; ++i) every.push_back(static_cast<char>(i));
  for (const std::string& bytes :
       {std::string(), std::string("x"), every, Pattern((1u << 20) + 1, 1)}) {
    ASSERT_OK(store().Put("a/object", bytes));
    Result<std::string> got = store().Get("a/object", kNoLimit);
    ASSERT_HAS(got);
    EXPECT_TRUE(*got == bytes) << bytes.size() << " bytes";
    EXPECT_EQ(store().Stat("a/object")->bytes, bytes.size());
  }
}

TEST_P(StoreConformance, PutReplaces) {
  ASSERT_OK(store().Put("a", "a longer first text"));
  ASSERT_OK(store().Put("a", "second"));
  EXPECT_EQ(*store().Get("a", kNoLimit), "second");
  EXPECT_THAT(store().List("")->objects, SizeIs(1));
}

TEST_P(StoreConformance, OtherStoreObjectsSeeWhatWasPut) {
  auto other = OpenAnother();
  ASSERT_OK(store().Put("d/a", "x"));
  EXPECT_EQ(*other->Get("d/a", kNoLimit), "x");
  ASSERT_OK(other->Put("d/a", "y"));
  EXPECT_EQ(*store().Get("d/a", kNoLimit), "y");
  ASSERT_OK(other->Delete("d/a"));
  EXPECT_EQ(CodeOf(store().Get("d/a", kNoLimit)), Code::kNotFound);
}

TEST_P(StoreConformance, ReadersOfAPutSeeOldOrNewAndNeverAMixture) {
  const std::array<std::string, 2> texts = {std::string(100'000, 'a'), std::string(70'000, 'b')};
  ASSERT_OK(store().Put("a", texts[0]));
  std::atomic<bool> stop = false;
  std::jthread writer([&] {
    for (int i = 0; i < 20; ++i) EXPECT_OK(store().Put("a", texts[i % 2]));
    stop = true;
  });
  while (!stop) {
    Result<std::string> got = store().Get("a", kNoLimit);
    ASSERT_HAS(got);
    ASSERT_TRUE(*got == texts[0] || *got == texts[1]);
  }
}

TEST_P(StoreConformance, CreateNeverReplaces) {
  ASSERT_OK(store().Create("d/a", "first"));
  EXPECT_EQ(store().Create("d/a", "second").code(), Code::kAlreadyExists);
  EXPECT_EQ(*store().Get("d/a", kNoLimit), "first");
  ASSERT_OK(store().Put("d/b", "put"));
  EXPECT_EQ(store().Create("d/b", "second").code(), Code::kAlreadyExists);
  EXPECT_EQ(OpenAnother()->Create("d/a", "third").code(), Code::kAlreadyExists);
  ASSERT_OK(store().Delete("d/a"));
  EXPECT_OK(store().Create("d/a", "again"));
  EXPECT_EQ(*store().Get("d/a", kNoLimit), "again");
}

TEST_P(StoreConformance, CreateVolatileNeverReplacesEither) {
  constexpr AfterCrash kAnything = AfterCrash::kAnything;
  constexpr AfterCrash kWhole = AfterCrash::kWholeOrNothing;
  ASSERT_OK(store().CreateVolatile("d/a", "first", kAnything));
  EXPECT_EQ(*OpenAnother()->Get("d/a", kNoLimit), "first");
  EXPECT_EQ(store().CreateVolatile("d/a", "second", kAnything).code(), Code::kAlreadyExists);
  EXPECT_EQ(OpenAnother()->Create("d/a", "third").code(), Code::kAlreadyExists);
  ASSERT_OK(store().Create("d/b", "durable"));
  EXPECT_EQ(store().CreateVolatile("d/b", "second", kWhole).code(), Code::kAlreadyExists);
  EXPECT_EQ(*store().Get("d/a", kNoLimit), "first");
  EXPECT_EQ(store().CreateVolatile("d/../b", "x", kWhole).code(), Code::kInvalidArgument);
}

TEST_P(StoreConformance, CreateStoresEmptyAndLargeObjects) {
  ASSERT_OK(store().Create("empty", ""));
  EXPECT_EQ(*store().Get("empty", kNoLimit), "");
  EXPECT_EQ(store().Create("empty", "x").code(), Code::kAlreadyExists);
  const std::string large = Pattern(3'000'001, 2);
  ASSERT_OK(store().Create("large", large));
  EXPECT_TRUE(*store().Get("large", kNoLimit) == large);
}

TEST_P(StoreConformance, OneOfManyConcurrentCreatorsWins) {
  if (!store().traits().create_only) GTEST_SKIP() << "no create-only puts";
  for (int round = 0; round < 5; ++round) {
    const std::string name = "race/" + std::to_string(round) + "/record.json";
    std::vector<std::unique_ptr<Store>> stores;
    stores.reserve(kThreads / 2);
    for (int i = 0; i < kThreads / 2; ++i) stores.push_back(OpenAnother());
    std::atomic<int> winners = 0;
    std::atomic<int> winner = -1;
    RunInThreads(kThreads, [&](int i) {
      // Half of them share a Store object, the other half have one each.
      Store& mine = i < kThreads / 2 ? store() : *stores[static_cast<std::size_t>(i) / 2];
      const Status created = mine.Create(name, "by " + std::to_string(i));
      if (created.ok()) {
        ++winners;
        winner = i;
      } else {
        EXPECT_EQ(created.code(), Code::kAlreadyExists) << created.ToString();
      }
    });
    ASSERT_EQ(winners, 1);
    EXPECT_EQ(*store().Get(name, kNoLimit), "by " + std::to_string(winner));
    EXPECT_THAT(store().List("race/" + std::to_string(round))->objects, SizeIs(1));
  }
}

TEST_P(StoreConformance, CreatesUnderNewPrefixesWhileOthersPrune) {
  std::atomic<int> left = 4;
  std::jthread pruner([&] {
    while (left > 0) EXPECT_OK(store().PruneDirectories("deep"));
  });
  RunInThreads(4, [&](int t) {
    auto mine = OpenAnother();
    for (int i = 0; i < 10; ++i) {
      const std::string name = "deep/" + std::to_string(i) + "/x/" + std::to_string(t);
      EXPECT_OK(mine->Create(name, "x"));
      EXPECT_OK(mine->Delete(name));
    }
    --left;
  });
}

TEST_P(StoreConformance, GetRefusesMoreThanItsLimit) {
  ASSERT_OK(store().Put("a", "12345"));
  EXPECT_EQ(*store().Get("a", 5), "12345");
  EXPECT_EQ(CodeOf(store().Get("a", 4)), Code::kResourceExhausted);
  EXPECT_EQ(CodeOf(store().Get("a", 0)), Code::kResourceExhausted);
  ASSERT_OK(store().Put("empty", ""));
  EXPECT_EQ(*store().Get("empty", 0), "");
}

TEST_P(StoreConformance, WhatIsNotThereIsNotFound) {
  ASSERT_OK(store().Put("d/a", "x"));
  for (const std::string name : {"missing", "missing/b", "d/missing", "d/a/b"}) {
    SCOPED_TRACE(name);
    EXPECT_EQ(CodeOf(store().Get(name, kNoLimit)), Code::kNotFound);
    EXPECT_EQ(CodeOf(store().Stat(name)), Code::kNotFound);
    EXPECT_EQ(CodeOf(store().OpenReader(name)), Code::kNotFound);
    EXPECT_EQ(CodeOf(store().LinkCount(name)), Code::kNotFound);
    EXPECT_EQ(store().Delete(name).code(), Code::kNotFound);
  }
}

TEST_P(StoreConformance, PrefixIsNoObject) {
  ASSERT_OK(store().Put("d/e/a", "x"));
  for (const std::string name : {"d", "d/e"}) {
    SCOPED_TRACE(name);
    EXPECT_EQ(CodeOf(store().Get(name, kNoLimit)), Code::kNotFound);
    EXPECT_EQ(CodeOf(store().Stat(name)), Code::kNotFound);
    EXPECT_EQ(CodeOf(store().OpenReader(name)), Code::kNotFound);
    EXPECT_EQ(store().Delete(name).code(), Code::kNotFound);
  }
  EXPECT_EQ(*store().Get("d/e/a", kNoLimit), "x");
}

TEST_P(StoreConformance, StatTellsNameAndSize) {
  ASSERT_OK(store().Put("d/a", "12345"));
  Result<ObjectInfo> info = store().Stat("d/a");
  ASSERT_HAS(info);
  EXPECT_EQ(info->name, "d/a");
  EXPECT_EQ(info->bytes, 5u);
}

TEST_P(StoreConformance, DeleteRemovesOneObject) {
  ASSERT_OK(store().Put("d/a", "x"));
  ASSERT_OK(store().Put("d/ab", "y"));
  ASSERT_OK(store().Delete("d/a"));
  EXPECT_EQ(CodeOf(store().Get("d/a", kNoLimit)), Code::kNotFound);
  EXPECT_EQ(store().Delete("d/a").code(), Code::kNotFound);
  EXPECT_EQ(*store().Get("d/ab", kNoLimit), "y");
  EXPECT_OK(store().SyncNames("d", "conformance"));
}

}  // namespace cairn
