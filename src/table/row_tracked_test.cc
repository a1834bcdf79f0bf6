#include <cairn/row_tracked.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <thread>

#include "table/test_table.h"

namespace cairn::table {
namespace {

/// Weights and accumulator of an embedding, or of a piece of one.
struct Dense {
  explicit Dense(std::uint64_t rows, std::uint64_t first = 0, std::uint64_t whole = 0,
                 std::uint64_t side_buffer = 1 << 20)
      : weights(rows * 3), accumulator(rows), gate(std::make_shared<CutGate>()) {
    RowTrackedOptions options;
    options.name = "emb";
    options.rows = rows;
    options.first_row = first;
    options.whole_rows = whole;
    options.arrays = {{"emb/weights", DType::kF32, 3, weights.data()},
                      {"emb/accumulator", DType::kF64, 1, accumulator.data()}};
    options.gate = gate;
    options.side_buffer_bytes = side_buffer;
    tracked = RowTracked::Make(std::move(options)).value();
  }

  void Change(const std::vector<std::int64_t>& rows, float by = 1) {
    const CutGate::Batch batch(gate.get());
    ASSERT_TRUE(tracked->Touch(rows).ok());
    for (const std::int64_t row : rows) {
      for (int i = 0; i < 3; ++i) weights[static_cast<std::size_t>(row * 3 + i)] += by;
      accumulator[static_cast<std::size_t>(row)] += static_cast<double>(by);
    }
  }

  std::unique_ptr<TableCut> Cut(CutKind kind) {
    RowTracked* const arrays[] = {tracked.get()};
    auto cuts = CutTablesAndArrays({}, arrays, {.kind = kind});
    EXPECT_TRUE(cuts.ok()) << cuts.status().ToString();
    return std::move(cuts.value()[0]);
  }

