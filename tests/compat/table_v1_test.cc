// Columns of tables, version 1, as they were written once and for ever: tests/compat/table_v1/
// holds the file of a full, of an increment and of an 8-bit increment with compressed keys, of one
// small table. Each must load to what it held; docs/format/tables.md shows the second.
//
// CAIRN_WRITE_GOLDEN=1 writes the files that do not exist yet.

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "format/safetensors.h"
#include "table/test_table.h"

namespace cairn::table {
namespace {

const std::filesystem::path kRoot = "tests/compat/table_v1";

std::unique_ptr<Table> GoldenTable() {
  TableOptions options = SmallOptions(2);
  options.name = "users";
  options.optimizer = MakeAdagrad({.learning_rate = 0.5F, .initial_accumulator_value = 1}).value();
  options.initializer = MakeConstant(0.25F).value();
  options.admission = AdmissionOptions{2};
  return SmallTable(options);
}

void Look(Table* table, const std::vector<std::int64_t>& ids) {
  std::vector<float> out(ids.size() * 2);
  ASSERT_TRUE(table->Lookup(ids, out).ok());
}

/// A cut as a safetensors file.
std::string FileOf(TableCut* cut) {
  const StoredTable stored = ReadCut(cut);
  std::vector<TensorEntry> entries;
  std::string data;
  for (const auto& [name, bytes] : stored.bytes) {
    TensorEntry entry;
    entry.name = "users/" + name;
    for (const StoredColumn& column : stored.columns) {
      if (column.name != name) continue;
      entry.dtype = column.dtype;
      entry.shape = column.shape;
    }
    entry.begin = data.size();
    data.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    entry.end = data.size();
    entries.push_back(std::move(entry));
  }
  return EncodeSafetensorsHeader(entries, {}).value() + data;
}

void WriteOnce(const std::string& name, TableCut* cut) {
  const std::string bytes = FileOf(cut);
  cut->Committed();
  if (std::getenv("CAIRN_WRITE_GOLDEN") == nullptr || std::filesystem::exists(kRoot / name)) return;
  std::filesystem::create_directories(kRoot);
  std::ofstream(kRoot / name, std::ios::binary) << bytes;
}

StoredTable ReadGolden(const std::string& name, CutKind kind) {
  std::ifstream in(kRoot / name, std::ios::binary);
  const std::string file{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  std::uint64_t length = 0;
  EXPECT_GE(file.size(), sizeof length) << kRoot / name;
  std::memcpy(&length, file.data(), sizeof length);
  const auto header =
      DecodeSafetensorsHeader(std::string_view(file).substr(0, 8 + length), file.size()).value();
  StoredTable stored;
  stored.kind = kind;
  for (const TensorEntry& tensor : header.tensors) {
    const std::string column = tensor.name.substr(std::string("users/").size());
    stored.columns.push_back({column, tensor.dtype, tensor.shape});
    const auto* begin = reinterpret_cast<const std::byte*>(file.data()) + header.data_offset;
    stored.bytes[column].assign(begin + tensor.begin, begin + tensor.end);
  }
  stored.rows = static_cast<std::uint64_t>(stored.Get<std::int64_t>("shard_offsets").back());
  return stored;
}

TEST(TableV1, TheGoldenFilesLoadToWhatTheyHeld) {
  auto table = GoldenTable();
  table->set_step(10);
  Look(table.get(), {1, 1, -7, -7, 1LL << 40, 1LL << 40, 99});
  Push(table.get(), {1, -7}, 1.0F);
  WriteOnce("full.safetensors", CutOf(table.get(), CutKind::kFull).get());
  const Rows at_full = RowsOf(table.get());
  table->set_step(20);
  Push(table.get(), {1, 1}, 0.5F);
  ASSERT_TRUE(table->Erase(std::vector<std::int64_t>{-7}).ok());
  Look(table.get(), {5});
  WriteOnce("increment.safetensors", CutOf(table.get(), CutKind::kConsecutive).get());
  const Rows at_increment = RowsOf(table.get());
  table->set_step(30);
  Push(table.get(), {1LL << 40}, 0.5F);
  WriteOnce(
      "increment8.safetensors",
      CutOf(table.get(), CutKind::kConsecutive, {.quantize = true, .compress_keys = true}).get());
  const Rows at_last = RowsOf(table.get());

  const StoredTable full = ReadGolden("full.safetensors", CutKind::kFull);
  const StoredTable increment = ReadGolden("increment.safetensors", CutKind::kConsecutive);
  const StoredTable increment8 = ReadGolden("increment8.safetensors", CutKind::kConsecutive);
  EXPECT_TRUE(increment8.bytes.contains("keys_zstd"));
  auto restored = GoldenTable();
  ASSERT_TRUE(LoadChain(restored.get(), {{full}}).ok());
  EXPECT_EQ(RowsOf(restored.get()), at_full);
  EXPECT_EQ(restored->pending_size(), 1u);
  ASSERT_TRUE(LoadChain(restored.get(), {{full}, {increment}}).ok());
  EXPECT_EQ(RowsOf(restored.get()), at_increment);
  EXPECT_EQ(restored->pending_size(), 2u);
  ASSERT_TRUE(LoadChain(restored.get(), {{full}, {increment}, {increment8}}).ok());
  const Rows last = RowsOf(restored.get());
  ASSERT_EQ(last.size(), at_last.size());
  for (const auto& [key, row] : at_last) {
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_NEAR(last.at(key).weights[i], row.weights[i], 0.01F);
      EXPECT_NEAR(last.at(key).slots[i], row.slots[i], 0.01F);
    }
  }
}

}  // namespace
}  // namespace cairn::table
