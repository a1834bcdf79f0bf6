#pragma once

// What the tests of the conformance suite are written with.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <cairn/status.h>

#include "storage/store.h"

namespace cairn {

inline constexpr std::uint64_t kNoLimit = std::uint64_t{1} << 40;
inline constexpr std::size_t kBlock = 4096;
inline constexpr int kThreads = 8;

/// Memory that starts at a 4 KiB boundary and ends at one.
class AlignedMemory {
 public:
  explicit AlignedMemory(std::size_t bytes)
      : bytes_(bytes),
        data_(static_cast<std::byte*>(std::aligned_alloc(
            kBlock, std::max<std::size_t>(1, (bytes + kBlock - 1) / kBlock) * kBlock))) {}
  ~AlignedMemory() { std::free(data_); }
  AlignedMemory(const AlignedMemory&) = delete;
  AlignedMemory& operator=(const AlignedMemory&) = delete;

  std::span<std::byte> span() { return {data_, bytes_}; }
  void Fill(std::string_view text) { std::memcpy(data_, text.data(), text.size()); }
  void Scribble() { std::memset(data_, 0xEE, bytes_); }
  std::string_view text(std::size_t bytes) const {
    return {reinterpret_cast<const char*>(data_), bytes};
  }

 private:
  const std::size_t bytes_;
  std::byte* const data_;
};

/// Bytes that differ at every place and between seeds.
inline std::string Pattern(std::size_t bytes, std::uint64_t seed) {
  std::string text(bytes, '\0');
  std::uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
  for (std::size_t at = 0; at < bytes; at += sizeof(state)) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    std::memcpy(text.data() + at, &state, std::min(sizeof(state), bytes - at));
  }
  return text;
}

inline std::span<const std::byte> AsBytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

template <typename T>
Code CodeOf(const Result<T>& result) {
  return result.status().code();
}

inline std::vector<std::string> ObjectNames(const Listing& listing) {
  std::vector<std::string> names;
  names.reserve(listing.objects.size());
  for (const ObjectInfo& info : listing.objects) names.push_back(info.name);
  return names;
}

inline void RunInThreads(int count, const std::function<void(int)>& body) {
  std::vector<std::jthread> threads;
  threads.reserve(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) threads.emplace_back(body, i);
}

inline ::testing::AssertionResult IsOk(const Status& status) {
  if (status.ok()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << status.ToString();
}

#define ASSERT_OK(expr) ASSERT_TRUE(IsOk(expr))
#define EXPECT_OK(expr) EXPECT_TRUE(IsOk(expr))
#define ASSERT_HAS(result) ASSERT_TRUE((result).ok()) << (result).status().ToString()

}  // namespace cairn
