#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "table/hashing.h"

namespace cairn::table {

/// Shards are locked in stripes of neighbours: few enough that a batch has some dozens of keys for
/// each lock, and can fetch their rows from memory at the same time; many enough that threads
/// seldom meet.
inline constexpr std::uint32_t kStripes = 64;
inline constexpr std::uint32_t kShardsPerStripe = kTableShards / kStripes;

struct BatchItem {
  std::int64_t key;
  std::uint64_t hash;      // IndexHash
  std::uint32_t position;  // in the batch
  std::uint32_t shard;
};

/// A batch's keys by stripe, within a stripe in the batch's order. Reused from batch to batch by
/// one thread.
class BatchPlan {
 public:
  void Build(std::span<const std::int64_t> ids) {
    std::array<std::uint32_t, kStripes> next{};
    shards_.resize(ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const std::uint32_t shard = ShardOf(ids[i]);
      shards_[i] = static_cast<std::uint16_t>(shard);
      ++next[shard / kShardsPerStripe];
    }
    std::uint32_t begin = 0;
    for (std::uint32_t s = 0; s < kStripes; ++s) {
      begins_[s] = begin;
      begin += next[s];
      next[s] = begins_[s];
    }
    begins_[kStripes] = begin;
    items_.resize(ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const std::uint32_t shard = shards_[i];
      items_[next[shard / kShardsPerStripe]++] = {ids[i], IndexHash(ids[i]),
                                                  static_cast<std::uint32_t>(i), shard};
    }
  }

  std::span<const BatchItem> stripe(std::uint32_t s) const {
    return std::span(items_).subspan(begins_[s], begins_[s + 1] - begins_[s]);
  }

 private:
  std::vector<std::uint16_t> shards_;
  std::vector<BatchItem> items_;
  std::array<std::uint32_t, kStripes + 1> begins_{};
};

/// Finds the keys that a run of items holds several times. Reused likewise.
class Duplicates {
 public:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  void Build(std::span<const BatchItem> items) {
    std::size_t places = 16;
    while (places < items.size() * 2) places *= 2;
    places_.assign(places, kNone);
    next_.assign(items.size(), kNone);
    last_.resize(items.size());
    for (std::uint32_t i = 0; i < items.size(); ++i) {
      last_[i] = i;
      std::size_t at = (items[i].hash >> 8) & (places - 1);
      while (places_[at] != kNone && items[places_[at]].key != items[i].key) {
        at = (at + 1) & (places - 1);
      }
      if (places_[at] == kNone) {
        places_[at] = i;
        continue;
      }
      const std::uint32_t first = places_[at];
      next_[last_[first]] = i;
      last_[first] = i;
      last_[i] = kNone;
    }
  }

  bool IsFirst(std::uint32_t item) const { return last_[item] != kNone; }
  /// The next item of the same key.
  std::uint32_t Next(std::uint32_t item) const { return next_[item]; }

 private:
  std::vector<std::uint32_t> places_;
  std::vector<std::uint32_t> next_;
  std::vector<std::uint32_t> last_;  // of a first item: the last of its key
};

}  // namespace cairn::table
