#include "paramserver/batch_split.h"

#include <algorithm>
#include <cstring>

#include <cairn/table.h>

#include "paramserver/placement.h"

namespace cairn::ps {

Result<BatchSplit> BatchSplit::Make(std::span<const std::int64_t> ids, int servers) {
  if (ids.size() > 0xffffffff) return InvalidArgumentError("a batch of more than 2^32 ids");
  BatchSplit split;
  split.all_ = ids.size();
  if (servers == 1) return split;
  split.positions_.resize(static_cast<std::size_t>(servers));
  for (auto& positions : split.positions_) {
    positions.reserve(ids.size() / static_cast<std::size_t>(servers) + 16);
  }
  for (std::uint32_t i = 0; i < ids.size(); ++i) {
    const int server = ServerOfShard(TableShardOf(ids[i]), servers);
    split.positions_[static_cast<std::size_t>(server)].push_back(i);
  }
  return split;
}

std::size_t BatchSplit::most() const {
  std::size_t most = positions_.empty() ? all_ : 0;
  for (const auto& positions : positions_) most = std::max(most, positions.size());
  return most;
}

void BatchSplit::CopyKeys(int server, std::size_t first, std::span<const std::int64_t> ids,
                          std::span<std::byte> to) const {
  if (to.empty()) return;
  if (positions_.empty()) {
    std::memcpy(to.data(), ids.data() + first, to.size());
    return;
  }
  std::byte* at = to.data();
  for (const std::uint32_t position : Positions(server, first, to.size() / sizeof(std::int64_t))) {
    std::memcpy(at, &ids[position], sizeof(std::int64_t));
    at += sizeof(std::int64_t);
  }
}

void BatchSplit::CopyRows(int server, std::size_t first, std::span<const float> rows,
                          std::size_t dim, std::span<std::byte> to) const {
  if (to.empty()) return;
  if (positions_.empty()) {
    std::memcpy(to.data(), rows.data() + first * dim, to.size());
    return;
  }
  const std::size_t row = dim * sizeof(float);
  std::byte* at = to.data();
  for (const std::uint32_t position : Positions(server, first, to.size() / row)) {
    std::memcpy(at, rows.data() + std::size_t{position} * dim, row);
    at += row;
  }
}

void BatchSplit::PlaceRows(int server, std::size_t first, std::span<const std::byte> from,
                           std::size_t dim, std::span<float> rows) const {
  if (from.empty()) return;
  if (positions_.empty()) {
    std::memcpy(rows.data() + first * dim, from.data(), from.size());
    return;
  }
  const std::size_t row = dim * sizeof(float);
  const std::byte* at = from.data();
  for (const std::uint32_t position : Positions(server, first, from.size() / row)) {
    std::memcpy(rows.data() + std::size_t{position} * dim, at, row);
    at += row;
  }
}

}  // namespace cairn::ps
