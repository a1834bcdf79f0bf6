// Increments of so many rows that two threads gather them.
#include "table/cut_gatherer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "table/test_table.h"

namespace cairn::table {
namespace {

/// Reads bytes from `at` on of a tensor that has a source.
void ReadOn(const Tensor& tensor, std::uint64_t at, std::span<std::byte> bytes) {
  constexpr std::uint64_t kBlock = 64u << 10;
  while (at < bytes.size()) {
    const std::uint64_t n = std::min<std::uint64_t>(kBlock, bytes.size() - at);
    ASSERT_TRUE(tensor.source->Fill(at, bytes.subspan(at, n)).ok());
    at += n;
  }
}

/// Reads a cut in the order of its tensors, but only `share` of the first one before the others.
StoredTable ReadInFileOrder(TableCut* cut, double share = 1) {
  StoredTable stored;
  stored.kind = cut->kind();
  stored.rows = cut->summary().rows;
  const std::vector<Tensor> tensors = cut->Tensors();
  std::uint64_t first_read = 0;
  const auto read = [&](const Tensor& tensor) {
    const std::string name = tensor.name.substr(cut->summary().name.size() + 1);
    std::uint64_t size = static_cast<std::uint64_t>(DTypeBits(tensor.dtype)) / 8;
    for (const std::uint64_t d : tensor.shape) size *= d;
    std::vector<std::byte>& bytes = stored.bytes[name];
    bytes.resize(size);
    if (tensor.source == nullptr) {
      std::memcpy(bytes.data(), tensor.data, size);
    } else if (&tensor != tensors.data()) {
      ReadOn(tensor, 0, bytes);
    } else if (first_read == 0) {
      first_read = static_cast<std::uint64_t>(share * static_cast<double>(size));
      return ReadOn(tensor, 0, std::span(bytes).first(first_read));
    } else {
      ReadOn(tensor, first_read, bytes);
    }
    stored.columns.push_back({name, tensor.dtype, tensor.shape});
  };
  for (const Tensor& tensor : tensors) read(tensor);
  read(tensors[0]);
  return stored;
}

/// So many that two threads gather them.
constexpr std::int64_t kManyRows = 102'000;

std::unique_ptr<Table> ManyRowsWithBase(std::vector<std::vector<StoredTable>>* chain) {
  auto table = SmallTable();
  Push(table.get(), Range(0, kManyRows));
  chain->push_back({SaveCut(table.get(), CutKind::kFull)});
  Push(table.get(), Range(0, kManyRows * 2 / 3), 0.25F);
  EXPECT_TRUE(table->Erase(Range(0, 500)).ok());
  return table;
}

TEST(CutGatherer, AnIncrementOfManyRowsHoldsEachOnce) {
  for (const double share : {1.0, 0.3}) {
    std::vector<std::vector<StoredTable>> chain;
    auto table = ManyRowsWithBase(&chain);
    auto cut = CutOf(table.get(), CutKind::kConsecutive);
    chain.push_back({ReadInFileOrder(cut.get(), share)});
    cut->Committed();
    EXPECT_EQ(RowsOf(Loaded(chain).get()), RowsOf(table.get()));
  }
}

TEST(CutGatherer, AnIncrementOfManyRowsBesideUpdatesThatBeginLateIsOfOneInstant) {
  for (const int late_ms : {0, 2}) {
    std::vector<std::vector<StoredTable>> chain;
    auto table = ManyRowsWithBase(&chain);
    const Rows rows = RowsOf(table.get());
    auto cut = CutOf(table.get(), CutKind::kConsecutive);
    std::jthread updater([&](const std::stop_token& stop) {
      std::this_thread::sleep_for(std::chrono::milliseconds(late_ms));
      for (std::int64_t at = 0; !stop.stop_requested(); at = (at + 997) % kManyRows) {
        Push(table.get(), Range(at, at + 200));
        ASSERT_TRUE(table->Erase(Range(at + 50, at + 60)).ok());
      }
    });
    chain.push_back({ReadInFileOrder(cut.get())});
    updater.request_stop();
    updater.join();
    EXPECT_EQ(RowsOf(Loaded(chain).get()), rows);
    cut->Committed();
    chain.push_back({SaveCut(table.get(), CutKind::kConsecutive)});
    EXPECT_EQ(RowsOf(Loaded(chain).get()), RowsOf(table.get()));
  }
}

TEST(CutGatherer, AnIncrementOfManyRowsCanBeGivenUpHalfWay) {
  std::vector<std::vector<StoredTable>> chain;
  auto table = ManyRowsWithBase(&chain);
  for (const bool told : {false, true}) {
    auto cut = CutOf(table.get(), CutKind::kConsecutive);
    const std::vector<Tensor> tensors = cut->Tensors();
    std::vector<std::byte> bytes(1u << 20);
    ReadOn(tensors[0], 0, bytes);
    if (told) tensors[0].source->Abandoned();
    cut->Failed();
  }
  chain.push_back({SaveCut(table.get(), CutKind::kConsecutive)});
  EXPECT_EQ(RowsOf(Loaded(chain).get()), RowsOf(table.get()));
}

}  // namespace
}  // namespace cairn::table
