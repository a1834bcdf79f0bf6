#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include <cairn/table.h>

namespace cairn::bench {

/// The work that all benchmarks of tables do: batches of 4,096 random ids of a table of rows with
/// 16 weights and 16 slots, looked up and updated by Adagrad.
inline constexpr std::uint32_t kTableDim = 16;
inline constexpr std::size_t kTableBatch = 4096;

class TableWorkload {
 public:
  TableWorkload(std::int64_t rows, std::uint64_t seed) : rows_(rows), random_(seed) {
    ids_.resize(kTableBatch);
    values_.resize(kTableBatch * kTableDim);
    gradients_.resize(kTableBatch * kTableDim);
    for (float& g : gradients_) g = static_cast<float>(random_() % 1000) / 1000.0F - 0.5F;
  }

  static TableOptions Options() {
    TableOptions options;
    options.name = "bench";
    options.dim = kTableDim;
    options.optimizer = MakeAdagrad({.learning_rate = 0.01F}).value();
    options.initializer = MakeConstant(0.01F).value();
    return options;
  }

  /// Spreads neighbouring numbers over all 64 bits, as hashed features are.
  static std::int64_t KeyOf(std::int64_t number) {
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(number + 1) *
                                     0x9E3779B97F4A7C15ULL);
  }

  void DrawIds() {
    for (std::int64_t& id : ids_) {
      id = KeyOf(static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(rows_)));
    }
  }

  /// Makes rows [0, rows).
  Status Fill(Table* table) {
    for (std::int64_t first = 0; first < rows_; first += kTableBatch) {
      const auto n = static_cast<std::size_t>(
          std::min<std::int64_t>(static_cast<std::int64_t>(kTableBatch), rows_ - first));
      for (std::size_t i = 0; i < n; ++i) ids_[i] = KeyOf(first + static_cast<std::int64_t>(i));
      const Status made =
          table->Lookup(std::span(ids_).first(n), std::span(values_).first(n * kTableDim));
      if (!made.ok()) return made;
    }
    ids_.resize(kTableBatch);
    return Status::Ok();
  }

  Status Step(Table* table) {
    DrawIds();
    if (Status s = table->Lookup(ids_, values_); !s.ok()) return s;
    return table->ApplyGradients(ids_, gradients_);
  }

  std::int64_t rows() const { return rows_; }
  const std::vector<std::int64_t>& ids() const { return ids_; }
  std::vector<float>& values() { return values_; }
  const std::vector<float>& gradients() const { return gradients_; }

 private:
  const std::int64_t rows_;
  std::mt19937_64 random_;
  std::vector<std::int64_t> ids_;
  std::vector<float> values_;
  std::vector<float> gradients_;
};

}  // namespace cairn::bench
