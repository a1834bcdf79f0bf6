#include "base/stream_copy.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace cairn
