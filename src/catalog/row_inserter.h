#pragma once

#include <string>
#include <vector>

#include <cairn/status.h>

#include "catalog/connection.h"

namespace cairn {

/// Inserts rows many at a time: one statement for up to 64 of them, which a server answers once.
class RowInserter {
 public:
  /// "INSERT INTO t (a, b) VALUES ", and how many columns that is.
  RowInserter(std::string head, std::size_t columns) : head_(std::move(head)), columns_(columns) {}

  void Add(std::vector<Cell> row) {
    for (Cell& cell : row) cells_.push_back(std::move(cell));
  }
  bool empty() const { return cells_.empty(); }
  Status Flush(Connection* connection);

 private:
  const std::string head_;
  const std::size_t columns_;
  std::vector<Cell> cells_;
};

/// "?, ?, ?"
std::string Placeholders(std::size_t count);

}  // namespace cairn
