#include "table/row_list.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace cairn::table {
namespace {

/// Nobody looks at the rows of a list: any address will do.
RowHeader* Row(std::uintptr_t number) { return reinterpret_cast<RowHeader*>(number * 8); }

void Add(RowList* list, std::uintptr_t from, std::uintptr_t to) {
  for (; from < to; ++from) {
    list->MakeRoom();
    list->Add(Row(from));
  }
}

std::vector<RowHeader*> Range(std::uintptr_t from, std::uintptr_t to) {
  std::vector<RowHeader*> rows;
  for (; from < to; ++from) rows.push_back(Row(from));
  return rows;
}

TEST(RowList, KeepsWhatWasAddedInOrder) {
  RowListPool pool;
  RowList list(&pool);
  EXPECT_EQ(list.size(), 0u);
  EXPECT_TRUE(list.Rows().empty());
  Add(&list, 1, 5001);
  EXPECT_EQ(list.size(), 5000u);
  EXPECT_EQ(list.Rows(), Range(1, 5001));
}

TEST(RowList, TakesAWholeListAndGoesOn) {
  RowListPool pool;
  RowList first(&pool);
  RowList second(&pool);
  first.TakeAll(&second);
  EXPECT_EQ(first.size(), 0u);
  Add(&second, 1, 10);
  first.TakeAll(&second);
  EXPECT_EQ(second.size(), 0u);
  Add(&second, 10, 100);
  first.TakeAll(&second);
  first.TakeAll(&second);
  Add(&first, 100, 3000);
  EXPECT_EQ(first.size(), 2999u);
  EXPECT_EQ(first.Rows(), Range(1, 3000));
  Add(&second, 1, 4);
  EXPECT_EQ(second.Rows(), Range(1, 4));
}

TEST(RowList, IsReplacedByFewerRows) {
  RowListPool pool;
  for (const std::uintptr_t left : {0, 1, 5, 6, 7, 20, 999, 1000}) {
    RowList list(&pool);
    RowList more(&pool);
    Add(&list, 1, 301);
    Add(&more, 301, 1001);
    list.TakeAll(&more);
    list.Replace(Range(2000, 2000 + left));
    EXPECT_EQ(list.size(), left);
    EXPECT_EQ(list.Rows(), Range(2000, 2000 + left));
    Add(&list, 2000 + left, 4000);
    EXPECT_EQ(list.Rows(), Range(2000, 4000));
  }
}

TEST(RowList, RemovesSomeInPlace) {
  RowListPool pool;
  std::mt19937 random(7);
  for (int i = 0; i < 50; ++i) {
    RowList list(&pool);
    std::vector<RowHeader*> expected;
    for (int part = 0; part < 3; ++part) {
      RowList more(&pool);
      const std::uintptr_t from = expected.size() + 1;
      const std::uintptr_t to = from + random() % 200;
      Add(&more, from, to);
      for (RowHeader* row : Range(from, to)) expected.push_back(row);
      list.TakeAll(&more);
    }
    const unsigned every = 1 + random() % 4;  // 1: all
    const auto remove = [&](const RowHeader* row) {
      return reinterpret_cast<std::uintptr_t>(row) / 8 % every == 0;
    };
    list.RemoveIf(remove);
    std::erase_if(expected, remove);
    EXPECT_EQ(list.Rows(), expected);
    EXPECT_EQ(list.size(), expected.size());
    Add(&list, 9000, 9100);
    EXPECT_EQ(list.size(), expected.size() + 100);
  }
}

TEST(RowList, SwapsWithAnother) {
  RowListPool pool;
  RowList first(&pool);
  RowList second(&pool);
  Add(&first, 1, 50);
  first.Swap(&second);
  Add(&first, 50, 60);
  Add(&second, 50, 60);
  EXPECT_EQ(first.Rows(), Range(50, 60));
  EXPECT_EQ(second.Rows(), Range(1, 60));
}

TEST(RowListPool, ServesLaterListsFromEarlierOnes) {
  RowListPool pool;
  {
    RowList list(&pool);
    Add(&list, 1, 100'000);
  }
  const std::uint64_t bytes = pool.bytes();
  for (int i = 0; i < 10; ++i) {
    RowList list(&pool);
    Add(&list, 1, 100'000);
  }
  EXPECT_EQ(pool.bytes(), bytes);
}

}  // namespace
}  // namespace cairn::table
