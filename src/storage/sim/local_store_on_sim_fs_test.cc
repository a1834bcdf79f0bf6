// The conformance suite on the local store over a simulated disk, and what its promises of
// durability are worth when that disk crashes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "storage/conformance.h"
#include "storage/local/local_store.h"
#include "storage/sim/sim_fs.h"

namespace cairn {
namespace {

struct Ground {
  explicit Ground(SimFs::Options options) : fs(std::move(options)) {}
  SimFs fs;
  SeededIds ids{1};
};

StoreFactory Factory(std::string name, SimFs::Options disk, LocalStore::Options options) {
  return {
      .name = std::move(name), .make = [disk, options] {
        auto ground = std::make_shared<Ground>(disk);
        StoreUnderTest under_test;
        under_test.ground = ground;
        under_test.open = [ground, options]() -> Result<std::unique_ptr<Store>> {
          LocalStore::Options mine = options;
          mine.root = "/disk/store";
          mine.fs = &ground->fs;
          mine.ids = &ground->ids;
          auto store = LocalStore::Open(mine);
          if (!store.ok()) return store.status();
          return std::unique_ptr<Store>(*std::move(store));
        };
        under_test.plant = [ground](const std::string& name) {
          EXPECT_TRUE(ground->fs.Open("/disk/store/" + name, {.write = true, .create = true}).ok());
        };
        if (disk.max_links < 100) under_test.max_links = static_cast<int>(disk.max_links);
        return under_test;
      }};
}

/// Where probe files were made, by directory below the store's root.
std::vector<std::string> ProbedBy(const std::string& prefix, bool network) {
  Ground ground({.network = network});
  auto store = LocalStore::Open({.root = "/disk/store", .fs = &ground.fs, .ids = &ground.ids});
  EXPECT_TRUE(store.ok()) << store.status().ToString();
  EXPECT_TRUE((*store)->Put("there/x", "1").ok());
  std::vector<std::string> made;
  ground.fs.SetHook([&](const SimOp& op) {
    if (op.kind == SimOp::Kind::kCreate) made.push_back(op.path.substr(0, op.path.rfind('/')));
  });
  EXPECT_TRUE((*store)->Refresh(prefix).ok());
  ground.fs.SetHook(nullptr);
  EXPECT_EQ(ground.fs.List("/disk/store")->size(), 1u) << "a probe was left behind";
  return made;
}

TEST(LocalStoreOnANetwork, RefreshChangesTheDirectoryOrWhatWouldHoldIt) {
  using testing::ElementsAre;
  EXPECT_THAT(ProbedBy("", true), ElementsAre("/disk/store"));
  EXPECT_THAT(ProbedBy("there", true), ElementsAre("/disk/store/there"));
  EXPECT_THAT(ProbedBy("there/not", true),
              ElementsAre("/disk/store/there/not", "/disk/store/there"));
  EXPECT_THAT(ProbedBy("not/at/all", true),
              ElementsAre("/disk/store/not/at/all", "/disk/store/not/at", "/disk/store/not",
                          "/disk/store"));
  EXPECT_THAT(ProbedBy("there/x/y", true), ElementsAre("/disk/store/there/x/y"))
      << "a file stands in its place";
}

TEST(LocalStoreOnANetwork, RefreshCostsNothingOnADiskOfThisMachine) {
  EXPECT_THAT(ProbedBy("", false), testing::IsEmpty());
  EXPECT_THAT(ProbedBy("not/at/all", false), testing::IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(LocalOnSim, StoreConformance,
                         ::testing::Values(Factory("direct", {.queue_seed = 7},
                                                   {.write_mode = WriteMode::kDirect,
                                                    .read_mode = ReadMode::kDirect,
                                                    .part_bytes = 64u << 10,
                                                    .direct_from_bytes = 4096}),
                                           Factory("buffered", {.max_links = 3, .direct = false},
                                                   {.part_bytes = 16u << 10}),
                                           Factory("choosing", {},
                                                   {.part_bytes = 16u << 10,
                                                    .direct_from_bytes = 4096,
                                                    .trial_from_bytes = 16u << 10,
                                                    .trial_stretch_bytes = 16u << 10}),
                                           Factory("network", {.direct = false, .network = true},
                                                   {.part_bytes = 4096})),
                         StoreConformance::Name);

}  // namespace
}  // namespace cairn
