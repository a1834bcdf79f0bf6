#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <cairn/ps.h>
#include <cairn/status.h>

#include "paramserver/exchanger.h"
#include "paramserver/payload.h"

namespace cairn::ps {

/// A table as a trainer sees it: batches are split by server and put together again.
class RemoteTableImpl final : public RemoteTable {
 public:
  RemoteTableImpl(Exchanger* client, TableSpec spec) : client_(client), spec_(std::move(spec)) {}

  const TableSpec& spec() const override { return spec_; }
  Status Lookup(std::span<const std::int64_t> ids, std::span<float> out, Missing missing) override;
  Status ApplyGradients(std::span<const std::int64_t> ids,
                        std::span<const float> gradients) override {
    return SendRows(Kind::kPush, ids, gradients);
  }
  Status Assign(std::span<const std::int64_t> ids, std::span<const float> values) override {
    return SendRows(Kind::kAssign, ids, values);
  }
  Result<std::uint64_t> Erase(std::span<const std::int64_t> ids) override;
  Result<std::optional<EvictReport>> Evict(std::int64_t step) override;
  Status SetLearningRate(float rate) override;
  Result<float> LearningRate() override;
  Result<std::uint64_t> Size() override;
  Result<TableContent> Content() override;

  Status Declare();

 private:
  Status SendRows(Kind kind, std::span<const std::int64_t> ids, std::span<const float> rows);

  Exchanger* const client_;
  const TableSpec spec_;
  std::vector<std::uint32_t> ids_;  // on each server
};

}  // namespace cairn::ps
