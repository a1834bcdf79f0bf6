// The conformance suite on the local store over the real file system: a disk, and memory (tmpfs).

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "storage/conformance.h"
#include "storage/local/local_store.h"
#include "storage/local/posix_fs.h"
#include "storage/local/temp_directory.h"

namespace cairn {
namespace {

StoreFactory Factory(std::string name, const char* parent, LocalStore::Options options) {
  return {
      .name = std::move(name), .make = [parent, options] {
        auto ground = std::make_shared<TempDirectory>(parent != nullptr ? std::string(parent)
                                                                        : ::testing::TempDir());
        StoreUnderTest under_test;
        under_test.ground = ground;
        under_test.open = [ground, options]() -> Result<std::unique_ptr<Store>> {
          LocalStore::Options mine = options;
          mine.root = *ground / "store";
          mine.fs = PosixFs();
          auto store = LocalStore::Open(mine);
          if (!store.ok()) return store.status();
          return std::unique_ptr<Store>(*std::move(store));
        };
        under_test.plant = [ground](const std::string& name) {
          EXPECT_TRUE(
              PosixFs()->Open(*ground / ("store/" + name), {.write = true, .create = true}).ok());
        };
        return under_test;
      }};
}

INSTANTIATE_TEST_SUITE_P(Local, StoreConformance,
                         ::testing::Values(Factory("disk", nullptr, {}),
                                           Factory("disk_direct", nullptr,
                                                   {.write_mode = WriteMode::kDirect,
                                                    .read_mode = ReadMode::kDirect,
                                                    .part_bytes = 64u << 10,
                                                    .direct_from_bytes = 4096}),
                                           Factory("disk_buffered", nullptr,
                                                   {.write_mode = WriteMode::kBuffered,
                                                    .read_mode = ReadMode::kBuffered,
                                                    .part_bytes = 64u << 10}),
                                           Factory("memory", "/dev/shm",
                                                   {.part_bytes = 64u << 10})),
                         StoreConformance::Name);

}  // namespace
}  // namespace cairn
