#include "serving/versions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "serving/test_versions.h"

namespace cairn::serving {
namespace {

using ::testing::HasSubstr;

constexpr std::uint32_t kDim = 4;

std::vector<ServedTable> OneTable() {
  return {{.name = "t", .dim = kDim, .dtype = DType::kF32, .default_value = -1}};
}

VersionedTable* Only(Versions* versions) { return versions->tables()[0].get(); }

void Patch(Versions* versions, const RowMap& rows, std::int64_t step) {
  ASSERT_TRUE(versions->Begin(/*replace=*/false).ok());
  ASSERT_TRUE(PutAll(Only(versions), rows).ok());
  CommitUpdate(versions, "id" + std::to_string(step), step);
}

TEST(VersionsTest, NothingIsVisibleBeforeTheFirstCommit) {
  Versions versions(OneTable(), {});
  EXPECT_FALSE(versions.Acquire());
  ASSERT_TRUE(versions.Begin(false).ok());
  ASSERT_TRUE(PutAll(Only(&versions), {{1, 1}}).ok());
  EXPECT_FALSE(versions.Acquire());
  CommitUpdate(&versions, "a", 7);
  ASSERT_TRUE(versions.Acquire());
  EXPECT_EQ(versions.Acquire().facts().step, 7);
}

TEST(VersionsTest, ASnapshotStaysWhatItWasWhileUpdatesComeAndGo) {
  Versions versions(OneTable(), {.keep = 1});
  Patch(&versions, {{1, 1}, {2, 1}, {3, 1}}, 1);
  const Versions::Snapshot first = versions.Acquire();
  for (int step = 2; step < 20; ++step) {
    ASSERT_TRUE(versions.Begin(false).ok());
    ASSERT_TRUE(PutAll(Only(&versions), {{1, 1.0F * step}, {100 + step, 2}}).ok());
    if (step == 5) {
      ASSERT_TRUE(Only(&versions)->Delete(std::vector<std::int64_t>{2}).ok());
    }
    EXPECT_EQ(versions.Acquire().facts().step, step - 1) << "not before the commit";
    CommitUpdate(&versions, std::to_string(step), step);
    EXPECT_EQ(ReadAll(first, 0, 200, kDim), (RowMap{{1, 1}, {2, 1}, {3, 1}}));
  }
  EXPECT_EQ(ReadAll(versions.Acquire(), 0, 10, kDim), (RowMap{{1, 19}, {3, 1}}));
}

TEST(VersionsTest, AnAbortedUpdateLeavesNothing) {
  Versions versions(OneTable(), {});
  Patch(&versions, {{1, 1}, {2, 2}}, 1);
  std::uint64_t bytes = 0;
  for (int round = 0; round < 100; ++round) {
    if (round == 1) bytes = versions.bytes_in_use();  // the index has grown by then
    ASSERT_TRUE(versions.Begin(round % 2 == 0).ok());
    ASSERT_TRUE(PutAll(Only(&versions), {{1, 5}, {3, 5}, {4, 5}}).ok());
    ASSERT_TRUE(Only(&versions)->Delete(std::vector<std::int64_t>{2, 3}).ok());
    if (round % 3 == 0) {
      ASSERT_TRUE(versions.Prepare({}, nullptr).ok());
    }
    versions.Abort();
    EXPECT_EQ(ReadAll(versions.Acquire(), 0, 10, kDim), (RowMap{{1, 1}, {2, 2}}));
    EXPECT_EQ(Only(&versions)->rows(), 2u);
  }
  EXPECT_EQ(versions.bytes_in_use(), bytes);
}

TEST(VersionsTest, AReplacementRemovesWhatItDoesNotHave) {
  Versions versions(OneTable(), {});
  Patch(&versions, {{1, 1}, {2, 2}, {3, 3}}, 1);
  ASSERT_TRUE(versions.Begin(/*replace=*/true).ok());
  ASSERT_TRUE(PutAll(Only(&versions), {{2, 2}, {3, 4}, {5, 5}}).ok());
  CommitUpdate(&versions, "b", 2);
  EXPECT_EQ(ReadAll(versions.Acquire(), 0, 10, kDim), (RowMap{{2, 2}, {3, 4}, {5, 5}}));
  EXPECT_EQ(versions.Acquire().rows(), 3u);
  ASSERT_TRUE(versions.Rollback(1).ok());
  EXPECT_EQ(ReadAll(versions.Acquire(), 0, 10, kDim), (RowMap{{1, 1}, {2, 2}, {3, 3}}));
}

TEST(VersionsTest, AnEqualFullCostsNothingAndAnUpdateWhatChanged) {
  Versions versions(OneTable(), {.keep = 1});
  RowMap rows;
  for (int i = 0; i < 50'000; ++i) rows[i] = static_cast<float>(i);
  ASSERT_TRUE(versions.Begin(true).ok());
  ASSERT_TRUE(Only(&versions)->Reserve(rows.size()).ok());
  ASSERT_TRUE(PutAll(Only(&versions), rows).ok());
  CommitUpdate(&versions, "a", 1);
  const std::uint64_t bytes = versions.bytes_in_use();

  for (int i = 0; i < 100; ++i) rows[i * 7] = -5;
  ASSERT_TRUE(versions.Begin(true).ok());
  ASSERT_TRUE(PutAll(Only(&versions), rows).ok());
  EXPECT_EQ(Only(&versions)->changed(), 100u);
  CommitUpdate(&versions, "b", 2);
  EXPECT_LE(versions.bytes_in_use(), bytes + 100 * (24 + kDim * 4 + 16));

  // Versions that nobody needs any more give their memory to those that come.
  for (int step = 3; step < 60; ++step) {
    RowMap changed;
    for (int i = 0; i < 1000; ++i) changed[(i * 13 + step) % 50'000] = static_cast<float>(step);
    Patch(&versions, changed, step);
    EXPECT_LE(versions.bytes_in_use(), bytes + 2 * 1000 * (24 + kDim * 4 + 16));
  }
}

TEST(VersionsTest, RollbackPinAndResume) {
  Versions versions(OneTable(), {.keep = 2});
  EXPECT_EQ(versions.Rollback(1).code(), Code::kFailedPrecondition);
  for (int step = 1; step <= 4; ++step) Patch(&versions, {{1, 1.0F * step}}, step);
  EXPECT_EQ(versions.kept().size(), 3u);
  ASSERT_TRUE(versions.Rollback(1).ok());
  EXPECT_EQ(versions.Acquire().facts().step, 3);
  EXPECT_TRUE(versions.held());
  Patch(&versions, {{1, 5}}, 5);
  EXPECT_EQ(versions.Acquire().facts().step, 3) << "held";
  for (int step = 6; step <= 20; ++step) Patch(&versions, {{1, 1.0F * step}}, step);
  EXPECT_EQ(ReadAll(versions.Acquire(), 0, 3, kDim), (RowMap{{1, 3}}));
  EXPECT_EQ(versions.Rollback(1).code(), Code::kFailedPrecondition) << "it is the oldest";
  ASSERT_TRUE(versions.PinStep(19).ok());
  EXPECT_EQ(ReadAll(versions.Acquire(), 0, 3, kDim), (RowMap{{1, 19}}));
  ASSERT_TRUE(versions.Pin("id20").ok());
  Patch(&versions, {{1, 21}}, 21);
  EXPECT_EQ(versions.Acquire().facts().step, 20);
  const Status missing = versions.Pin("id7");
  EXPECT_EQ(missing.code(), Code::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("id20 (step 20)"));
  versions.Resume();
  EXPECT_EQ(versions.Acquire().facts().step, 21);
  EXPECT_EQ(versions.kept().size(), 3u);
}

TEST(VersionsTest, WhatNoLongerCountsIsNotGoneBackTo) {
  Versions versions(OneTable(), {.keep = 5});
  for (int step = 1; step <= 4; ++step) Patch(&versions, {{1, 1.0F * step}}, step);
  versions.Forget({"id3", "id4"});
  ASSERT_EQ(versions.kept().size(), 3u) << "the newest stays";
  ASSERT_TRUE(versions.Rollback(1).ok());
  EXPECT_EQ(versions.Acquire().facts().step, 2);
}

TEST(VersionsTest, KeptRowsFollowAModelThroughRandomUpdatesAbortsAndRollbacks) {
  std::mt19937_64 random(11);
  Versions versions(OneTable(), {.keep = 3});
  std::map<std::int64_t, RowMap> expected;  // by step
  RowMap now;
  struct Held {
    Versions::Snapshot snapshot;
    RowMap model;
  };
  std::vector<Held> held;
  std::int64_t step = 0;
  for (int round = 0; round < 600; ++round) {
    const bool replace = random() % 8 == 0;
    RowMap next = replace ? RowMap{} : now;
    ASSERT_TRUE(versions.Begin(replace).ok());
    const std::size_t changes = random() % 40;
    for (std::size_t i = 0; i < changes; ++i) {
      const auto key = static_cast<std::int64_t>(random() % 300);
      if (random() % 4 == 0) {
        ASSERT_TRUE(Only(&versions)->Delete(std::vector<std::int64_t>{key}).ok());
        next.erase(key);
      } else {
        const auto value = static_cast<float>(random() % 3);
        ASSERT_TRUE(PutAll(Only(&versions), {{key, value}}).ok());
        next[key] = value;
      }
    }
    if (random() % 5 == 0) {
      versions.Abort();
    } else {
      now = std::move(next);
      expected[++step] = now;
      CommitUpdate(&versions, std::to_string(step), step);
    }
    if (step == 0) continue;
    if (random() % 6 == 0) {
      versions.Rollback(random() % 3).IgnoreError("so many may not be there");
    }
    if (random() % 4 == 0) versions.Resume();
    if (random() % 4 == 0) {
      Held one{versions.Acquire(), {}};
      one.model = expected[one.snapshot.facts().step];
      held.push_back(std::move(one));
    }
    if (held.size() > 6) held.erase(held.begin() + static_cast<std::ptrdiff_t>(random() % 6));
    for (const Held& one : held) ASSERT_EQ(ReadAll(one.snapshot, 0, 300, kDim), one.model);
    const Versions::Snapshot snapshot = versions.Acquire();
    ASSERT_EQ(ReadAll(snapshot, 0, 300, kDim), expected[snapshot.facts().step]);
    ASSERT_EQ(snapshot.rows(), expected[snapshot.facts().step].size());
  }
  held.clear();
  versions.Resume();
  // Rows of versions that are gone are gone too: what is left is the newest and three more.
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE(versions.Begin(false).ok());
    CommitUpdate(&versions, "e", ++step);
  }
  versions.Collect();
  EXPECT_LE(versions.bytes_in_use() - now.size() * (24 + kDim * 4), 40'000u) << "the index";
}

/// All rows of a version carry its number; readers look at many of them, in two tables, meanwhile.
TEST(VersionsTest, ReadersNeverSeeTwoVersionsAtOnce) {
  std::vector<ServedTable> tables = OneTable();
  tables.push_back({.name = "u", .dim = 2, .dtype = DType::kF32, .default_value = -1});
  Versions versions(tables, {.keep = 2});
  constexpr std::int64_t kRows = 500;
  const auto update = [&](std::int64_t step) {
    RowMap rows;
    for (std::int64_t i = 0; i < kRows; ++i) rows[i] = static_cast<float>(step);
    ASSERT_TRUE(versions.Begin(step % 3 == 0).ok());
    ASSERT_TRUE(PutAll(versions.tables()[0].get(), rows).ok());
    ASSERT_TRUE(PutAll(versions.tables()[1].get(), rows).ok());
    if (step % 7 == 0) {
      versions.Abort();
    } else {
      CommitUpdate(&versions, std::to_string(step), step);
    }
  };
  update(1);
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0};
  std::atomic<std::uint64_t> lookups{0};
  std::vector<std::thread> readers;
  for (int r = 0; r < 3; ++r) {
    readers.emplace_back([&, r] {
      std::mt19937_64 random(static_cast<std::uint64_t>(r));
      std::vector<std::int64_t> ids(64);
      std::vector<float> out(64 * kDim);
      while (!stop) {
        const Versions::Snapshot snapshot = versions.Acquire();
        for (int repeat = 0; repeat < 3; ++repeat) {
          const std::size_t table = random() % 2;
          const std::uint32_t dim = table == 0 ? kDim : 2;
          for (std::int64_t& id : ids) id = static_cast<std::int64_t>(random() % kRows);
          snapshot.Lookup(table, ids, out.data());
          for (std::size_t i = 0; i < ids.size() * dim; ++i) {
            wrong += out[i] != static_cast<float>(snapshot.facts().step);
          }
          lookups += ids.size();
        }
      }
    });
  }
  std::int64_t step = 2;
  while (lookups < 300'000 || step < 200) {
    update(step);
    if (step % 10 == 0) {
      ASSERT_TRUE(versions.Rollback(1).ok());
    }
    if (step % 10 == 4) versions.Resume();
    ++step;
  }
  stop = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(wrong, 0);
}

/// More rows than are given up together, beside somebody who reads them.
TEST(VersionsTest, LargeUpdatesLeaveNothingBehind) {
  constexpr std::int64_t kRows = 50'000;
  Versions versions(OneTable(), {.keep = 1});
  const auto patch = [&](int step) {
    RowMap rows;
    for (std::int64_t key = 0; key < kRows; ++key) rows[key] = static_cast<float>(step);
    Patch(&versions, rows, step);
  };
  for (int step = 1; step <= 4; ++step) patch(step);
  const std::uint64_t bytes = versions.bytes_in_use();
  {
    const std::jthread reader([&](const std::stop_token& stop) {
      std::vector<std::int64_t> ids(100);
      std::vector<float> out(ids.size() * kDim);
      for (std::int64_t first = 0; !stop.stop_requested(); first = (first + 997) % kRows) {
        for (std::size_t i = 0; i < ids.size(); ++i) {
          ids[i] = (first + 499 * static_cast<std::int64_t>(i)) % kRows;
        }
        const Versions::Snapshot snapshot = versions.Acquire();
        snapshot.Lookup(0, ids, out.data());
        const auto expected = static_cast<float>(snapshot.facts().step);
        for (const float value : out) ASSERT_EQ(value, expected);
      }
    });
    for (int step = 5; step <= 10; ++step) patch(step);
  }
  versions.Collect();  // what he held
  versions.Collect();
  EXPECT_LE(versions.bytes_in_use(), bytes);
}

TEST(VersionsTest, ManyReadersAtOnceHaveRoom) {
  Versions versions(OneTable(), {.keep = 0});
  Patch(&versions, {{1, 1}}, 1);
  ReadEpochs epochs;
  std::vector<std::unique_ptr<ReadEpochs::Guard>> guards;
  for (int i = 0; i < 300; ++i) guards.push_back(std::make_unique<ReadEpochs::Guard>(&epochs));
  const ReadEpochs::Tag tag = epochs.Retire();
  EXPECT_LT(epochs.Passed(), tag);
  const ReadEpochs::Guard late(&epochs);
  guards.clear();
  EXPECT_GE(epochs.Passed(), tag) << "one that came later does not hold it up";
}

TEST(VersionsTest, RowsOf16BitsComeBackAsFloats) {
  Versions versions({{.name = "h", .dim = 2, .dtype = DType::kBF16, .default_value = 3}}, {});
  ASSERT_TRUE(versions.Begin(true).ok());
  const std::uint16_t row[2] = {0x3F80, 0xC000};
  ASSERT_TRUE(Only(&versions)
                  ->Put(std::vector<std::int64_t>{-9}, reinterpret_cast<const std::byte*>(row))
                  .ok());
  CommitUpdate(&versions, "a", 1);
  std::vector<float> out(4);
  EXPECT_EQ(versions.Acquire().Lookup(0, std::vector<std::int64_t>{-9, 4}, out.data()), 1u);
  EXPECT_EQ(out, (std::vector<float>{1, -2, 3, 3}));
}

}  // namespace
}  // namespace cairn::serving