  std::vector<float> weights;
  std::vector<double> accumulator;
  std::shared_ptr<CutGate> gate;
  std::unique_ptr<RowTracked> tracked;
};

using Columns = std::map<std::string, std::vector<std::byte>>;

Columns Read(TableCut* cut) {
  Columns out;
  for (const Tensor& tensor : cut->Tensors()) {
    std::size_t bytes = static_cast<std::size_t>(DTypeBits(tensor.dtype)) / 8;
    for (const std::uint64_t d : tensor.shape) bytes *= d;
    std::vector<std::byte>& column = out[tensor.name];
    column.resize(bytes);
    if (tensor.source == nullptr) {
      std::memcpy(column.data(), tensor.data, bytes);
      continue;
    }
    for (std::size_t at = 0; at < bytes; at += 50) {
      EXPECT_TRUE(
          tensor.source
              ->Fill(at, std::span(column).subspan(at, std::min<std::size_t>(50, bytes - at)))
              .ok());
    }
  }
  return out;
}

template <typename T>
std::vector<T> As(const std::vector<std::byte>& bytes) {
  std::vector<T> out(bytes.size() / sizeof(T));
  if (!out.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

Status Apply(Dense* dense, const Columns& increment) {
  return dense->tracked->ApplyIncrement(
      As<std::int64_t>(increment.at("emb/keys")),
      {increment.at("emb/column/emb/weights"), increment.at("emb/column/emb/accumulator")});
}

void Restore(Dense* dense, const Columns& full) {
  // In place, as restores do.
  std::ranges::copy(As<float>(full.at("emb/column/emb/weights")), dense->weights.begin());
  std::ranges::copy(As<double>(full.at("emb/column/emb/accumulator")), dense->accumulator.begin());
  ASSERT_TRUE(dense->tracked->Restored().ok());
}

TEST(RowTracked, AFullIsTheArraysAndAnIncrementTheirChangedRows) {
  Dense dense(100);
  dense.Change({1, 50});
  auto full = dense.Cut(CutKind::kFull);
  const Columns whole = Read(full.get());
  EXPECT_EQ(As<float>(whole.at("emb/column/emb/weights")), dense.weights);
  full->Committed();
  dense.Change({99, 3, 3});
  auto increment = dense.Cut(CutKind::kCumulative);
  const Columns rows = Read(increment.get());
  EXPECT_EQ(As<std::int64_t>(rows.at("emb/keys")), (std::vector<std::int64_t>{3, 99}));
  EXPECT_EQ(As<double>(rows.at("emb/column/emb/accumulator")), (std::vector<double>{2, 1}));
  increment->Committed();
}

TEST(RowTracked, RowsChangedAfterTheCutAreSavedAsTheyWere) {
  Dense dense(200);
  dense.Change(Range(0, 200));
  const std::vector<float> before = dense.weights;
  auto cut = dense.Cut(CutKind::kFull);
  dense.Change(Range(0, 100), 5);
  EXPECT_EQ(As<float>(Read(cut.get()).at("emb/column/emb/weights")), before);
}

TEST(RowTracked, ACutFindsItsRowsWhenTheyAreRead) {
  Dense dense(1000);
  dense.Cut(CutKind::kFull)->Committed();
  std::vector<std::int64_t> changed;
  for (std::int64_t row = 0; row < 1000; row += 3) changed.push_back(row);
  dense.Change(changed, 5);
  auto cut = dense.Cut(CutKind::kConsecutive);
  EXPECT_EQ(cut->summary().rows, changed.size());
  // All of it changes, before any of it was read: also what is not in the cut.
  dense.Change(Range(0, 1000), 100);
  const Columns columns = Read(cut.get());
  EXPECT_EQ(As<std::int64_t>(columns.at("emb/keys")), changed);
  EXPECT_THAT(As<float>(columns.at("emb/column/emb/weights")), testing::Each(5.0F));
  EXPECT_THAT(As<double>(columns.at("emb/column/emb/accumulator")), testing::Each(5.0));
  cut->Committed();
  EXPECT_EQ(dense.Cut(CutKind::kConsecutive)->summary().rows, 1000u);
}

TEST(RowTracked, ACutOfManyRowsTakesNoMemoryForThem) {
  // Listing them took as long as walking over them, and whoever changes rows waited.
  constexpr std::int64_t kRows = 2'000'000;
  const auto held = [] {
    const auto info = mallinfo2();
    return info.uordblks + info.hblkhd;
  };
  Dense dense(kRows);
  const auto before_full = held();
  auto full = dense.Cut(CutKind::kFull);
  EXPECT_LT(held(), before_full + (1 << 20));
  full->Committed();
  full = nullptr;
  dense.Change(Range(0, kRows));
  const auto before = held();
  const auto cut = dense.Cut(CutKind::kCumulative);
  EXPECT_EQ(cut->summary().rows, static_cast<std::uint64_t>(kRows));
  EXPECT_LT(held(), before + (1 << 20));
}

TEST(RowTracked, FailedRowsAreInTheNextIncrement) {
  Dense dense(50);
  dense.Cut(CutKind::kFull)->Committed();
  dense.Change({1, 2});
  {
    auto failed = dense.Cut(CutKind::kConsecutive);
    dense.Change({2, 3});
  }
  dense.Change({4});
  auto good = dense.Cut(CutKind::kConsecutive);
  EXPECT_EQ(As<std::int64_t>(Read(good.get()).at("emb/keys")),
            (std::vector<std::int64_t>{1, 2, 3, 4}));
  good->Committed();
  dense.Change({9});
  auto next = dense.Cut(CutKind::kConsecutive);
  EXPECT_EQ(As<std::int64_t>(Read(next.get()).at("emb/keys")), (std::vector<std::int64_t>{9}));
  next->Committed();
  EXPECT_EQ(dense.tracked->ChangedRows(CutKind::kCumulative), 5u);
}

TEST(RowTracked, AChainRestoresAndGoesOn) {
  Dense dense(80);
  dense.Change(Range(0, 80));
  auto cut = dense.Cut(CutKind::kFull);
  const Columns full = Read(cut.get());
  cut->Committed();
  dense.Change({5, 6});
  cut = dense.Cut(CutKind::kConsecutive);
  const Columns first = Read(cut.get());
  cut->Committed();

  Dense again(80);
  Restore(&again, full);
  ASSERT_TRUE(Apply(&again, first).ok());
  ASSERT_TRUE(Apply(&again, first).ok());  // harmless
  EXPECT_EQ(again.weights, dense.weights);
  EXPECT_EQ(again.accumulator, dense.accumulator);
  again.Change({7});
  cut = again.Cut(CutKind::kCumulative);
  EXPECT_EQ(As<std::int64_t>(Read(cut.get()).at("emb/keys")), (std::vector<std::int64_t>{5, 6, 7}));
  cut = nullptr;  // before its arrays
}

TEST(RowTracked, PiecesOfAWholeTakeTheirRowsFromAnyPartition) {
  // Saved in two pieces of 50, applied to one whole of 100.
  Dense a(50, 0, 100);
  Dense b(50, 50, 100);
  for (Dense* piece : {&a, &b}) piece->Cut(CutKind::kFull)->Committed();
  a.Change({1});
  b.Change({1});
  Dense whole(100);
  ASSERT_TRUE(whole.tracked->Restored().ok());
  for (Dense* piece : {&a, &b}) {
    auto cut = piece->Cut(CutKind::kCumulative);
    ASSERT_TRUE(Apply(&whole, Read(cut.get())).ok());
  }
  EXPECT_EQ(whole.weights[3], 1);
  EXPECT_EQ(whole.weights[51 * 3], 1);
  EXPECT_EQ(std::count(whole.weights.begin(), whole.weights.end(), 0.0F), 98 * 3);
  // And a full of a piece says where its rows stand.
  auto full = b.Cut(CutKind::kFull);
  EXPECT_EQ(As<std::int64_t>(Read(full.get()).at("emb/keys")), Range(50, 100));
}

TEST(RowTracked, IsCutAtTheSameInstantAsTables) {
  Dense dense(10);
  auto options = SmallOptions(1);
  options.gate = dense.gate;
  options.optimizer = MakeSgd({.learning_rate = 1}).value();
  options.initializer = MakeConstant(0).value();
  auto table = SmallTable(options);
  Push(table.get(), {1}, 0);
  std::jthread trainer([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      const CutGate::Batch batch(dense.gate.get());
      Push(table.get(), {1}, -1);
      dense.Change({4});
    }
  });
  Table* const tables[] = {table.get()};
  RowTracked* const arrays[] = {dense.tracked.get()};
  for (int i = 0; i < 50; ++i) {
    auto cuts = CutTablesAndArrays(tables, arrays, {}).value();
    const float sparse = ReadCut(cuts[0].get()).Get<float>("values")[0];
    ASSERT_EQ(As<float>(Read(cuts[1].get()).at("emb/column/emb/weights"))[12], sparse);
  }
}

TEST(RowTracked, ThreadsAndCutsAtRandomMoments) {
  Dense dense(500, 0, 0, 4096);
  dense.Cut(CutKind::kFull)->Committed();
  std::vector<float> base(500 * 3);
  std::vector<std::jthread> trainers;
  for (std::int64_t t = 0; t < 2; ++t) {
    trainers.emplace_back([&, t](const std::stop_token& stop) {
      std::mt19937_64 random(static_cast<std::uint64_t>(t));
      while (!stop.stop_requested()) {
        std::vector<std::int64_t> rows;  // each thread has its own
        for (int i = 0; i < 20; ++i)
          rows.push_back(static_cast<std::int64_t>(random() % 250) * 2 + t);
        dense.Change(rows);
      }
    });
  }
  for (int i = 0; i < 100; ++i) {
    std::vector<float> at_cut;
    RowTracked* const arrays[] = {dense.tracked.get()};
    auto cuts = CutTablesAndArrays({}, arrays, {.kind = CutKind::kCumulative}, [&] {
                  at_cut = dense.weights;
                  return Status::Ok();
                }).value();
    const Columns rows = Read(cuts[0].get());
    const auto keys = As<std::int64_t>(rows.at("emb/keys"));
    const auto weights = As<float>(rows.at("emb/column/emb/weights"));
    std::vector<float> restored = base;
    for (std::size_t r = 0; r < keys.size(); ++r) {
      std::copy_n(&weights[r * 3], 3, &restored[static_cast<std::size_t>(keys[r]) * 3]);
    }
    ASSERT_EQ(restored, at_cut);
    if (i % 3 != 0) cuts[0]->Committed();
  }
}

TEST(RowTracked, PiecesOfOneNameMustFitTogether) {
  const Dense a(50, 0, 100);
  const Dense b(50, 50, 100);
  const Dense beside(50, 40, 100);
  const Dense smaller(40, 50, 90);
  const auto check = [](const Dense& x, const Dense& y) {
    RowTracked* const both[] = {x.tracked.get(), y.tracked.get()};
    return CheckPieces(both);
  };
  EXPECT_TRUE(check(a, b).ok());
  EXPECT_TRUE(check(a, beside).Is(Code::kInvalidArgument));
  EXPECT_TRUE(check(a, smaller).Is(Code::kInvalidArgument));
}

TEST(RowTracked, RefusesWhatMakesNoSense) {
  Dense dense(10);
  const std::vector<std::int64_t> row = {1};
  EXPECT_TRUE(dense.tracked->Touch(row).Is(Code::kFailedPrecondition)) << "outside of a batch";
  {
    const CutGate::Batch batch(dense.gate.get());
    EXPECT_TRUE(dense.tracked->Touch(std::vector<std::int64_t>{10}).Is(Code::kInvalidArgument));
    EXPECT_TRUE(dense.tracked->Touch(std::vector<std::int64_t>{-1}).Is(Code::kInvalidArgument));
  }
  std::vector<std::byte> bytes(12);
  EXPECT_TRUE(dense.tracked->ApplyIncrement(row, {bytes, bytes}).Is(Code::kCorruption));
  EXPECT_TRUE(dense.tracked->ApplyIncrement(row, {bytes}).Is(Code::kInvalidArgument));
  bytes.resize(8);
  const std::vector<std::byte> weights(12);
  EXPECT_TRUE(dense.tracked->ApplyIncrement(std::vector<std::int64_t>{10}, {weights, bytes})
                  .Is(Code::kCorruption));
  EXPECT_TRUE(dense.tracked->ApplyIncrement(row, {weights, bytes}).Is(Code::kFailedPrecondition));
  RowTracked* const arrays[] = {dense.tracked.get()};
  EXPECT_TRUE(CutTablesAndArrays({}, arrays, {.kind = CutKind::kCumulative})
                  .status()
                  .Is(Code::kFailedPrecondition));
  RowTrackedOptions options;
  EXPECT_TRUE(RowTracked::Make(options).status().Is(Code::kInvalidArgument));
}

}  // namespace
}  // namespace cairn::table
