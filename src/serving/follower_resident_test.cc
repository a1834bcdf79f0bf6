// What an increment takes of memory while it is taken: pages, as the kernel counts them.

#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "serving/test_follower.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define CAIRN_HAS_SHADOW 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CAIRN_HAS_SHADOW 1
#endif

namespace cairn::serving {
namespace {

#ifdef CAIRN_HAS_SHADOW
constexpr double kMost = 30;  // what a sanitizer notes about memory is memory, too
#else
constexpr double kMost = 1.5;
#endif

/// Bytes of pages that are there. Exact, unlike the counters of /proc/self/status.
std::int64_t Resident() {
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string word; file >> word;) {
    std::int64_t kib = 0;
    if (word == "Rss:" && file >> kib) return kib * 1024;
  }
  ADD_FAILURE() << "no /proc/self/smaps_rollup";
  return 0;
}

TEST(FollowerResident, AnIncrementTakesLittleMoreThanItsBytes) {
  constexpr std::uint32_t kWeights = 16;
  constexpr std::int64_t kChanged = 10'000;
  const TempDirectory directory;
  const std::string path = directory / "run";
  std::vector<std::int64_t> keys(100'000);
  std::iota(keys.begin(), keys.end(), 0);
  TestWriter writer(path, {.chain = SaveKind::kConsecutive, .dim = kWeights});
  writer.Set(keys, 1).Full(1);

  Versions versions({{.name = "t", .dim = kWeights, .dtype = DType::kF32, .default_value = 0}},
                    {.keep = 2});
  NumberLoader dense;
  std::int64_t most = 0;
  FollowerOptions options;
  options.repository = path;
  // Asked at the beginning and after each block, when what was read and what became of it is there.
  options.cpu_time = [&] {
    most = std::max(most, Resident());
    return std::chrono::nanoseconds(0);
  };
  const auto follower = Follower::Open(options, &versions, &dense, {}).value();
  ASSERT_TRUE(follower->Look().ok());
  for (std::int64_t step = 2; step < 5; ++step) {
    const std::vector<std::int64_t> changed(keys.begin() + step * kChanged,
                                            keys.begin() + (step + 1) * kChanged);
    const CheckpointInfo info = writer.Set(changed, static_cast<float>(step)).Increment(step);
    EXPECT_GT(info.bytes, std::uint64_t{kChanged} * (8 + 2 * kWeights * sizeof(float)))
        << "with its slots";
    malloc_trim(0);
    const std::int64_t before = Resident();
    most = 0;
    ASSERT_TRUE(follower->Look().ok());
    ASSERT_EQ(versions.Acquire().facts().step, step);
    EXPECT_LE(static_cast<double>(most - before) / static_cast<double>(info.bytes), kMost)
        << most - before << " bytes for an increment of " << info.bytes;
  }
}

}  // namespace
}  // namespace cairn::serving
