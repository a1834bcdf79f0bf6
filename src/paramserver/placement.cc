#include "paramserver/placement.h"

#include <algorithm>
#include <string>

#include "base/checksum.h"

namespace cairn::ps {

ShardRange ShardsOf(int server, int servers) {
  const auto at = [&](int i) {
    return static_cast<std::uint32_t>(static_cast<std::uint64_t>(i) * kTableShards /
                                      static_cast<std::uint64_t>(servers));
  };
  return {at(server), at(server + 1)};
}

int ServerOfShard(std::uint32_t shard, int servers) {
  // The inverse of ShardsOf: the last server whose range begins at or below the shard.
  const auto n = static_cast<std::uint64_t>(servers);
  return static_cast<int>(((static_cast<std::uint64_t>(shard) + 1) * n - 1) / kTableShards);
}

Result<DenseShape> RowsOf(const std::vector<std::uint64_t>& shape) {
  DenseShape rows{1, 1};
  if (!shape.empty()) rows.rows = shape[0];
  for (std::size_t i = 1; i < shape.size(); ++i) {
    if (shape[i] != 0 && rows.width > (std::uint64_t{1} << 40) / shape[i]) {
      return InvalidArgumentError("a dense variable with more than 2^40 elements");
    }
    rows.width *= shape[i];
  }
  if (rows.rows == 0 || rows.width == 0) {
    return InvalidArgumentError("a dense variable without elements");
  }
  if (rows.rows > (std::uint64_t{1} << 40) / rows.width) {
    return InvalidArgumentError("a dense variable with more than 2^40 elements");
  }
  return rows;
}

std::vector<DenseBlock> BlocksOf(std::string_view name, const DenseShape& shape, int server,
                                 int servers) {
  const auto n = static_cast<std::uint64_t>(servers);
  const std::uint64_t least = (kMinBlockElements + shape.width - 1) / shape.width;
  const std::uint64_t wanted = (shape.rows + n * kBlocksPerServer - 1) / (n * kBlocksPerServer);
  const std::uint64_t rows = std::max(least, wanted);
  const std::uint64_t first = Xxh3(name) % n;
  std::vector<DenseBlock> blocks;
  for (std::uint64_t at = 0, i = 0; at < shape.rows; at += rows, ++i) {
    if ((first + i) % n != static_cast<std::uint64_t>(server)) continue;
    blocks.push_back({at, std::min(rows, shape.rows - at)});
  }
  return blocks;
}

std::uint64_t RowsIn(const std::vector<DenseBlock>& blocks) {
  std::uint64_t rows = 0;
  for (const DenseBlock& block : blocks) rows += block.count;
  return rows;
}

}  // namespace cairn::ps
