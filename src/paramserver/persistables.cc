#include "paramserver/persistables.h"

#include <algorithm>
#include <deque>
#include <numeric>
#include <utility>

#include <cairn/checkpoint_manager.h>
#include <cairn/optimizer.h>
#include <cairn/table.h>

#include "base/status_macros.h"
#include "format/half_float.h"
#include "paramserver/declaration.h"

namespace cairn::ps {
namespace {

/// The columns of a table's rows, grouped by shard (docs/format/tables.md). The tensors borrow from
/// this.
class Columns {
 public:
  Status Add(const PulledTable& table, SaveRequest* request) {
    const TableContent& content = table.content;
    const TableSpec& spec = table.spec;
    const std::size_t rows = content.keys.size();
    ASSIGN_OR_RETURN(const auto optimizer, MakeOptimizer(spec.optimizer));
    const std::vector<SlotSpec> slots = optimizer->Slots(spec.dim);
    std::size_t slot_floats = 0;
    for (const SlotSpec& slot : slots) slot_floats += slot.width;
    if (content.slots.size() != rows * slot_floats) {
      return CorruptionError("table \"" + spec.name + "\": rows with other slots");
    }
    std::vector<std::size_t> order(rows);
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      const auto shard = [&](std::size_t i) { return TableShardOf(content.keys[i]); };
      return std::pair(shard(a), content.keys[a]) < std::pair(shard(b), content.keys[b]);
    });
    std::vector<std::int64_t> offsets(kTableShards + 1, 0);
    for (const std::int64_t key : content.keys) ++offsets[TableShardOf(key) + 1];
    std::partial_sum(offsets.begin(), offsets.end(), offsets.begin());

    const std::string prefix = spec.name + "/";
    const auto gather = [&](const std::vector<float>& from, std::size_t stride, std::size_t first,
                            std::size_t width) {
      std::vector<float> column;
      column.reserve(rows * width);
      for (const std::size_t i : order) {
        const auto at = from.begin() + static_cast<std::ptrdiff_t>(i * stride + first);
        column.insert(column.end(), at, at + static_cast<std::ptrdiff_t>(width));
      }
      return column;
    };
    const auto numbers = [&](const std::vector<std::int64_t>& from) {
      std::vector<std::int64_t> column;
      column.reserve(rows);
      for (const std::size_t i : order) column.push_back(from[i]);
      return column;
    };
    const std::vector<float> values = gather(content.weights, spec.dim, 0, spec.dim);
    std::vector<std::byte>& stored =
        bytes_.emplace_back(values.size() * static_cast<std::size_t>(DTypeBits(spec.dtype)) / 8);
    if (rows > 0) WriteFloats(spec.dtype, values.data(), values.size(), stored.data());
    Put(request, prefix + "values", spec.dtype, {rows, spec.dim}, stored.data());
    std::size_t first = 0;
    for (const SlotSpec& slot : slots) {
      floats_.push_back(gather(content.slots, slot_floats, first, slot.width));
      Put(request, prefix + "slot/" + slot.name, DType::kF32, {rows, slot.width},
          floats_.back().data());
      first += slot.width;
    }
    PutNumbers(request, prefix + "keys", numbers(content.keys));
    PutNumbers(request, prefix + "frequency", numbers(content.frequency));
    PutNumbers(request, prefix + "version", numbers(content.version));
    PutNumbers(request, prefix + "shard_offsets", std::move(offsets));
    if (spec.admission) {
      // Keys that are not admitted yet stay with the servers.
      for (const char* name : {"pending_keys", "pending_counts", "pending_versions"}) {
        PutNumbers(request, prefix + name, {});
      }
    }
    request->tables.push_back(
        {.name = spec.name, .dim = spec.dim, .dtype = spec.dtype, .rows = rows});
    return Status::Ok();
  }

 private:
  static void Put(SaveRequest* request, std::string name, DType dtype,
                  std::vector<std::uint64_t> shape, const void* data) {
    Tensor tensor;
    tensor.group = TensorGroup::kTable;
    tensor.name = std::move(name);
    tensor.dtype = dtype;
    tensor.shape = std::move(shape);
    tensor.data = data;
    request->tensors.push_back(std::move(tensor));
  }
  void PutNumbers(SaveRequest* request, std::string name, std::vector<std::int64_t> column) {
    numbers_.push_back(std::move(column));
    Put(request, std::move(name), DType::kI64, {numbers_.back().size()}, numbers_.back().data());
  }

  std::deque<std::vector<std::byte>> bytes_;
  std::deque<std::vector<float>> floats_;
  std::deque<std::vector<std::int64_t>> numbers_;
};

}  // namespace

Result<std::string> SavePulled(const std::string& directory, std::int64_t step, Mode mode,
                               const std::vector<PulledTable>& tables,
                               const std::vector<PulledDense>& dense) {
  JobFile job{.mode = mode, .servers = 1, .step = step};
  SaveRequest request;
  request.step = step;
  request.blocking = true;
  Columns columns;
  for (const PulledTable& table : tables) {
    RETURN_IF_ERROR(columns.Add(table, &request));
    job.tables.push_back(table.spec);
  }
  for (const PulledDense& variable : dense) {
    Tensor values;
    values.name = variable.spec.name;
    values.shape = variable.spec.shape;
    values.data = variable.values.data();
    request.tensors.push_back(std::move(values));
    if (!variable.slots.empty()) {
      const std::uint64_t rows = variable.spec.shape.empty() ? 1 : variable.spec.shape[0];
      Tensor slots;
      slots.name = variable.spec.name + "/slots";
      slots.shape = {rows, variable.slots.size() / rows};
      slots.data = variable.slots.data();
      request.tensors.push_back(std::move(slots));
    }
    job.dense.push_back(variable.spec);
  }
  request.state_files[kJobFile] = Encode(job);
  ManagerOptions options{.directory = directory};
  options.participant = "ps";
  options.retention.keep_last = 1;
  ASSIGN_OR_RETURN(const auto manager, CheckpointManager::Open(std::move(options)));
  ASSIGN_OR_RETURN(SaveHandle handle, manager->Save(std::move(request)));
  ASSIGN_OR_RETURN(const CheckpointInfo info, handle.Wait());
  RETURN_IF_ERROR(manager->Close());
  return info.path;
}

}  // namespace cairn::ps
