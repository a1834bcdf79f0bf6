#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <thread>

#include "format/half_float.h"
#include "table/hashing.h"
#include "table/test_table.h"

namespace cairn::table {
namespace {

std::vector<float> Get(Table* table, std::vector<std::int64_t> ids,
                       Missing missing = Missing::kInitial) {
  std::vector<float> out(ids.size() * table->options().dim);
  const Status found = table->Lookup(ids, out, missing);
  EXPECT_TRUE(found.ok()) << found.ToString();
  return out;
}

TEST(Table, RefusesOptionsThatMakeNoSenseAndNamesThem) {
  const auto refused = [](auto change) {
    TableOptions options = SmallOptions();
    change(&options);
    const Status status = Table::Make(std::move(options)).status();
    EXPECT_TRUE(status.Is(Code::kInvalidArgument)) << status.ToString();
    return std::string(status.message());
  };
  EXPECT_THAT(refused([](auto* o) { o->name = ""; }), testing::HasSubstr("name"));
  EXPECT_THAT(refused([](auto* o) { o->name = "a\nb"; }), testing::HasSubstr("control"));
  EXPECT_THAT(refused([](auto* o) { o->dim = 0; }), testing::HasSubstr("65536"));
  EXPECT_THAT(refused([](auto* o) { o->dim = 70000; }), testing::HasSubstr("70000"));
  EXPECT_THAT(refused([](auto* o) { o->dtype = DType::kI32; }), testing::HasSubstr("I32"));
  EXPECT_THAT(refused([](auto* o) { o->optimizer = nullptr; }), testing::HasSubstr("optimizer"));
  EXPECT_THAT(refused([](auto* o) { o->initializer = nullptr; }),
              testing::HasSubstr("initializer"));
  EXPECT_THAT(refused([](auto* o) { o->admission = AdmissionOptions{0}; }),
              testing::HasSubstr("admission"));
  EXPECT_THAT(refused([](auto* o) { o->shards = {5, 5}; }), testing::HasSubstr("[5, 5)"));
  EXPECT_THAT(refused([](auto* o) { o->eviction = EvictionOptions{.steps_to_live = -1}; }),
              testing::HasSubstr("steps_to_live"));
  EXPECT_THAT(refused([](auto* o) { o->eviction = EvictionOptions{.min_l2_norm = NAN}; }),
              testing::HasSubstr("min_l2_norm"));
}

TEST(Table, MakesARowOnFirstTouchAndOnlyThen) {
  auto table = SmallTable();
  const std::vector<float> before = Get(table.get(), {7});
  EXPECT_EQ(table->size(), 0u);
  EXPECT_EQ(Get(table.get(), {7, 8}, Missing::kCreate), Get(table.get(), {7, 8}));
  EXPECT_EQ(table->size(), 2u);
  EXPECT_EQ(Get(table.get(), {7}), before);
}

TEST(Table, TakesKeysOfTheWholeRange) {
  auto table = SmallTable();
  const std::vector<std::int64_t> ids = {0,
                                         -1,
                                         1,
                                         std::numeric_limits<std::int64_t>::min(),
                                         std::numeric_limits<std::int64_t>::max(),
                                         std::int64_t{1} << 40};
  Push(table.get(), ids);
  EXPECT_EQ(table->size(), ids.size());
  for (const auto& [key, row] : RowsOf(table.get())) EXPECT_EQ(row.frequency, 1u) << key;
}

TEST(Table, SumsGradientsOfADuplicatedIdInOrderBeforeApplying) {
  auto options = SmallOptions(1);
  auto table = SmallTable(options);
  auto reference = SmallTable(options);
  // In another order, or applied one by one, the result has other bits.
  const std::vector<float> gradients = {1e8F, 3.0F, -1e8F, 1.0F, 0.25F};
  ASSERT_TRUE(table->ApplyGradients(std::vector<std::int64_t>{4, 9, 4, 4, 9}, gradients).ok());
  const float sum4 = (1e8F + -1e8F) + 1.0F;
  const float sum9 = 3.0F + 0.25F;
  ASSERT_TRUE(
      reference->ApplyGradients(std::vector<std::int64_t>{4, 9}, std::vector<float>{sum4, sum9})
          .ok());
  EXPECT_EQ(Get(table.get(), {4, 9}), Get(reference.get(), {4, 9}));
  EXPECT_EQ(RowsOf(table.get())[4].frequency, 3u);
}

TEST(Table, GivesTheSameBitsForTheSameCalls) {
  const auto run = [] {
    auto table = SmallTable();
    std::mt19937_64 random(3);
    for (int batch = 0; batch < 50; ++batch) {
      std::vector<std::int64_t> ids(200);
      for (auto& id : ids) id = static_cast<std::int64_t>(random() % 500);
      std::vector<float> gradients(ids.size() * 4);
      for (auto& g : gradients) g = static_cast<float>(random() % 1000) / 777.0F - 0.5F;
      table->set_step(batch);
      EXPECT_TRUE(table->ApplyGradients(ids, gradients).ok());
    }
    return RowsOf(table.get());
  };
  EXPECT_EQ(run(), run());
}

TEST(Table, InitialValuesDependOnSeedNameAndKeyAlone) {
  auto options = SmallOptions();
  auto table = SmallTable(options);
  Push(table.get(), Range(100, 200));
  auto other = SmallTable(options);
  EXPECT_EQ(Get(table.get(), {7}), Get(other.get(), {7}));
  options.seed = 6;
  EXPECT_NE(Get(SmallTable(options).get(), {7}), Get(other.get(), {7}));
  options.seed = 5;
  options.name = "u";
  EXPECT_NE(Get(SmallTable(options).get(), {7}), Get(other.get(), {7}));
}

TEST(Table, RefusesBatchesOfTheWrongSize) {
  auto table = SmallTable();
  const std::vector<std::int64_t> ids = {1, 2};
  std::vector<float> seven(7);
  EXPECT_TRUE(table->Lookup(ids, seven).Is(Code::kInvalidArgument));
  EXPECT_TRUE(table->ApplyGradients(ids, seven).Is(Code::kInvalidArgument));
  EXPECT_TRUE(table->Assign(ids, seven).Is(Code::kInvalidArgument));
  EXPECT_EQ(table->size(), 0u);
}

TEST(Table, AssignsWeightsAndTheLastOfADuplicatedIdCounts) {
  auto table = SmallTable(SmallOptions(1));
  ASSERT_TRUE(table->Assign(std::vector<std::int64_t>{3, 4, 3}, std::vector<float>{1, 2, 5}).ok());
  EXPECT_EQ(Get(table.get(), {3, 4}), (std::vector<float>{5, 2}));
}

TEST(Table, ErasedRowsBeginAnew) {
  auto table = SmallTable();
  const auto initial = Get(table.get(), {3});
  Push(table.get(), {3, 4});
  EXPECT_EQ(table->Erase(std::vector<std::int64_t>{3, 3, 99}).value(), 1u);
  EXPECT_EQ(table->size(), 1u);
  EXPECT_EQ(Get(table.get(), {3}), initial);
}

TEST(Table, AdmitsAKeyAfterItsCountOfLookups) {
  auto options = SmallOptions();
  options.admission = AdmissionOptions{3};
  auto table = SmallTable(options);
  const auto initial = Get(table.get(), {3});
  EXPECT_EQ(Get(table.get(), {3}, Missing::kCreate), initial);
  Push(table.get(), {3});  // ignored: not admitted
  EXPECT_EQ(table->size(), 0u);
  EXPECT_EQ(table->pending_size(), 1u);
  Get(table.get(), {3, 3}, Missing::kCreate);
  EXPECT_EQ(table->size(), 1u);
  EXPECT_EQ(table->pending_size(), 0u);
  EXPECT_EQ(Get(table.get(), {3}), initial);
  Push(table.get(), {3});
  EXPECT_NE(Get(table.get(), {3}), initial);
}

TEST(Table, EvictsRowsThatWereNotUsedForLong) {
  auto options = SmallOptions();
  options.eviction = EvictionOptions{.steps_to_live = 10};
  options.admission = AdmissionOptions{2};
  auto table = SmallTable(options);
  table->set_step(1);
  Get(table.get(), {1, 1, 2, 2, 3}, Missing::kCreate);
  table->set_step(8);
  Push(table.get(), {2});
  const EvictReport report = table->Evict(12).value();
  EXPECT_EQ(report.rows, 1u);
  EXPECT_EQ(report.pending, 1u);
  EXPECT_EQ(RowsOf(table.get()).begin()->first, 2);
}

TEST(Table, EvictsShortRows) {
  auto options = SmallOptions(2);
  options.eviction = EvictionOptions{.min_l2_norm = 1.0F};
  auto table = SmallTable(options);
  ASSERT_TRUE(
      table->Assign(std::vector<std::int64_t>{1, 2}, std::vector<float>{0.6F, 0.7F, 0.8F, 0.7F})
          .ok());
  EXPECT_EQ(table->Evict(0).value().rows, 1u);
  EXPECT_EQ(RowsOf(table.get()).begin()->first, 2);
}

TEST(Table, RefusesToEvictWithoutARule) {
  EXPECT_TRUE(SmallTable()->Evict(1).status().Is(Code::kFailedPrecondition));
}

TEST(Table, APartRefusesKeysOfOtherShards) {
  auto options = SmallOptions();
  options.shards = {0, 512};
  auto table = SmallTable(options);
  std::int64_t inside = 0;
  while (ShardOf(inside) >= 512) ++inside;
  std::int64_t outside = 0;
  while (ShardOf(outside) < 512) ++outside;
  Push(table.get(), {inside});
  std::vector<float> out(4);
  const Status refused = table->Lookup(std::vector<std::int64_t>{outside}, out);
  EXPECT_TRUE(refused.Is(Code::kInvalidArgument));
  EXPECT_THAT(std::string(refused.message()), testing::HasSubstr("[0, 512)"));
}

TEST(Table, SixteenBitRowsRoundToNearest) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    auto options = SmallOptions(2);
    options.dtype = dtype;
    options.optimizer = MakeSgd({.learning_rate = 1}).value();
    auto table = SmallTable(options);
    ASSERT_TRUE(table->Assign(std::vector<std::int64_t>{1}, std::vector<float>{1.0F / 3, -2}).ok());
    const auto round = [&](float x) {
      return dtype == DType::kF16 ? FromFloat16(ToFloat16(x)) : FromBFloat16(ToBFloat16(x));
    };
    EXPECT_EQ(Get(table.get(), {1}), (std::vector<float>{round(1.0F / 3), -2}));
    Push(table.get(), {1}, 0.125F);
    EXPECT_EQ(Get(table.get(), {1}),
              (std::vector<float>{round(round(1.0F / 3) - 0.125F), -2.125F}));
  }
}

