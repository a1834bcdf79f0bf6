#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <cairn/row_tracked.h>
#include <cairn/table.h>
#include <cairn/table_checkpoint.h>

#include "base/checksum.h"

namespace cairn::table {

/// A training with a real table (admission, eviction, erased rows), an embedding that is tracked by
/// row in pieces, and a dense variable. Its state is a function of (seed, number of steps made), so
/// that a checker that makes the same steps knows what a checkpoint must hold. For one thread.
class RealTraining {
 public:
  static constexpr std::uint64_t kItems = 60;

  explicit RealTraining(std::uint64_t seed, std::uint64_t pieces = 2) : seed_(seed) {
    TableOptions options;
    options.name = "users";
    options.dim = 3;
    options.optimizer = MakeAdagrad({.learning_rate = 0.1F}).value();
    options.initializer = MakeUniform(-1, 1).value();
    options.admission = AdmissionOptions{2};
    options.eviction = EvictionOptions{.steps_to_live = 12};
    options.gate = gate_;
    table_ = Table::Make(std::move(options)).value();
    for (std::uint64_t piece = 0; piece < pieces; ++piece) {
      RowTrackedOptions tracked;
      tracked.name = "items";
      tracked.first_row = kItems * piece / pieces;
      tracked.rows = kItems * (piece + 1) / pieces - tracked.first_row;
      tracked.whole_rows = kItems;
      tracked.arrays = {{"weights", DType::kF32, 2, &weights_[tracked.first_row * 2]},
                        {"moment", DType::kF64, 1, &moment_[tracked.first_row]}};
      tracked.gate = gate_;
      pieces_.push_back(RowTracked::Make(std::move(tracked)).value());
    }
  }

  /// Steps that were made; a restore sets it.
  std::int64_t steps() const { return steps_; }
  void set_steps(std::int64_t steps) { steps_ = steps; }

  Status Step() {
    std::mt19937_64 random(seed_ * 1'000'003 + static_cast<std::uint64_t>(steps_));
    const CutGate::Batch batch(gate_.get());
    table_->set_step(steps_);
    std::vector<std::int64_t> ids;
    for (int i = 0; i < 24; ++i) ids.push_back(static_cast<std::int64_t>(random() % 150) - 75);
    std::vector<float> rows(ids.size() * 3);
    if (Status status = table_->Lookup(ids, rows); !status.ok()) return status;
    for (float& x : rows) x = 0.1F * static_cast<float>(random() % 7);
    if (Status status = table_->ApplyGradients(ids, rows); !status.ok()) return status;
    if (steps_ % 3 == 0) {
      const std::vector<std::int64_t> gone = {ids[0], ids[1]};
      if (const auto erased = table_->Erase(gone); !erased.ok()) return erased.status();
    }
    if (steps_ % 5 == 4) {
      if (const auto evicted = table_->Evict(steps_); !evicted.ok()) return evicted.status();
    }
    for (int i = 0; i < 5; ++i) {
      if (Status status = ChangeItem(random() % kItems); !status.ok()) return status;
    }
    for (double& x : dense_) x = x * 0.5 + static_cast<double>(random() % 100);
    ++steps_;
    return Status::Ok();
  }

  /// Of everything that a checkpoint holds.
  std::uint64_t Digest() {
    std::vector<std::pair<std::int64_t, std::string>> rows;
    const Status read = table_->ForEach([&](const RowView& row) {
      std::string bytes;
      Append(&bytes, std::span(&row.key, 1));
      Append(&bytes, std::span(&row.frequency, 1));
      Append(&bytes, std::span(&row.version, 1));
      Append(&bytes, row.weights);
      Append(&bytes, row.slots);
      rows.emplace_back(row.key, std::move(bytes));
      return Status::Ok();
    });
    std::sort(rows.begin(), rows.end());
    std::string all = read.ToString() + std::to_string(table_->pending_size());
    for (const auto& [key, bytes] : rows) all += bytes;
    Append(&all, std::span<const float>(weights_));
    Append(&all, std::span<const double>(moment_));
    Append(&all, std::span<const double>(dense_));
    return Xxh3(std::as_bytes(std::span(all)));
  }

  std::vector<Table*> tables() const { return {table_.get()}; }
  std::vector<RowTracked*> arrays() const {
    std::vector<RowTracked*> all;
    for (const auto& piece : pieces_) all.push_back(piece.get());
    return all;
  }
  Tensor DenseView() const {
    return {.name = "dense", .dtype = DType::kF64, .shape = {dense_.size()}, .data = dense_.data()};
  }
  MutableTensor DenseTarget() {
    return {.name = "dense", .dtype = DType::kF64, .shape = {dense_.size()}, .data = dense_.data()};
  }

 private:
  template <typename T>
  static void Append(std::string* to, std::span<const T> values) {
    to->append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  }
  Status ChangeItem(std::uint64_t row) {
    for (const auto& piece : pieces_) {
      const RowTrackedOptions& options = piece->options();
      if (row < options.first_row || row >= options.first_row + options.rows) continue;
      const std::vector<std::int64_t> local = {static_cast<std::int64_t>(row - options.first_row)};
      if (Status status = piece->Touch(local); !status.ok()) return status;
    }
    weights_[row * 2] += static_cast<float>(steps_);
    weights_[row * 2 + 1] -= 1;
    moment_[row] += 0.5;
    return Status::Ok();
  }

  const std::uint64_t seed_;
  std::shared_ptr<CutGate> gate_ = std::make_shared<CutGate>();  // shared with table and pieces
  std::vector<float> weights_ = std::vector<float>(kItems * 2);
  std::vector<double> moment_ = std::vector<double>(kItems);
  std::vector<double> dense_ = std::vector<double>(20);
  std::unique_ptr<Table> table_;
  std::vector<std::unique_ptr<RowTracked>> pieces_;
  std::int64_t steps_ = 0;
};

/// The digests of all steps, made as they are asked for.
class Digests {
 public:
  explicit Digests(std::uint64_t seed) : training_(seed) {}

  /// After so many steps.
  Result<std::uint64_t> At(std::int64_t steps) {
    while (static_cast<std::int64_t>(known_.size()) <= steps) {
      if (!known_.empty()) {
        if (Status status = training_.Step(); !status.ok()) return status;
      }
      known_.push_back(training_.Digest());
    }
    return known_[static_cast<std::size_t>(steps)];
  }

 private:
  RealTraining training_;
  std::vector<std::uint64_t> known_;
};

/// Restores one checkpoint (`id`; "": the latest) into a training in other pieces, and compares: ""
/// or what is wrong.
inline std::string CompareRestored(CheckpointManager* manager, const std::string& id,
                                   std::uint64_t seed, std::uint64_t pieces, Digests* digests) {
  RealTraining training(seed, pieces);
  TableCheckpoints checkpoints(manager, training.tables(), training.arrays(), {});
  RestoreRequest request;
  request.id = id;
  request.into = {training.DenseTarget()};
  const auto restored = checkpoints.Restore(std::move(request));
  if (!restored.ok()) return restored.status().ToString();
  if (!restored->has_value()) return "nothing was restored";
  if (!(*restored)->fallbacks.empty()) return "damaged: " + (*restored)->fallbacks.front();
  const auto expected = digests->At((*restored)->step);
  if (!expected.ok()) return expected.status().ToString();
  if (training.Digest() == *expected) return "";
  return "step " + std::to_string((*restored)->step) + " does not hold the rows of its step";
}

}  // namespace cairn::table
