#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <cairn/ps.h>

#include "base/status_macros.h"

/// A small model whose every number depends on all that was before it: what two runs of it have in
/// common to the last bit, they did the same. Used by tests in one process and by the trainers of
/// tests/cluster.
namespace cairn::ps {

inline std::uint64_t Mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

class TestModel {
 public:
  static constexpr std::uint32_t kDim = 8;
  static constexpr std::size_t kBatch = 64;

  Status Declare(Client* client) {
    TableSpec users{.name = "users", .dim = kDim};
    users.optimizer = {"adagrad", {{"learning_rate", 0.1}}};
    users.initializer = {"normal", 0, 0.1};
    TableSpec items{.name = "items", .dim = kDim};
    items.optimizer = {"adam", {{"learning_rate", 0.01}}};
    items.initializer = {"uniform", -0.1, 0.1};
    // Its weights count the pushes of each key: the same in any order, also in async mode.
    TableSpec counts{.name = "counts", .dim = kDim};
    counts.optimizer = {"sgd", {{"learning_rate", 1}}};
    counts.initializer = {"constant", 0, 0};
    client_ = client;
    ASSIGN_OR_RETURN(users_, client->Table(users));
    ASSIGN_OR_RETURN(items_, client->Table(items));
    ASSIGN_OR_RETURN(counts_, client->Table(counts));
    const std::vector<float> weights(3000 * 7, 0.25F);
    ASSIGN_OR_RETURN(dense_, client->Dense({.name = "w",
                                            .shape = {3000, 7},
                                            .optimizer = {"momentum", {{"learning_rate", 0.05}}}},
                                           weights));
    ASSIGN_OR_RETURN(bias_, client->Dense({.name = "bias", .shape = {}, .optimizer = {"sgd", {}}},
                                          std::vector<float>{1}));
    return Status::Ok();
  }

  /// One step of one trainer: all of what it needs to repeat it is the step's number.
  Status Step(std::int64_t step) {
    const auto trainer = static_cast<std::uint64_t>(client_->trainer());
    std::vector<std::int64_t> ids(kBatch);
    for (std::size_t i = 0; i < kBatch; ++i) {
      const std::uint64_t random =
          Mix(static_cast<std::uint64_t>(step) * 1000 + trainer * 100'000'007 + i);
      // Skewed, negative too.
      ids[i] = static_cast<std::int64_t>(random % (1 + (random >> 32) % 500)) - 100;
    }
    std::vector<float> bias(1);
    RETURN_IF_ERROR(bias_->Pull(bias));
    for (RemoteTable* table : {users_, items_}) {
      std::vector<float> rows(kBatch * kDim);
      RETURN_IF_ERROR(table->Lookup(ids, rows));
      for (std::size_t i = 0; i < rows.size(); ++i) {
        rows[i] = std::sin(rows[i] * 3 + static_cast<float>(i % 11)) * bias[0];
      }
      RETURN_IF_ERROR(table->ApplyGradients(ids, rows));
    }
    RETURN_IF_ERROR(counts_->ApplyGradients(ids, std::vector<float>(kBatch * kDim, 1)));
    std::vector<float> weights(3000 * 7);
    RETURN_IF_ERROR(dense_->Pull(weights));
    for (std::size_t i = 0; i < weights.size(); ++i) {
      weights[i] = weights[i] * 0.5F - static_cast<float>((i + trainer) % 5) * 0.01F;
    }
    RETURN_IF_ERROR(dense_->Push(weights));
    const std::vector<float> gradient(1, bias[0] * 0.1F + 0.01F);
    return bias_->Push(gradient);
  }

  /// Trains until that many steps are done, whatever happens to the servers. `before` is called
  /// with each step that begins.
  Status TrainTo(std::int64_t steps, const std::function<void(std::int64_t)>& before = {}) {
    while (client_->step() < steps) {
      const std::int64_t step = client_->step();
      // The state is where the trainer is: what comes back must be what was given.
      const std::string expected = step == 0 ? "" : "at " + std::to_string(step);
      if (client_->state().value_or("") != expected) {
        return InternalError("at step " + std::to_string(step) + " with the state \"" +
                             client_->state().value_or("") + "\"");
      }
      if (before) before(step);
      Status done = Step(step);
      if (done.ok()) done = client_->EndStep("at " + std::to_string(step + 1));
      if (!done.ok() && !done.Is(Code::kAborted)) return done;
    }
    return Status::Ok();
  }

  /// Everything that was learned, by name: for comparison, to the bit.
  Result<std::map<std::string, std::vector<float>>> Learned() {
    std::map<std::string, std::vector<float>> all;
    for (RemoteTable* table : {users_, items_, counts_}) {
      ASSIGN_OR_RETURN(const TableContent content, table->Content());
      const std::size_t rows = content.keys.size();
      const std::size_t slots = rows == 0 ? 0 : content.slots.size() / rows;
      for (std::size_t i = 0; i < rows; ++i) {
        auto& row = all[table->spec().name + "/" + std::to_string(content.keys[i])];
        row.assign(content.weights.begin() + static_cast<std::ptrdiff_t>(i * kDim),
                   content.weights.begin() + static_cast<std::ptrdiff_t>((i + 1) * kDim));
        row.insert(row.end(), content.slots.begin() + static_cast<std::ptrdiff_t>(i * slots),
                   content.slots.begin() + static_cast<std::ptrdiff_t>((i + 1) * slots));
        row.push_back(static_cast<float>(content.frequency[i]));
        row.push_back(static_cast<float>(content.version[i]));
      }
    }
    all["w"].resize(3000 * 7);
    RETURN_IF_ERROR(dense_->Pull(all["w"]));
    all["bias"].resize(1);
    RETURN_IF_ERROR(bias_->Pull(all["bias"]));
    return all;
  }

  RemoteTable* users() { return users_; }
  RemoteTable* items() { return items_; }
  RemoteDense* dense() { return dense_; }

 private:
  Client* client_ = nullptr;
  RemoteTable* users_ = nullptr;
  RemoteTable* items_ = nullptr;
  RemoteTable* counts_ = nullptr;
  RemoteDense* dense_ = nullptr;
  RemoteDense* bias_ = nullptr;
};

}  // namespace cairn::ps
