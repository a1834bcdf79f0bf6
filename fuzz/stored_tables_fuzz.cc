// A file of tables with any bytes, and a manifest whose checksums fit it: what the columns say is
// believed only where it fits, and rows that are handed out lie inside of the file.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/checksum.h"
#include "checkpoint/catalog.h"
#include "checkpoint/stored_tables.h"
#include "checkpoint/table_merge.h"
#include "checkpoint/table_restore.h"
#include "fuzz/require.h"
#include "storage/memory/memory_store.h"

namespace cairn {
namespace {

class CountingSink final : public TableSink {
 public:
  std::uint64_t bytes = 0;

  Status Start(std::vector<TablePart>* parts) override {
    for (const TablePart& part : *parts) {
      Require(part.shard_offsets.empty() ||
                  static_cast<std::uint64_t>(part.shard_offsets.back()) == part.rows,
              "the shards have all rows");
    }
    return Status::Ok();
  }
  Status Block(const TablePart& part, const TableBlock& block) override {
    for (std::size_t i = 0; i < part.columns.size(); ++i) {
      if (part.columns[i].group != block.group || block.columns[i].empty()) continue;
      Require(block.columns[i].size() == block.count * part.columns[i].entry_bytes,
              "a block has whole entries");
      for (const std::byte byte : block.columns[i]) bytes += static_cast<std::uint64_t>(byte) & 1;
    }
    return Status::Ok();
  }
};

void Check(const std::string& file) {
  const std::unique_ptr<MemoryStore> store = MemoryStore::Open({}).value();
  const std::string path = "__lookup_table__/rank_0.safetensors";
  Require(store->Put("checkpoint_1/" + path, file).ok(), "the file is stored");
  FileHasher hasher;
  hasher.Update(std::as_bytes(std::span(file)));
  auto manifest = std::make_shared<Manifest>();
  manifest->id = "id";
  manifest->participants = {"rank_0"};
  manifest->files = {{.path = path, .hash = hasher.Finish(), .part = "rank_0", .ref = ""}};
  manifest->tables = {{"t", 2, DType::kF32, 0, 0}, {"u", 2, DType::kF32, 0, 0}};
  auto open = OpenCheckpoint::Open(store.get(), "checkpoint_1", manifest);
  if (!open.ok()) return;
  CountingSink sink;
  TableRestore restore(store.get(), {open->get()}, &sink, {.block_bytes = 64});
  if (restore.Start().ok()) Require(restore.Read().ok(), "what was accepted can be read");
  const auto merged = MergedTables::Open(store.get(), {open->get()});
  if (!merged.ok()) return;
  for (const auto& table : (*merged)->tables()) {
    for (std::uint32_t shard = 0; shard < table->shards() && shard < 64; ++shard) {
      const auto rows = table->Rows(shard);
      if (!rows.ok()) continue;  // a key may be there twice
      for (const TableColumn& column : table->columns()) {
        if (column.group != TableGroup::kRows || rows->empty()) continue;
        std::vector<std::byte> entry(column.entry_bytes);
        Require(table->Read(column, rows->front().member, rows->front().entry, entry).ok(),
                "rows that were found can be read");
      }
    }
    table->Pending().status().IgnoreError("likewise");
  }
}

}  // namespace
}  // namespace cairn

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  cairn::Check(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
