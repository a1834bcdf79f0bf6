#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "table/hashing.h"
#include "table/row_layout.h"
#include "table/test_table.h"

namespace cairn::table {
namespace {

std::vector<std::int64_t> Sorted(std::vector<std::int64_t> keys) {
  std::sort(keys.begin(), keys.end());
  return keys;
}

TEST(TableCut, AFullHoldsEveryRowAndRestoresIt) {
  auto table = SmallTable();
  Push(table.get(), Range(-2000, 3000));
  const Rows rows = RowsOf(table.get());
  const StoredTable full = SaveCut(table.get(), CutKind::kFull);
  EXPECT_EQ(full.rows, 5000u);
  EXPECT_EQ(RowsOf(Loaded({{full}}).get()), rows);
}

TEST(TableCut, AnEmptyTableCanBeCut) {
  auto table = SmallTable();
  const StoredTable full = SaveCut(table.get(), CutKind::kFull);
  EXPECT_EQ(full.rows, 0u);
  EXPECT_EQ(Loaded({{full}})->size(), 0u);
}

TEST(TableCut, RowsChangedAfterTheCutAreSavedAsTheyWere) {
  auto table = SmallTable();
  Push(table.get(), Range(0, 2000));
  const Rows rows = RowsOf(table.get());
  auto cut = CutOf(table.get(), CutKind::kFull);
  Push(table.get(), Range(500, 2500), 0.7F);
  ASSERT_TRUE(table->Erase(Range(0, 100)).ok());
  Push(table.get(), Range(50, 60));  // new rows in old places
  Push(table.get(), Range(9000, 9100));
  EXPECT_EQ(RowsOf(Loaded({{ReadCut(cut.get())}}).get()), rows);
}

TEST(TableCut, RowsChangedWhileColumnsAreReadAreOfOneInstant) {
  auto table = SmallTable();
  Push(table.get(), Range(0, 1000));
  const Rows rows = RowsOf(table.get());
  auto cut = CutOf(table.get(), CutKind::kFull);
  StoredTable stored;
  stored.kind = CutKind::kFull;
  stored.rows = cut->summary().rows;
  float g = 0.1F;
  for (const Tensor& tensor : cut->Tensors()) {
    const std::string name = tensor.name.substr(2);
    std::uint64_t size = static_cast<std::uint64_t>(DTypeBits(tensor.dtype)) / 8;
    for (const std::uint64_t d : tensor.shape) size *= d;
    std::vector<std::byte> bytes(size);
    if (tensor.source == nullptr) std::memcpy(bytes.data(), tensor.data, size);
    for (std::uint64_t at = 0; tensor.source != nullptr && at < size; at += 999) {
      Push(table.get(), Range(static_cast<std::int64_t>(at % 700), 1000), g += 0.1F);
      ASSERT_TRUE(
          tensor.source
              ->Fill(at, std::span(bytes).subspan(at, std::min<std::uint64_t>(999, size - at)))
              .ok());
    }
    stored.columns.push_back({name, tensor.dtype, tensor.shape});
    stored.bytes[name] = std::move(bytes);
  }
  EXPECT_EQ(RowsOf(Loaded({{stored}}).get()), rows);
  EXPECT_EQ(table->memory().side_buffer, 0u) << "everything was read";
}

/// Many rows for each of a few shards, so that a shard is often read in several pieces.
std::vector<std::int64_t> KeysOfFewShards(std::size_t count) {
  std::vector<std::int64_t> keys;
  for (std::int64_t key = 0; keys.size() < count; ++key) {
    if (ShardOf(key) % 256 == 7) keys.push_back(key);
  }
  return keys;
}

/// `side_bytes`: how many of an increment's shards are gathered.
void ExpectIncrementOfOneInstant(CutKind kind, std::uint64_t side_bytes, std::uint64_t seed) {
  SCOPED_TRACE(testing::Message() << "cumulative " << (kind == CutKind::kCumulative) << ", side "
                                  << side_bytes << ", seed " << seed);
  TableOptions options = SmallOptions();
  options.side_buffer_bytes = side_bytes;
  auto table = SmallTable(options);
  const std::vector<std::int64_t> keys = KeysOfFewShards(8'000);
  const auto some = [&](std::size_t first, std::size_t last) {
    return std::vector<std::int64_t>(keys.begin() + static_cast<std::ptrdiff_t>(first),
                                     keys.begin() + static_cast<std::ptrdiff_t>(last));
  };
  Push(table.get(), some(0, 6'000));
  std::vector<std::vector<StoredTable>> chain{{SaveCut(table.get(), CutKind::kFull)}};
  Push(table.get(), some(0, 2'000));  // durable since the base
  const StoredTable earlier = SaveCut(table.get(), CutKind::kConsecutive);
  if (kind == CutKind::kConsecutive) chain.push_back({earlier});
  Push(table.get(), some(1'000, 3'000));  // not durable: that save fails
  CutOf(table.get(), CutKind::kConsecutive)->Failed();
  Push(table.get(), some(2'500, 5'000));
  ASSERT_TRUE(table->Erase(some(2'700, 2'900)).ok());
  Rows rows = RowsOf(table.get());

  std::mt19937_64 random(seed);
  auto cut = CutOf(table.get(), kind);
  const StoredTable stored = ReadCut(cut.get(), seed, [&] {
    const std::size_t at = random() % 5'900;
    Push(table.get(), some(at, at + 4), 0.25F);
    ASSERT_TRUE(table->Erase(some(at + 2, at + 6)).ok());
    const std::size_t fresh = 6'000 + random() % 1'900;
    Push(table.get(), some(fresh, fresh + 2));  // new rows in old places
  });
  chain.push_back({stored});
  EXPECT_EQ(RowsOf(Loaded(chain).get()), rows);
  EXPECT_EQ(table->memory().side_buffer, 0u) << "everything was read";
  cut->Committed();
  rows = RowsOf(table.get());
  chain.push_back({SaveCut(table.get(), CutKind::kConsecutive)});
  EXPECT_EQ(RowsOf(Loaded(chain).get()), rows) << "what changed meanwhile is in the next one";
}

TEST(TableCut, AnIncrementWhoseRowsChangeWhileItIsReadIsOfOneInstant) {
  for (const CutKind kind : {CutKind::kCumulative, CutKind::kConsecutive}) {
    // All shards are gathered, or some.
    for (const std::uint64_t side_bytes : {512u << 20, 128u << 10}) {
      for (std::uint64_t seed = 0; seed < 10; ++seed) {
        ExpectIncrementOfOneInstant(kind, side_bytes, seed);
      }
    }
  }
}

TEST(Trap, TheFirstIncrementAfterStartHasItsRows) {
  auto table = SmallTable();
  Push(table.get(), Range(0, 100));
  const StoredTable full = SaveCut(table.get(), CutKind::kFull);
  Push(table.get(), {5, 7, 200});
  const Rows rows = RowsOf(table.get());
  const StoredTable increment = SaveCut(table.get(), CutKind::kCumulative);
  EXPECT_EQ(Sorted(increment.Keys()), (std::vector<std::int64_t>{5, 7, 200}));
  EXPECT_EQ(RowsOf(Loaded({{full}, {increment}}).get()), rows);
}

TEST(Trap, TheFirstIncrementAfterARestoreHasItsRows) {
  auto table = SmallTable();
  Push(table.get(), Range(0, 100));
  const StoredTable full = SaveCut(table.get(), CutKind::kFull);
  Push(table.get(), {5, 7});
  const StoredTable increment = SaveCut(table.get(), CutKind::kConsecutive);

  auto restored = Loaded({{full}, {increment}});
  EXPECT_TRUE(restored->has_base());
  Push(restored.get(), {9});
  const auto cumulative = CutOf(restored.get(), CutKind::kCumulative);
  EXPECT_EQ(Sorted(ReadCut(cumulative.get()).Keys()), (std::vector<std::int64_t>{5, 7, 9}));
  cumulative->Failed();
  const StoredTable consecutive = SaveCut(restored.get(), CutKind::kConsecutive);
  EXPECT_EQ(consecutive.Keys(), (std::vector<std::int64_t>{9}));
  EXPECT_EQ(RowsOf(Loaded({{full}, {increment}, {consecutive}}).get()), RowsOf(restored.get()));
}

TEST(Trap, ARowUpdatedBetweenDumpAndReleaseIsInTheNextIncrement) {
  auto table = SmallTable();
  Push(table.get(), Range(0, 100));
  SaveCut(table.get(), CutKind::kFull);
  for (const CutKind kind : {CutKind::kCumulative, CutKind::kConsecutive}) {
    Push(table.get(), {1, 2});
    auto cut = CutOf(table.get(), kind);
    Push(table.get(), {3});  // after the cut, before it is read
    ReadCut(cut.get());
    Push(table.get(), {2, 4});  // after it was read, before it is released
    cut->Committed();
    const auto keys = Sorted(SaveCut(table.get(), CutKind::kConsecutive).Keys());
    EXPECT_EQ(keys, (std::vector<std::int64_t>{2, 3, 4}));
  }
}

TEST(Trap, AFailedCommitFollowedByAGoodOneLosesNothing) {
  for (const CutKind kind : {CutKind::kCumulative, CutKind::kConsecutive}) {
    auto table = SmallTable();
    Push(table.get(), Range(0, 100));
    const StoredTable full = SaveCut(table.get(), CutKind::kFull);
    Push(table.get(), {1, 2});
    {
      auto failed = CutOf(table.get(), kind);
      ReadCut(failed.get());
      Push(table.get(), {2, 3});
      failed->Failed();
    }
    {
      CutOf(table.get(), kind);
    }  // given up without being read: the same as failed
    Push(table.get(), {4});
    const Rows rows = RowsOf(table.get());
    const StoredTable good = SaveCut(table.get(), kind);
    EXPECT_EQ(Sorted(good.Keys()), (std::vector<std::int64_t>{1, 2, 3, 4}));
    EXPECT_EQ(RowsOf(Loaded({{full}, {good}}).get()), rows);
  }
}

TEST(Trap, AFailedFullLeavesTheOldBase) {
  auto table = SmallTable();
  Push(table.get(), Range(0, 10));
  const StoredTable full = SaveCut(table.get(), CutKind::kFull);
  Push(table.get(), {1});
  {
    auto failed = CutOf(table.get(), CutKind::kFull);
    Push(table.get(), {2});
  }
  Push(table.get(), {3});
  EXPECT_EQ(table->ChangedRows(CutKind::kCumulative), 3u);
  EXPECT_EQ(Sorted(SaveCut(table.get(), CutKind::kCumulative).Keys()),
            (std::vector<std::int64_t>{1, 2, 3}));
}

TEST(Trap, ACumulativeIncrementHasWhatEarlierOnesHad) {
  auto table = SmallTable();
  Push(table.get(), Range(0, 100));
  const StoredTable full = SaveCut(table.get(), CutKind::kFull);
  Push(table.get(), {1, 2});
  SaveCut(table.get(), CutKind::kCumulative);
  Push(table.get(), {2, 3});
  SaveCut(table.get(), CutKind::kConsecutive);
  Push(table.get(), {4});
  const StoredTable last = SaveCut(table.get(), CutKind::kCumulative);
  EXPECT_EQ(Sorted(last.Keys()), (std::vector<std::int64_t>{1, 2, 3, 4}));
  EXPECT_EQ(RowsOf(Loaded({{full}, {last}}).get()), RowsOf(table.get()));
}

TEST(Trap, WeightsAndSlotsOfARowAreOfTheSameInstant) {
  // SGD with momentum 0: the slot is the last gradient, the weight the sum of all; with gradients
  // of 1, and an optimizer that counts, both tell how often the row was updated.
  auto options = SmallOptions(1);
  options.optimizer = MakeAdam({.learning_rate = 0}).value();
  auto table = SmallTable(options);
  Push(table.get(), Range(0, 500));
  SaveCut(table.get(), CutKind::kFull);
  std::jthread updater([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) Push(table.get(), Range(0, 500), 1);
  });
  for (int i = 0; i < 20; ++i) {
    auto cut = CutOf(table.get(), CutKind::kCumulative);
    const StoredTable stored = ReadCut(cut.get(), static_cast<std::uint64_t>(i));
    cut->Committed();
    const auto updates = stored.Get<float>("slot/updates");
    const auto frequency = stored.Get<std::int64_t>("frequency");
    ASSERT_EQ(updates.size(), frequency.size());
    for (std::size_t r = 0; r < updates.size(); ++r) {
      ASSERT_EQ(static_cast<std::int64_t>(updates[r]), frequency[r]);
      ASSERT_EQ(frequency[r], frequency[0]) << "a batch spans the cut";
    }
  }
}

TEST(Trap, ADeletedRowDoesNotComeBack) {
  for (const CutKind kind : {CutKind::kCumulative, CutKind::kConsecutive}) {
    auto table = SmallTable();
    Push(table.get(), Range(0, 10));
    const StoredTable full = SaveCut(table.get(), CutKind::kFull);
    Push(table.get(), {1});
    ASSERT_TRUE(table->Erase(std::vector<std::int64_t>{1, 2, 3}).ok());
    Push(table.get(), {3});  // erased and made again: a row, not a tombstone
    const StoredTable first = SaveCut(table.get(), kind);
    EXPECT_EQ(Sorted(first.Get<std::int64_t>("deleted")), (std::vector<std::int64_t>{1, 2}));
    EXPECT_EQ(first.Keys(), (std::vector<std::int64_t>{3}));
    ASSERT_TRUE(table->Erase(std::vector<std::int64_t>{4}).ok());
    const StoredTable second = SaveCut(table.get(), kind);
    std::vector<std::vector<StoredTable>> chain = {{full}};
    if (kind == CutKind::kConsecutive) chain.push_back({first});
    chain.push_back({second});
    auto restored = Loaded(chain);
    EXPECT_EQ(RowsOf(restored.get()), RowsOf(table.get()));
    // Nor after further increments on top of the restored chain.
    Push(restored.get(), {9});
    chain.push_back({SaveCut(restored.get(), CutKind::kCumulative)});
    EXPECT_EQ(RowsOf(Loaded({{full}, chain.back()}).get()), RowsOf(restored.get()));
  }
}

TEST(Trap, TombstonesGoWithANewBase) {
  auto table = SmallTable();
  Push(table.get(), Range(0, 10));
  SaveCut(table.get(), CutKind::kFull);
  ASSERT_TRUE(table->Erase(std::vector<std::int64_t>{1, 2}).ok());
  auto full = CutOf(table.get(), CutKind::kFull);
  ASSERT_TRUE(table->Erase(std::vector<std::int64_t>{3}).ok());
  ReadCut(full.get());
  full->Committed();
  const StoredTable increment = SaveCut(table.get(), CutKind::kCumulative);
  EXPECT_EQ(increment.Get<std::int64_t>("deleted"), (std::vector<std::int64_t>{3}));
}

TEST(Trap, MemoryForTrackingIsBounded) {
  auto table = SmallTable();
  constexpr std::int64_t kRows = 2000;
  Push(table.get(), Range(0, kRows));
  SaveCut(table.get(), CutKind::kFull);
  std::uint64_t after_ten = 0;
  for (int i = 0; i < 100; ++i) {
    Push(table.get(), Range(0, kRows));
    ASSERT_TRUE(table->Erase(Range(i, i + 50)).ok());
    SaveCut(table.get(), i % 2 == 0 ? CutKind::kConsecutive : CutKind::kCumulative);
    if (i == 10) after_ten = table->memory().tracking;
  }
  EXPECT_LT(table->memory().tracking, 2 * after_ten);
}

TEST(TableCut, PendingCountsAreState) {
  auto options = SmallOptions();
  options.admission = AdmissionOptions{3};
  auto table = SmallTable(options);
  std::vector<float> out(4 * 5);
  const auto look = [&](Table* at, const std::vector<std::int64_t>& ids) {
    std::vector<float> rows(ids.size() * 4);
    ASSERT_TRUE(at->Lookup(ids, rows).ok());
  };
  look(table.get(), {1, 1, 2, 3, 3});
  const StoredTable full = SaveCut(table.get(), CutKind::kFull);
  EXPECT_EQ(full.rows, 0u);
  look(table.get(), {1, 4});  // 1 is admitted
  look(table.get(), {2});
  const StoredTable increment = SaveCut(table.get(), CutKind::kCumulative);
  EXPECT_EQ(increment.Keys(), (std::vector<std::int64_t>{1}));
  EXPECT_EQ(Sorted(increment.Get<std::int64_t>("pending_keys")), (std::vector<std::int64_t>{2, 4}));
  auto restored = Loaded({{full}, {increment}}, options);
  EXPECT_EQ(restored->pending_size(), 3u);
  look(restored.get(), {2, 3, 4});
  EXPECT_EQ(restored->size(), 3u) << "1, 2 and 3 are admitted, 4 is not";
}

TEST(TableCut, AnIncrementNeedsACommittedBase) {
  auto table = SmallTable();
  Table* const tables[] = {table.get()};
  const auto refused = [&] {
    return CutTables(tables, {.kind = CutKind::kCumulative}).status().Is(Code::kFailedPrecondition);
  };
  EXPECT_TRUE(refused());
  {
    CutOf(table.get(), CutKind::kFull);
  }
  EXPECT_TRUE(refused());
  SaveCut(table.get(), CutKind::kFull);
  EXPECT_FALSE(refused());
}

TEST(TableCut, ATableHasOneCutAtATime) {
  auto table = SmallTable();
  auto other = SmallTable();
  Table* const tables[] = {table.get()};
  auto cut = CutOf(table.get(), CutKind::kFull);
  const Status second = CutTables(tables, {}).status();
  EXPECT_TRUE(second.Is(Code::kFailedPrecondition));
  EXPECT_THAT(std::string(second.message()), testing::HasSubstr("\"t\""));
  EXPECT_TRUE(table->Clear().Is(Code::kFailedPrecondition));
  cut->Failed();
  EXPECT_TRUE(CutTables(tables, {}).ok());
}

TEST(TableCut, TablesOfDifferentGatesAreRefused) {
  auto a = SmallTable();
  auto b = SmallTable();
  Table* const tables[] = {a.get(), b.get()};
  EXPECT_TRUE(CutTables(tables, {}).status().Is(Code::kInvalidArgument));
  Table* const one[] = {a.get()};
  EXPECT_TRUE(CutTables(one, {}).ok()) << "it was left as it was";
}

TEST(TableCut, TablesAndDenseStateAreCutAtOneInstant) {
  auto options = SmallOptions(1);
  options.optimizer = MakeSgd({.learning_rate = 1}).value();
  options.initializer = MakeConstant(0).value();
  auto a = SmallTable(options);
  options.name = "u";
  auto b = SmallTable(options);
  std::int64_t dense = 0;
  Push(a.get(), {1}, 0);
  Push(b.get(), {1}, 0);
  std::jthread trainer([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      const CutGate::Batch batch(options.gate.get());
      Push(a.get(), {1}, -1);
      ++dense;
      Push(b.get(), {1}, -1);
    }
  });
  Table* const tables[] = {a.get(), b.get()};
  for (int i = 0; i < 50; ++i) {
    std::int64_t at_cut = 0;
    auto cuts = CutTables(tables, {}, [&] {
                  at_cut = dense;
                  return Status::Ok();
                }).value();
    for (const auto& cut : cuts) {
      ASSERT_EQ(ReadCut(cut.get()).Get<float>("values")[0], static_cast<float>(at_cut));
    }
  }
}

TEST(TableCut, WhatIsTakenWithACutMayChangeItsTables) {
  auto table = SmallTable();
  Push(table.get(), {1});
  Table* const tables[] = {table.get()};
  auto cuts = CutTables(tables, {}, [&] {
                Push(table.get(), {1, 2, 3});
                return Status::Ok();
              }).value();
  EXPECT_EQ(RowsOf(Loaded({{ReadCut(cuts[0].get())}}).get()), RowsOf(table.get()));
  cuts[0]->Committed();
  // The gate is open, and nobody is believed to be inside.
  std::jthread([&] { Push(table.get(), {4}); }).join();
  EXPECT_EQ(SaveCut(table.get(), CutKind::kConsecutive).rows, 1u);
}

TEST(TableCut, WhenTheDenseStateCannotBeTakenNothingIsCut) {
  auto table = SmallTable();
  Push(table.get(), {1});
  Table* const tables[] = {table.get()};
  const auto cuts = CutTables(tables, {}, [] { return InternalError("no"); });
  EXPECT_TRUE(cuts.status().Is(Code::kInternal));
  EXPECT_EQ(SaveCut(table.get(), CutKind::kFull).rows, 1u);
}

TEST(TableCut, ACutInsideOfABatchIsRefused) {
  auto table = SmallTable();
  const CutGate::Batch batch(table->options().gate.get());
  Table* const tables[] = {table.get()};
  EXPECT_TRUE(CutTables(tables, {}).status().Is(Code::kFailedPrecondition));
}

TEST(TableCut, UpdatesWaitWhenTheSideBufferIsFullAndNothingIsDropped) {
  auto options = SmallOptions();
  options.side_buffer_bytes = 4096;  // some thirty rows
  auto table = SmallTable(options);
  Push(table.get(), Range(0, 3000));
  const Rows rows = RowsOf(table.get());
  auto cut = CutOf(table.get(), CutKind::kFull);
  std::jthread updater([&] { Push(table.get(), Range(0, 3000), 0.3F); });
  const StoredTable stored = ReadCut(cut.get());
  updater.join();
  EXPECT_EQ(RowsOf(Loaded({{stored}}).get()), rows);
  for (const auto& [key, row] : RowsOf(table.get())) EXPECT_EQ(row.frequency, 2u);
}

TEST(TableCut, UpdatesThatWaitGoOnWhenTheCutIsGivenUp) {
  auto options = SmallOptions();
  options.side_buffer_bytes = 1;
  auto table = SmallTable(options);
  Push(table.get(), Range(0, 500));
  auto cut = CutOf(table.get(), CutKind::kFull);
  std::jthread updater([&] { Push(table.get(), Range(0, 500), 0.3F); });
  cut = nullptr;
  updater.join();
  for (const auto& [key, row] : RowsOf(table.get())) EXPECT_EQ(row.frequency, 2u);
}

TEST(TableCut, QuantizedIncrementsAreSmallAndTheirErrorIsTold) {
  auto options = SmallOptions(16);
  auto table = SmallTable(options);
  Push(table.get(), Range(0, 1000));
  const StoredTable full = SaveCut(table.get(), CutKind::kFull);
  Push(table.get(), Range(0, 1000), 0.2F);
  auto cut = CutOf(table.get(), CutKind::kCumulative, {.quantize = true});
  const StoredTable small = ReadCut(cut.get());
  cut->Committed();
  std::size_t bytes = 0;
  for (const auto& [name, column] : small.bytes) {
    if (name != "shard_offsets") bytes += column.size();
  }
  EXPECT_LT(static_cast<double>(bytes), 0.45 * 1000 * ((16 + 16) * 4 + 24));
  const TableCut::Error error = cut->QuantizationError();
  EXPECT_GT(error.max_abs, 0);
  EXPECT_LE(error.max_relative, 0.5 / 127 + 1e-6);
  auto restored = Loaded({{full}, {small}}, options);
  const Rows exact = RowsOf(table.get());
  double worst = 0;
  for (const auto& [key, row] : RowsOf(restored.get())) {
    for (std::size_t i = 0; i < 16; ++i) {
      const RowCopy& wanted = exact.at(key);
      worst = std::max(worst, std::abs(static_cast<double>(row.weights[i] - wanted.weights[i])));
      worst = std::max(worst, std::abs(static_cast<double>(row.slots[i] - wanted.slots[i])));
    }
  }
  EXPECT_LE(worst, error.max_abs + 1e-6);
  EXPECT_GE(worst, error.max_abs * 0.5);
}

TEST(TableCut, CompressedKeysRestore) {
  auto table = SmallTable();
  Push(table.get(), Range(0, 1000));
  const StoredTable full = SaveCut(table.get(), CutKind::kFull, {.compress_keys = true});
  EXPECT_FALSE(full.bytes.contains("keys"));
  EXPECT_EQ(RowsOf(Loaded({{full}}).get()), RowsOf(table.get()));
}

TEST(TableCut, ASourceAskedOutOfOrderSaysSo) {
  auto table = SmallTable();
  Push(table.get(), Range(0, 10));
  auto cut = CutOf(table.get(), CutKind::kFull);
  std::vector<std::byte> bytes(16);
  for (const Tensor& tensor : cut->Tensors()) {
    if (tensor.source != nullptr) {
      EXPECT_TRUE(tensor.source->Fill(8, bytes).Is(Code::kInternal));
    }
  }
}

}  // namespace
}  // namespace cairn::table
