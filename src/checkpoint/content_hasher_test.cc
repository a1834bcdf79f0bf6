#include "checkpoint/content_hasher.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace cairn {
namespace {

std::vector<std::byte> SomeBytes(std::size_t count) {
  std::vector<std::byte> bytes(count);
  std::uint32_t x = 1;
  for (std::byte& b : bytes) {
    x = x * 1664525 + 1013904223;
    b = static_cast<std::byte>(x >> 24);
  }
  return bytes;
}

/// A file with a head of 100 bytes and tensors of the given sizes.
PlannedFile FileOf(const std::vector<std::uint64_t>& sizes) {
  PlannedFile file;
  file.bytes = 100;
  for (const std::uint64_t bytes : sizes) {
    PlannedTensor tensor;
    tensor.file_offset = file.bytes;
    tensor.bytes = bytes;
    file.bytes += bytes;
    file.tensors.push_back(tensor);
  }
  return file;
}

TEST(ContentHasherTest, HashesFileAndTensorsHoweverTheBytesArrive) {
  const PlannedFile file = FileOf({0, 4096, 7, 0, 300'000, 16'384, 1, 5'000'000, 0, 0});
  const std::vector<std::byte> bytes = SomeBytes(file.bytes);
  const std::span<const std::byte> all(bytes);
  FileHasher whole;
  whole.Update(all);
  const FileHash expected = whole.Finish();
  for (const std::size_t step : {std::size_t{999}, std::size_t{65'536}, bytes.size()}) {
    ContentHasher hasher(file);
    for (std::size_t at = 0; at < bytes.size(); at += step) {
      hasher.Update(all.subspan(at, std::min(step, bytes.size() - at)));
    }
    EXPECT_EQ(hasher.Finish(), expected);
    ASSERT_EQ(hasher.tensors().size(), file.tensors.size());
    for (std::size_t i = 0; i < file.tensors.size(); ++i) {
      const PlannedTensor& tensor = file.tensors[i];
      EXPECT_EQ(hasher.tensors()[i], Xxh3(all.subspan(tensor.file_offset, tensor.bytes))) << i;
    }
  }
}

TEST(ContentHasherTest, TheTensorOfAFileOfItsOwnHasTheFilesHash) {
  PlannedFile file = FileOf({50'000});
  file.own_file = true;
  ContentHasher hasher(file);
  hasher.Update(SomeBytes(file.bytes));
  const FileHash hash = hasher.Finish();
  EXPECT_EQ(hasher.tensors(), std::vector<std::uint64_t>{hash.whole.low});
}

TEST(ContentHasherTest, HashesTensorsOnlyForThoseWhoAsk) {
  const PlannedFile file = FileOf({4096, 7, 300'000, 0});
  const std::vector<std::byte> bytes = SomeBytes(file.bytes);
  ContentHasher hasher(file, /*tensors=*/false);
  hasher.Update(bytes);
  FileHasher whole;
  whole.Update(bytes);
  EXPECT_EQ(hasher.Finish(), whole.Finish());
  EXPECT_TRUE(hasher.tensors().empty());
}

}  // namespace
}  // namespace cairn
