#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <cairn/status.h>

namespace cairn::ps {

/// A batch's keys by server: which of its positions go where. The keys of a server are numbered in
/// the batch's order, and are copied by these numbers, `first` and as many as there is room for.
/// One server has all, in their order: nothing is sorted then.
class BatchSplit {
 public:
  /// InvalidArgument for more than 2^32 keys.
  static Result<BatchSplit> Make(std::span<const std::int64_t> ids, int servers);

  std::size_t keys(int server) const {
    return positions_.empty() ? all_ : positions_[static_cast<std::size_t>(server)].size();
  }
  /// The most that any server has.
  std::size_t most() const;

  /// Neither side's bytes need to be aligned.
  void CopyKeys(int server, std::size_t first, std::span<const std::int64_t> ids,
                std::span<std::byte> to) const;
  void CopyRows(int server, std::size_t first, std::span<const float> rows, std::size_t dim,
                std::span<std::byte> to) const;
  /// The other way: rows of a server's keys to their places in the batch.
  void PlaceRows(int server, std::size_t first, std::span<const std::byte> from, std::size_t dim,
                 std::span<float> rows) const;

 private:
  std::span<const std::uint32_t> Positions(int server, std::size_t first, std::size_t count) const {
    return std::span(positions_[static_cast<std::size_t>(server)]).subspan(first, count);
  }

  std::size_t all_ = 0;
  std::vector<std::vector<std::uint32_t>> positions_;  // empty: one server
};

}  // namespace cairn::ps