TEST(Table, ThreadsTogetherLoseNoUpdate) {
  auto options = SmallOptions(1);
  options.optimizer = MakeSgd({.learning_rate = 1}).value();
  options.initializer = MakeConstant(0).value();
  auto table = SmallTable(options);
  constexpr int kThreads = 4;
  constexpr int kBatches = 200;
  std::vector<std::jthread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(static_cast<std::uint64_t>(t));
      for (int b = 0; b < kBatches; ++b) {
        auto ids = Range(0, 300);
        std::shuffle(ids.begin(), ids.end(), random);
        Push(table.get(), ids, -1);
      }
    });
  }
  threads.clear();
  for (const auto& [key, row] : RowsOf(table.get())) {
    EXPECT_EQ(row.weights[0], kThreads * kBatches) << key;
    EXPECT_EQ(row.frequency, std::uint64_t{kThreads * kBatches});
  }
}

TEST(Table, KeepsItsOverheadSmall) {
  auto table = SmallTable(SmallOptions(16));
  constexpr std::int64_t kRows = 200'000;
  for (std::int64_t first = 0; first < kRows; first += 4096) {
    Push(table.get(), Range(first, std::min(kRows, first + 4096)));
  }
  const double per_row = static_cast<double>(table->memory().total()) / kRows;
  EXPECT_LT(per_row - (16 + 16) * 4 - 8 - 8 - 4, 48);
}

