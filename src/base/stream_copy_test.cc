#include "base/stream_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace cairn {
namespace {

TEST(StreamCopyTest, CopiesEverySizeFromAndToEveryAlignmentAndNothingElse) {
  std::vector<std::byte> from(512);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 + 1);
  for (const std::size_t bytes : {0, 1, 63, 64, 65, 127, 128, 200, 300}) {
    for (std::size_t to_skew = 0; to_skew < 70; to_skew += 3) {
      for (std::size_t from_skew = 0; from_skew < 70; from_skew += 5) {
        std::vector<std::byte> to(512, std::byte{0xee});
        StreamCopy(to.data() + to_skew, from.data() + from_skew, bytes);
        for (std::size_t i = 0; i < to.size(); ++i) {
          const bool inside = i >= to_skew && i < to_skew + bytes;
          ASSERT_EQ(to[i], inside ? from[from_skew + i - to_skew] : std::byte{0xee})
              << bytes << " bytes to " << to_skew << " from " << from_skew << ", byte " << i;
        }
      }
    }
  }
}

TEST(StreamCopyTest, CopiesSeveralPagesAtOnceAndWhatIsLeftOfThem) {
  constexpr std::size_t kStretch = 4 * 4096;
  std::vector<std::byte> from(3 * kStretch + 1000);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * i / 251 + i);
  for (const std::size_t bytes : {kStretch - 1, kStretch, kStretch + 64, 2 * kStretch + 65,
                                  3 * kStretch - 1, 3 * kStretch + 777}) {
    for (const std::size_t skew : {0, 1, 63, 64, 100}) {
      std::vector<std::byte> to(from.size() + 200, std::byte{0xee});
      std::vector<std::byte> expected = to;
      std::copy_n(from.begin(), bytes, expected.begin() + static_cast<std::ptrdiff_t>(skew));
      StreamCopy(to.data() + skew, from.data(), bytes);
      ASSERT_TRUE(to == expected) << bytes << " bytes to " << skew;
    }
  }
}

}  // namespace
}  // namespace cairn
