#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <cairn/table.h>

/// What tests of tables share: small tables, cuts read into memory and loaded again.
namespace cairn::table {

inline TableOptions SmallOptions(std::uint32_t dim = 4) {
  TableOptions options;
  options.name = "t";
  options.dim = dim;
  options.optimizer = MakeAdagrad({.learning_rate = 0.1F}).value();
  options.initializer = MakeUniform(-1, 1).value();
  options.seed = 5;
  options.gate = std::make_shared<CutGate>();  // not shared with other tests
  return options;
}

inline std::unique_ptr<Table> SmallTable(TableOptions options = SmallOptions()) {
  return Table::Make(std::move(options)).value();
}

struct RowCopy {
  std::uint64_t frequency = 0;
  std::int64_t version = 0;
  std::vector<float> weights;
  std::vector<float> slots;
  friend bool operator==(const RowCopy&, const RowCopy&) = default;
};
using Rows = std::map<std::int64_t, RowCopy>;

inline Rows RowsOf(Table* table) {
  Rows rows;
  EXPECT_TRUE(table
                  ->ForEach([&](const RowView& row) {
                    const bool fresh =
                        rows.emplace(row.key, RowCopy{row.frequency,
                                                      row.version,
                                                      {row.weights.begin(), row.weights.end()},
                                                      {row.slots.begin(), row.slots.end()}})
                            .second;
                    EXPECT_TRUE(fresh) << "key " << row.key << " twice";
                    return Status::Ok();
                  })
                  .ok());
  return rows;
}

/// A cut as it would lie in a file.
struct StoredTable {
  CutKind kind = CutKind::kFull;
  std::uint64_t rows = 0;
  std::vector<StoredColumn> columns;
  std::map<std::string, std::vector<std::byte>> bytes;