TEST(Table, ClearEmptiesItAndItWorksOn) {
  auto table = SmallTable();
  Push(table.get(), Range(0, 5000));
  ASSERT_TRUE(table->Clear().ok());
  EXPECT_EQ(table->size(), 0u);
  EXPECT_FALSE(table->has_base());
  Push(table.get(), Range(0, 10));
  EXPECT_EQ(RowsOf(table.get()).size(), 10u);
}

TEST(Table, MayBeClearedWhileItIsEvictedFrom) {
  auto options = SmallOptions();
  options.eviction = EvictionOptions{.steps_to_live = 1};
  options.admission = AdmissionOptions{2};
  auto table = SmallTable(options);
  std::jthread evicter([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) EXPECT_TRUE(table->Evict(10).ok());
  });
  for (int i = 0; i < 50; ++i) {
    Get(table.get(), Range(0, 3000), Missing::kCreate);
    Get(table.get(), Range(0, 1500), Missing::kCreate);
    EXPECT_TRUE(table->Clear().ok());
  }
}

TEST(Sharding, IsFixedByTheFormat) {
  // docs/format/tables.md: these never change.
  EXPECT_EQ(TableShardOf(0), 904u);
  EXPECT_EQ(TableShardOf(1), 580u);
  EXPECT_EQ(TableShardOf(-1), 915u);
  EXPECT_EQ(TableShardOf(1234567890123), 616u);
}

TEST(Sharding, SpreadsKeysEvenly) {
  std::vector<int> counts(kTableShards);
  for (std::int64_t key = 0; key < 1024 * 100; ++key) ++counts[TableShardOf(key)];
  for (const int count : counts) {
    EXPECT_GT(count, 50);
    EXPECT_LT(count, 150);
  }
}

}  // namespace
}  // namespace cairn::table
