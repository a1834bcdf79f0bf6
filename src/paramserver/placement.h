#pragma once

#include <cstdint>
#include <vector>

#include <cairn/status.h>
#include <cairn/table.h>

/// What is where: logical shards of tables and blocks of dense variables by server. Pure functions
/// of the number of servers, so that clients and servers need not tell each other.
namespace cairn::ps {

inline constexpr int kMaxServers = static_cast<int>(kTableShards);
/// A block of a dense variable has at least so many elements, unless the variable has not.
inline constexpr std::uint64_t kMinBlockElements = 8192;
/// Large variables have about so many blocks on each server.
inline constexpr std::uint64_t kBlocksPerServer = 4;

/// The logical shards of a server.
ShardRange ShardsOf(int server, int servers);
/// The server of a logical shard.
int ServerOfShard(std::uint32_t shard, int servers);

/// A variable seen as rows of its first dimension. A variable with one dimension has rows of one
/// element; a number is one row.
struct DenseShape {
  std::uint64_t rows = 0;
  std::uint64_t width = 0;  // elements of a row
  std::uint64_t elements() const { return rows * width; }
};
/// InvalidArgument: over 2^40 elements, or none.
Result<DenseShape> RowsOf(const std::vector<std::uint64_t>& shape);

/// Rows [first, first + count) of a dense variable.
struct DenseBlock {
  std::uint64_t first = 0;
  std::uint64_t count = 0;
  friend bool operator==(const DenseBlock&, const DenseBlock&) = default;
};
/// The blocks of a server, ascending. `name` spreads small variables over the servers.
std::vector<DenseBlock> BlocksOf(std::string_view name, const DenseShape& shape, int server,
                                 int servers);
std::uint64_t RowsIn(const std::vector<DenseBlock>& blocks);

}  // namespace cairn::ps
