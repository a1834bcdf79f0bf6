#include "catalog/row_inserter.h"

#include <algorithm>
#include <span>

#include "base/status_macros.h"

namespace cairn {

std::string Placeholders(std::size_t count) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) text += i == 0 ? "?" : ", ?";
  return text;
}

Status RowInserter::Flush(Connection* connection) {
  const std::size_t rows = cells_.size() / columns_;
  const std::string row = "(" + Placeholders(columns_) + ")";
  for (std::size_t at = 0; at < rows;) {
    // Few sizes, so that few statements are prepared.
    std::size_t count = 64;
    while (count > rows - at) count /= 4;
    std::string sql = head_;
    for (std::size_t i = 0; i < count; ++i) sql += (i == 0 ? "" : ", ") + row;
    RETURN_IF_ERROR(connection->Run(
        sql, std::span<const Cell>(cells_).subspan(at * columns_, count * columns_)));
    at += count;
  }
  cells_.clear();
  return Status::Ok();
}

}  // namespace cairn
