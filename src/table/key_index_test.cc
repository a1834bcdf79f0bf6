#include "table/key_index.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>
#include <vector>

namespace cairn::table {
namespace {

TEST(KeyIndex, AgreesWithAMapUnderInsertsAndRemovals) {
  KeyIndex index;
  std::mt19937_64 random(1);
  std::map<std::int64_t, std::unique_ptr<RowHeader>> model;
  for (int i = 0; i < 200'000; ++i) {
    const auto key = static_cast<std::int64_t>(random() % 3000) - 1500;
    const std::uint64_t hash = IndexHash(key);
    const auto it = model.find(key);
    ASSERT_EQ(index.Find(key, hash), it == model.end() ? nullptr : it->second.get());
    if (it == model.end()) {
      auto row = std::make_unique<RowHeader>();
      row->key = key;
      index.Insert(hash, row.get());
      model[key] = std::move(row);
    } else {
      index.Remove(key, hash);
      model.erase(it);
    }
    ASSERT_EQ(index.size(), model.size());
  }
}

TEST(KeyIndex, TellsKeysOfTheSameHashApart) {
  KeyIndex index;
  std::vector<RowHeader> rows(20);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].key = static_cast<std::int64_t>(i);
    index.Insert(0xABCD, &rows[i]);
    if (i > 4) break;  // before it grows, which hashes the keys
  }
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(index.Find(static_cast<std::int64_t>(i), 0xABCD), &rows[i]);
  }
  EXPECT_EQ(index.Find(77, 0xABCD), nullptr);
}

TEST(KeyIndex, ReusesRemovedPlacesInsteadOfGrowing) {
  KeyIndex index;
  std::vector<RowHeader> rows(1000);
  for (int round = 0; round < 100; ++round) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      rows[i].key = static_cast<std::int64_t>(i) + 1000 * round;
      index.Insert(IndexHash(rows[i].key), &rows[i]);
    }
    for (const RowHeader& row : rows) index.Remove(row.key, IndexHash(row.key));
  }
  EXPECT_LE(index.bytes(), 3000 * sizeof(std::uint64_t));
}

TEST(KeyIndex, TakesSixteenBytesARowAtMost) {
  KeyIndex index;
  std::vector<RowHeader> rows(100'000);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].key = static_cast<std::int64_t>(i);
    index.Insert(IndexHash(rows[i].key), &rows[i]);
    if (i > 100) {
      ASSERT_LE(index.bytes(), (i + 2) * 16);
    }
  }
}

}  // namespace
}  // namespace cairn::table
