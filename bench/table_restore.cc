// Restores of a sparse table: a full checkpoint and ten increments, against reading the same bytes
// and putting the rows into a plain map.
#if __has_include(<boost/unordered/unordered_flat_map.hpp>)
#include <boost/unordered/unordered_flat_map.hpp>
#else
#include <unordered_map>
#endif

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include <cairn/table_checkpoint.h>

#include "base/status_macros.h"
#include "bench/benchmarks.h"
#include "bench/machine.h"
#include "bench/raw_io.h"
#include "bench/table_workload.h"
#include "format/safetensors.h"

namespace cairn::bench {
namespace {

constexpr int kIncrements = 10;
constexpr std::size_t kPage = 4096;

struct FreePages {
  void operator()(std::byte* p) const { ::operator delete(p, std::align_val_t{kPage}); }
};

/// A file's bytes in memory that was not touched before.
struct FileBytes {
  std::unique_ptr<std::byte, FreePages> memory;
  std::size_t bytes = 0;
};

Result<FileBytes> ReadFresh(const std::string& path, std::uint64_t bytes) {
  FileBytes file;
  const std::size_t room = (bytes + kPage - 1) / kPage * kPage;
  file.memory.reset(
      static_cast<std::byte*>(::operator new(room, std::align_val_t{kPage}, std::nothrow)));
  if (file.memory == nullptr) return ResourceExhaustedError("no memory for " + path);
  file.bytes = bytes;
  RETURN_IF_ERROR(ReadDirect(path, {file.memory.get(), bytes}));
  return file;
}

/// What one would write without a table: rows by key, the later ones over the earlier.
class PlainRows {
 public:
  struct Row {
    std::int64_t frequency;
    std::int64_t version;
    float numbers[2 * kTableDim];
  };

  Status Add(const FileBytes& file) {
    const std::string_view bytes(reinterpret_cast<const char*>(file.memory.get()), file.bytes);
    ASSIGN_OR_RETURN(const std::uint64_t length,
                     SafetensorsHeaderBytes(bytes.substr(0, 8), file.bytes));
    ASSIGN_OR_RETURN(const auto header,
                     DecodeSafetensorsHeader(bytes.substr(0, length), file.bytes));
    std::map<std::string, const std::byte*> columns;
    std::uint64_t rows = 0;
    for (const TensorEntry& entry : header.tensors) {
      columns[entry.name] = file.memory.get() + header.data_offset + entry.begin;
      if (entry.name == "bench/keys") rows = entry.shape[0];
    }
    const std::byte* keys = columns["bench/keys"];
    const std::byte* values = columns["bench/values"];
    const std::byte* slots = columns["bench/slot/accumulator"];
    const std::byte* frequency = columns["bench/frequency"];
    const std::byte* version = columns["bench/version"];
    if (keys == nullptr || values == nullptr || slots == nullptr) {
      return InternalError("the columns have other names");
    }
    if (index_.empty()) {
      index_.reserve(rows);
      rows_.reserve(rows);
    }
    constexpr std::size_t kWidth = kTableDim * sizeof(float);
    for (std::uint64_t i = 0; i < rows; ++i) {
      std::int64_t key = 0;
      std::memcpy(&key, keys + i * 8, 8);
      const auto [at, fresh] = index_.try_emplace(key, static_cast<std::uint32_t>(rows_.size()));
      if (fresh) rows_.emplace_back();
      Row& row = rows_[at->second];
      std::memcpy(&row.frequency, frequency + i * 8, 8);
      std::memcpy(&row.version, version + i * 8, 8);
      std::memcpy(row.numbers, values + i * kWidth, kWidth);
      std::memcpy(row.numbers + kTableDim, slots + i * kWidth, kWidth);
    }
    return Status::Ok();
  }
  std::size_t size() const { return rows_.size(); }

 private:
#if __has_include(<boost/unordered/unordered_flat_map.hpp>)
  boost::unordered_flat_map<std::int64_t, std::uint32_t> index_;
#else
  std::unordered_map<std::int64_t, std::uint32_t> index_;
#endif
  std::vector<Row> rows_;
};

/// Saves a full and increments; gives their files of tables with their sizes, in order.
Result<std::vector<std::pair<std::string, std::uint64_t>>> SaveChain(const Options& options,
                                                                     CheckpointManager* manager) {
  TableWorkload work(TableRows(options), 5);
  ASSIGN_OR_RETURN(const auto table, Table::Make(TableWorkload::Options()));
  RETURN_IF_ERROR(work.Fill(table.get()));
  TableCheckpoints checkpoints(manager, {table.get()});
  std::vector<std::pair<std::string, std::uint64_t>> files;
  const std::int64_t batches =
      std::max<std::int64_t>(work.rows() / 20 / static_cast<std::int64_t>(kTableBatch), 1);
  for (int i = 0; i <= kIncrements; ++i) {
    for (std::int64_t b = 0; i > 0 && b < batches; ++b) RETURN_IF_ERROR(work.Step(table.get()));
    ASSIGN_OR_RETURN(
        const SaveHandle handle,
        checkpoints.Save({.step = i, .kind = i == 0 ? SaveKind::kFull : SaveKind::kConsecutive}));
    ASSIGN_OR_RETURN(const CheckpointInfo info, handle.Wait());
    files.emplace_back(info.path + "/__lookup_table__/rank_0.safetensors", 0);
  }
  checkpoints.Wait();
  for (auto& [path, bytes] : files) {
    std::error_code error;
    bytes = std::filesystem::file_size(path, error);
    if (error) return InternalError(path + ": " + error.message());
  }
  return files;
}

}  // namespace

Status RunTableRestore(const Options& options) {
  ASSIGN_OR_RETURN(const std::string directory, FreshDirectory(options, "table"));
  ManagerOptions manager_options;
  manager_options.directory = directory + "/repository";
  manager_options.retention.keep_last = std::nullopt;
  ASSIGN_OR_RETURN(const auto manager, CheckpointManager::Open(std::move(manager_options)));
  ASSIGN_OR_RETURN(const auto files, SaveChain(options, manager.get()));
  std::uint64_t total = 0;
  for (const auto& [path, bytes] : files) total += bytes;
  const auto rows = static_cast<std::size_t>(TableRows(options));
  const std::vector<Contender> contenders = {
      {"plain", total,
       [&](Stopwatch* watch) -> Status {
         PlainRows plain;
         watch->Start();
         for (const auto& [path, bytes] : files) {
           ASSIGN_OR_RETURN(const FileBytes file, ReadFresh(path, bytes));
           RETURN_IF_ERROR(plain.Add(file));
         }
         watch->Stop();
         return plain.size() == rows ? Status::Ok() : InternalError("other rows");
       }},
      {"restore", total,
       [&](Stopwatch* watch) -> Status {
         ASSIGN_OR_RETURN(const auto table, Table::Make(TableWorkload::Options()));
         TableCheckpoints checkpoints(manager.get(), {table.get()});
         watch->Start();
         ASSIGN_OR_RETURN(const auto restored, checkpoints.Restore({}));
         watch->Stop();
         return restored && table->size() == rows ? Status::Ok() : InternalError("other rows");
       }},
  };
  const auto prepare = [&] {
    Settle();
    return DropCaches();
  };
  RETURN_IF_ERROR(RunRounds(options, "table_restore", prepare, contenders));
  RETURN_IF_ERROR(manager->Close());
  RemoveDirectory(directory);
  return Status::Ok();
}

}  // namespace cairn::bench