  template <typename T>
  std::vector<T> Get(const std::string& name) const {
    const auto it = bytes.find(name);
    if (it == bytes.end()) return {};
    std::vector<T> out(it->second.size() / sizeof(T));
    if (!out.empty()) std::memcpy(out.data(), it->second.data(), it->second.size());
    return out;
  }
  std::vector<std::int64_t> Keys() const {
    if (!bytes.contains("keys_zstd")) return Get<std::int64_t>("keys");
    return DecodeTableKeys(bytes.at("keys_zstd"), rows).value();
  }
};

/// Reads all tensors of a cut, in an order and in blocks that `seed` chooses; calls `before` before
/// each block.
inline StoredTable ReadCut(TableCut* cut, std::uint64_t seed = 1,
                           const std::function<void()>& before = {}) {
  std::mt19937_64 random(seed);
  StoredTable stored;
  stored.kind = cut->kind();
  stored.rows = cut->summary().rows;
  std::vector<Tensor> tensors = cut->Tensors();
  std::shuffle(tensors.begin(), tensors.end(), random);
  for (const Tensor& tensor : tensors) {
    EXPECT_EQ(tensor.group, TensorGroup::kTable);
    const std::string name = tensor.name.substr(cut->summary().name.size() + 1);
    std::uint64_t size = static_cast<std::uint64_t>(DTypeBits(tensor.dtype)) / 8;
    for (const std::uint64_t d : tensor.shape) size *= d;
    std::vector<std::byte> bytes(size);
    if (tensor.source == nullptr) {
      std::memcpy(bytes.data(), tensor.data, size);
    } else {
      for (std::uint64_t at = 0; at < size;) {
        const std::uint64_t n = std::min<std::uint64_t>(size - at, 1 + random() % 5000);
        if (before) before();
        const Status filled = tensor.source->Fill(at, std::span(bytes).subspan(at, n));
        EXPECT_TRUE(filled.ok()) << filled.ToString();
        if (!filled.ok()) return stored;
        at += n;
      }
    }
    stored.columns.push_back({name, tensor.dtype, tensor.shape});
    stored.bytes[name] = std::move(bytes);
  }
  return stored;
}

/// Loads a part of a checkpoint, `block` rows at a time.
inline Status LoadPart(TableLoader* loader, const StoredTable& stored, const Table& table,
                       std::size_t block = 1000) {
  const auto offsets = stored.Get<std::int64_t>("shard_offsets");
  auto part = loader->BeginPart(stored.columns, offsets);
  if (!part.ok()) return part.status();
  if (Status s = loader->AddDeleted(stored.Get<std::int64_t>("deleted")); !s.ok()) return s;
  const auto keys = stored.Keys();
  const auto frequency = stored.Get<std::int64_t>("frequency");
  const auto version = stored.Get<std::int64_t>("version");
  const auto slice = [&](const std::string& name, std::size_t first, std::size_t count) {
    const std::vector<std::byte>& bytes = stored.bytes.at(name);
    const std::size_t row = bytes.size() / std::max<std::size_t>(stored.rows, 1);
    return std::span<const std::byte>(bytes).subspan(first * row, count * row);
  };
  const auto floats = [&](const std::string& name, std::size_t first, std::size_t count) {
    if (!stored.bytes.contains(name)) return std::span<const float>();
    const auto bytes = slice(name, first, count);
    return std::span(reinterpret_cast<const float*>(bytes.data()), count);
  };
  for (const RowRange& range : (*part)->rows()) {
    for (std::uint64_t at = range.first; at < range.first + range.count; at += block) {
      const std::size_t n = std::min<std::uint64_t>(block, range.first + range.count - at);
      RowBlock rows;
      rows.first = at;
      rows.keys = std::span(keys).subspan(at, n);
      rows.frequency = std::span(frequency).subspan(at, n);
      rows.version = std::span(version).subspan(at, n);
      rows.values = slice("values", at, n);
      rows.value_scale = floats("values_scale", at, n);
      for (const SlotSpec& slot : table.slots()) {
        rows.slots.push_back(slice("slot/" + slot.name, at, n));
        rows.slot_scale.push_back(floats("slot/" + slot.name + "_scale", at, n));
      }
      if (Status s = (*part)->AddRows(rows); !s.ok()) return s;
    }
  }
  return loader->AddPending(stored.Get<std::int64_t>("pending_keys"),
                            stored.Get<std::int64_t>("pending_counts"),
                            stored.Get<std::int64_t>("pending_versions"));
}

/// Loads a chain: for each checkpoint the parts of its participants.
inline Status LoadChain(Table* table, const std::vector<std::vector<StoredTable>>& chain,
                        bool merge = false) {
  auto loader = TableLoader::Begin(table, {.merge = merge});
  if (!loader.ok()) return loader.status();
  for (const std::vector<StoredTable>& checkpoint : chain) {
    if (Status s = (*loader)->BeginCheckpoint(checkpoint.front().kind); !s.ok()) return s;
    for (const StoredTable& part : checkpoint) {
      if (Status s = LoadPart(loader->get(), part, *table); !s.ok()) return s;
    }
  }
  return (*loader)->Finish();
}

inline std::unique_ptr<TableCut> CutOf(Table* table, CutKind kind, CutRequest request = {}) {
  request.kind = kind;
  Table* const tables[] = {table};
  auto cuts = CutTables(tables, request);
  EXPECT_TRUE(cuts.ok()) << cuts.status().ToString();
  return std::move(cuts.value()[0]);
}

inline StoredTable SaveCut(Table* table, CutKind kind, CutRequest request = {}) {
  auto cut = CutOf(table, kind, request);
  StoredTable stored = ReadCut(cut.get());
  cut->Committed();
  return stored;
}

/// Another table with what a chain holds.
inline std::unique_ptr<Table> Loaded(const std::vector<std::vector<StoredTable>>& chain,
                                     TableOptions options = SmallOptions()) {
  options.gate = std::make_shared<CutGate>();
  auto table = SmallTable(options);
  const Status loaded = LoadChain(table.get(), chain);
  EXPECT_TRUE(loaded.ok()) << loaded.ToString();
  return table;
}

/// Applies the gradient `g` in all elements of each id.
inline void Push(Table* table, const std::vector<std::int64_t>& ids, float g = 0.5F) {
  const std::vector<float> gradients(ids.size() * table->options().dim, g);
  ASSERT_TRUE(table->ApplyGradients(ids, gradients).ok());
}

inline std::vector<std::int64_t> Range(std::int64_t first, std::int64_t last) {
  std::vector<std::int64_t> ids;
  for (std::int64_t id = first; id < last; ++id) ids.push_back(id);
  return ids;
}

}  // namespace cairn::table
