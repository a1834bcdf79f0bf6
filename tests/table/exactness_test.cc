// Exactness of cuts: several threads update, make, remove and evict rows while cuts are taken at
// random moments and read slowly. What every cut must hold is known from an oracle that does not
// use cuts: a copy of the table made by iteration while the gate is closed, at the same instant.
#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <thread>

#include "table/test_table.h"
#include "tests/crash/torture.h"

namespace cairn::table {
namespace {

struct World {
  TableOptions options;
  std::int64_t keys = 3000;
  int threads = 3;
  int cuts = 30;
  std::uint64_t seed = 1;
};

/// One updater: batches of random kinds until it is stopped.
void Update(Table* table, std::int64_t keys, std::uint64_t seed, const std::stop_token& stop) {
  std::mt19937_64 random(seed);
  // Further keys, which make the indexes grow; a limited number, as every cut is restored.
  const std::int64_t first_fresh = 1'000'000 * static_cast<std::int64_t>(seed % 1000 + 1);
  std::int64_t fresh = 0;
  for (std::int64_t step = 0; !stop.stop_requested(); ++step) {
    std::vector<std::int64_t> ids(1 + random() % 300);
    for (auto& id : ids)
      id = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(keys));
    std::vector<float> floats(ids.size() * table->options().dim);
    for (auto& f : floats) f = static_cast<float>(random() % 2001) / 1000.0F - 1.0F;
    switch (random() % 12) {
      case 0:
        ids.resize(1 + ids.size() / 8);
        ASSERT_TRUE(table->Erase(ids).ok());
        break;
      case 1:
        ASSERT_TRUE(table->Assign(ids, floats).ok());
        break;
      case 2:
        for (auto& id : ids) id = first_fresh + fresh++ % 2000;
        ASSERT_TRUE(table->Lookup(ids, floats).ok());
        break;
      case 3:
        if (random() % 8 == 0) {
          table->set_step(step);
          ASSERT_TRUE(table->Evict(step).ok());
        }
        break;
      case 4:
        ASSERT_TRUE(table->Lookup(ids, floats).ok());
        break;
      default:
        ASSERT_TRUE(table->ApplyGradients(ids, floats).ok());
    }
  }
}

/// Cuts the table and, at the same instant, copies it row by row.
std::unique_ptr<TableCut> CutWithOracle(Table* table, CutKind kind, Rows* rows) {
  Table* const tables[] = {table};
  auto cuts = CutTables(tables, {.kind = kind}, [&] {
    *rows = RowsOf(table);
    return Status::Ok();
  });
  EXPECT_TRUE(cuts.ok()) << cuts.status().ToString();
  return std::move(cuts.value()[0]);
}

void Check(const World& world) {
  auto table = SmallTable(world.options);
  std::mt19937_64 random(world.seed);
  std::vector<std::jthread> updaters;
  for (int t = 0; t < world.threads; ++t) {
    updaters.emplace_back([&, t](const std::stop_token& stop) {
      Update(table.get(), world.keys, world.seed * 100 + static_cast<std::uint64_t>(t), stop);
    });
  }
  std::optional<StoredTable> full;
  std::vector<StoredTable> since;  // committed increments, in order
  for (int i = 0; i < world.cuts; ++i) {
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
    const CutKind kind = !full || random() % 6 == 0 ? CutKind::kFull
                         : random() % 2 == 0        ? CutKind::kCumulative
                                                    : CutKind::kConsecutive;
    Rows rows;
    auto cut = CutWithOracle(table.get(), kind, &rows);
    const StoredTable stored = ReadCut(cut.get(), random());
    if (testing::Test::HasFailure()) break;
    std::vector<std::vector<StoredTable>> chain;
    if (kind != CutKind::kFull) chain.push_back({*full});
    if (kind == CutKind::kConsecutive) {
      for (const StoredTable& earlier : since) chain.push_back({earlier});
    }
    chain.push_back({stored});
    auto options = world.options;
    options.gate = std::make_shared<CutGate>();
    auto restored = SmallTable(options);
    const Status loaded = LoadChain(restored.get(), chain);
    ASSERT_TRUE(loaded.ok()) << loaded.ToString();
    ASSERT_EQ(RowsOf(restored.get()), rows)
        << "cut " << i << " of kind " << static_cast<int>(kind) << ", seed " << world.seed;
    if (random() % 4 == 0) {
      cut->Failed();
      continue;
    }
    cut->Committed();
    if (kind == CutKind::kFull) {
      full = stored;
      since.clear();
    } else {
      since.push_back(stored);
    }
  }
}

World SmallWorld(std::uint64_t seed) {
  World world;
  world.seed = seed;
  world.options = SmallOptions();
  world.options.eviction = EvictionOptions{.steps_to_live = 3};
  return world;
}

TEST(Exactness, EveryCutIsTheStateOfItsInstant) { Check(SmallWorld(1)); }

TEST(Exactness, AlsoWithATinySideBuffer) {
  World world = SmallWorld(2);
  world.options.side_buffer_bytes = 2000;
  Check(world);
}

TEST(Exactness, AlsoWithSeveralSlotsAndSixteenBits) {
  World world = SmallWorld(3);
  world.options.optimizer = MakeAdam({}).value();
  world.options.dtype = DType::kBF16;
  world.options.dim = 7;
  Check(world);
}

TEST(Exactness, AlsoWithAdmission) {
  World world = SmallWorld(4);
  world.options.admission = AdmissionOptions{3};
  Check(world);
}

TEST(RandomWorlds, EveryCutIsTheStateOfItsInstant) {
  crash::Torture torture("table_exactness", 3);
  torture.Run([&](std::uint64_t seed) {
    World world = SmallWorld(seed);
    world.threads = 1 + static_cast<int>(seed % 4);
    world.keys = seed % 3 == 0 ? 200 : 10'000;
    if (seed % 2 == 0) world.options.side_buffer_bytes = 1 + (seed * 977) % 50'000;
    if (seed % 5 == 0) world.options.admission = AdmissionOptions{2};
    Check(world);
    torture.Count("worlds", 1);
    torture.Count("cuts", static_cast<std::uint64_t>(world.cuts));
    return !HasFailure();
  });
}

}  // namespace
}  // namespace cairn::table
