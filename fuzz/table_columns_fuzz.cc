// Columns of a table as they may come from a damaged file. Whatever they hold: loading says
// Corruption or Mismatch and leaves the table empty, or the table holds exactly the rows, and
// saving and loading it again gives the same.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include <cairn/table.h>

#include "fuzz/require.h"

namespace cairn {
namespace {

std::unique_ptr<Table> MakeTable() {
  TableOptions options;
  options.name = "t";
  options.dim = 1;
  options.optimizer = MakeSgd({}).value();
  options.initializer = MakeConstant(0).value();
  options.admission = AdmissionOptions{2};
  return Table::Make(std::move(options)).value();
}

/// Takes numbers off the input; zeros when it is used up.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  template <typename T>
  T Take() {
    T value{};
    const std::size_t n = std::min(size_, sizeof value);
    if (n > 0) std::memcpy(&value, data_, n);
    data_ += n;
    size_ -= n;
    return value;
  }

 private:
  const uint8_t* data_;
  size_t size_;
};

struct Columns {
  std::vector<std::int64_t> keys;
  std::vector<std::int64_t> frequency;
  std::vector<std::int64_t> version;
  std::vector<float> values;
  std::vector<std::int64_t> offsets;
};

Columns Build(Input* input) {
  Columns columns;
  const std::size_t rows = input->Take<std::uint8_t>() % 32;
  for (std::size_t i = 0; i < rows; ++i) {
    columns.keys.push_back(input->Take<std::int16_t>());
    columns.frequency.push_back(input->Take<std::int8_t>());
    columns.version.push_back(input->Take<std::int8_t>());
    columns.values.push_back(static_cast<float>(input->Take<std::int8_t>()));
  }
  columns.offsets.resize(kTableShards + 1);
  if (input->Take<std::uint8_t>() % 4 != 0) {
    // Where the keys belong: most inputs shall get past the first check.
    std::sort(columns.keys.begin(), columns.keys.end(), [](std::int64_t a, std::int64_t b) {
      return std::pair(TableShardOf(a), a) < std::pair(TableShardOf(b), b);
    });
    for (const std::int64_t key : columns.keys) ++columns.offsets[TableShardOf(key) + 1];
    for (std::size_t s = 0; s < kTableShards; ++s) columns.offsets[s + 1] += columns.offsets[s];
  }
  for (int i = input->Take<std::uint8_t>() % 3; i > 0; --i) {
    columns.offsets[input->Take<std::uint16_t>() % columns.offsets.size()] =
        input->Take<std::int64_t>();
  }
  return columns;
}

Status Load(Table* table, const Columns& columns, Input* input) {
  auto loader = TableLoader::Begin(table, {}).value();
  Status status = loader->BeginCheckpoint(CutKind::kFull);
  if (!status.ok()) return status;
  const std::uint64_t n = columns.keys.size();
  const std::vector<StoredColumn> stored = {{"keys", DType::kI64, {n}},
                                            {"values", DType::kF32, {n, 1}},
                                            {"frequency", DType::kI64, {n}},
                                            {"version", DType::kI64, {n}},
                                            {"shard_offsets", DType::kI64, {kTableShards + 1}}};
  auto part = loader->BeginPart(stored, columns.offsets);
  if (!part.ok()) return part.status();
  RowBlock block;
  block.keys = columns.keys;
  block.frequency = columns.frequency;
  block.version = columns.version;
  block.values = std::as_bytes(std::span(columns.values));
  status = (*part)->AddRows(block);
  if (!status.ok()) return status;
  const std::int64_t pending = input->Take<std::int8_t>();
  const std::int64_t count = input->Take<std::int8_t>();
  status = loader->AddPending({&pending, 1}, {&count, 1}, {});
  if (!status.ok()) return status;
  return loader->Finish();
}

}  // namespace
}  // namespace cairn

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cairn;
  Input input(data, size);
  const Columns columns = Build(&input);
  auto table = MakeTable();
  const Status loaded = Load(table.get(), columns, &input);
  if (!loaded.ok()) {
    Require(loaded.Is(Code::kCorruption) || loaded.reason() == Reason::kMismatch,
            "bad columns are Corruption or a Mismatch");
    Require(table->size() == 0 && table->pending_size() == 0, "a failed load leaves nothing");
    return 0;
  }
  Require(table->size() == columns.keys.size(), "every row is there");
  std::map<std::int64_t, float> rows;
  for (std::size_t i = 0; i < columns.keys.size(); ++i) rows[columns.keys[i]] = columns.values[i];
  for (const auto& [key, value] : rows) {
    float found = 0;
    Require(table->Lookup({&key, 1}, {&found, 1}, Missing::kInitial).ok() && found == value,
            "every row has its value");
  }
  return 0;
}
