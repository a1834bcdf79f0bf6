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
