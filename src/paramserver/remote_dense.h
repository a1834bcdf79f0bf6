#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <cairn/ps.h>
#include <cairn/status.h>

#include "paramserver/exchanger.h"
#include "paramserver/placement.h"

namespace cairn::ps {

/// A dense variable as a trainer sees it: whole, put together from the servers' blocks.
class RemoteDenseImpl final : public RemoteDense {
 public:
  RemoteDenseImpl(Exchanger* client, DenseSpec spec, DenseShape shape,
                  std::span<const float> initial)
      : client_(client),
        spec_(std::move(spec)),
        shape_(shape),
        initial_(initial.begin(), initial.end()) {}

  const DenseSpec& spec() const override { return spec_; }
  Status Pull(std::span<float> out) override;
  Status Push(std::span<const float> gradient) override;

  Status Declare();
  /// Values, and the optimizer's slots: `slot_width` a row.
  Status Export(std::size_t slot_width, std::vector<float>* values, std::vector<float>* slots);
  const DenseShape& shape() const { return shape_; }

 private:
  /// Calls `fn(offset in the variable, elements)` for each block of a server, in order.
  template <typename Fn>
  void ForBlocks(int server, const Fn& fn) const;
  std::size_t ElementsAt(int server) const;

  Exchanger* const client_;
  const DenseSpec spec_;
  const DenseShape shape_;
  const std::vector<float> initial_;  // for servers that begin anew
  std::vector<std::uint32_t> ids_;
};

}  // namespace cairn::ps
