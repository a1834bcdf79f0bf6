#include "tests/crash/job.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "base/checksum.h"
#include "checkpoint/names.h"
#include "checkpoint/repository.h"
#include "storage/memory/seeded_random.h"

namespace cairn::crash {
namespace {

constexpr std::string_view kSerialKey = "save";

/// Bytes that are a function of `key` alone.
std::string BytesFor(const std::string& key, std::uint64_t seed, std::size_t count) {
  SeededRandom random(Xxh3(std::as_bytes(std::span(key))) ^ seed);
  std::string bytes(count, '\0');
  for (std::size_t i = 0; i < count; i += sizeof(std::uint64_t)) {
    const std::uint64_t word = random.Next();
    std::memcpy(bytes.data() + i, &word, std::min(sizeof word, count - i));
  }
  return bytes;
}

std::map<std::string, std::string> StateFiles(int serial, int rank) {
  return {{"state.json",
           "{\"save\":" + std::to_string(serial) + ",\"rank\":" + std::to_string(rank) + "}"},
          {"step_id", std::to_string(serial)}};
}

}  // namespace

std::string Job::Bytes(const Variable& variable, int serial, int rank) const {
  const int version = variable.period == 0 ? 0 : serial / variable.period;
  std::string key = variable.name + "#" + std::to_string(version);
  if (variable.kind == Variable::Kind::kOwn) key += "@" + std::to_string(rank);
  return BytesFor(key, seed_, variable.rows * variable.columns * sizeof(float));
}

std::map<std::string, std::string> Job::UserFiles(int serial) const {
  if (!user_files_) return {};
  return {{"logs/run.txt", "save " + std::to_string(serial) + "\n"},
          {"tokenizer.bin", BytesFor("tokenizer", seed_, 5000)}};
}

/// A third of the keys are rows that change, a third are there or not, a third never change.
TestTable Job::TableOf(int serial, int rank, int world_size) const {
  TestTable table;
  for (int i = rank; i < table_keys_; i += world_size) {
    const std::uint64_t random = TestTable::Mix(seed_ + static_cast<std::uint64_t>(i));
    const std::int64_t key = static_cast<std::int64_t>(random >> 16) * (i % 2 == 0 ? 1 : -1);
    const auto now = static_cast<std::uint64_t>(serial) + random % 4;
    if (i % 3 == 1 && now % 4 == 0) continue;
    if (i % 3 == 1 && now % 4 == 1) {
      table.pending[key] = now;
      continue;
    }
    table.rows[key] = 1 + (i % 3 == 0 ? static_cast<std::uint64_t>(serial) : 0);
  }
  return table;
}

PreparedSave Job::Prepare(int serial, std::int64_t step, int rank, int world_size, SaveKind kind,
                          int since) const {
  PreparedSave save;
  save.request.step = step;
  save.request.counters = Value::Object{{std::string(kSerialKey), serial}};
  save.request.metrics = Value::Object{{"loss", 1.0 / serial}};
  save.request.state_files = StateFiles(serial, rank);
  // All ways of saving take their turns: waiting, copied at once, copied behind the caller.
  save.request.blocking = serial % 3 == 1;
  save.request.lazy = serial % 3 == 0;
  for (const Variable& variable : variables_) {
    Tensor tensor;
    tensor.name = variable.name;
    tensor.shape = {variable.rows, variable.columns};
    std::string bytes = Bytes(variable, serial, rank);
    if (variable.kind == Variable::Kind::kOwn) tensor.group = TensorGroup::kState;
    if (world_size > 1 && variable.kind == Variable::Kind::kReplicated) tensor.replicated = true;
    if (world_size > 1 && variable.kind == Variable::Kind::kSharded) {
      const std::uint64_t rows = variable.rows / static_cast<std::uint64_t>(world_size);
      const std::uint64_t first = rows * static_cast<std::uint64_t>(rank);
      const std::uint64_t row_bytes = variable.columns * sizeof(float);
      tensor.shard = ShardSpec{tensor.shape, {first, 0}};
      tensor.shape[0] = rows;
      bytes = bytes.substr(first * row_bytes, rows * row_bytes);
    }
    save.memory.push_back(std::move(bytes));
    tensor.data = save.memory.back().data();
    save.request.tensors.push_back(std::move(tensor));
  }
  save.request.kind = kind;
  if (has_table()) {
    const TestTable now = TableOf(serial, rank, world_size);
    AddTestTable("table",
                 kind == SaveKind::kFull ? now.All() : now.Since(TableOf(since, rank, world_size)),
                 &save.request, &save.memory);
  }
  if (rank == 0) {
    for (auto& [name, bytes] : UserFiles(serial)) {
      save.request.files.push_back({.name = name, .path = "", .bytes = bytes});
    }
  }
  return save;
}

int Job::SerialOf(const Value& counters) {
  const Value* serial = counters.Find(kSerialKey);
  return serial == nullptr ? 0 : static_cast<int>(serial->AsInt());
}

std::string Job::Compare(const Restored& restored, int serial, int rank) const {
  if (SerialOf(restored.counters) != serial) {
    return "the counters are those of save " + std::to_string(SerialOf(restored.counters));
  }
  if (restored.tensors.size() != variables_.size()) {
    return std::to_string(restored.tensors.size()) + " tensors instead of " +
           std::to_string(variables_.size());
  }
  for (const Variable& variable : variables_) {
    const auto it =
        std::find_if(restored.tensors.begin(), restored.tensors.end(),
                     [&](const OwnedTensor& tensor) { return tensor.name == variable.name; });
    if (it == restored.tensors.end()) return variable.name + " is missing";
    const std::string expected = Bytes(variable, serial, rank);
    if (it->bytes != expected.size() ||
        std::memcmp(it->data.get(), expected.data(), expected.size()) != 0) {
      return variable.name + " has other bytes";
    }
  }
  if (restored.state_files != StateFiles(serial, rank)) return "the state files differ";
  return "";
}

std::string Job::CompareTable(const TestTableSink& sink, int serial) const {
  if (!has_table()) return "";
  if (!sink.broken.empty()) return sink.broken;
  const auto it = sink.tables.find("table");
  if (it == sink.tables.end()) return "the table is missing";
  return it->second == TableOf(serial, 0, 1) ? "" : "the table has other rows";
}

std::string Job::CompareUserFiles(Store* store, const std::string& directory, int serial) const {
  for (const auto& [name, bytes] : UserFiles(serial)) {
    // By the manifest: in a bucket an unchanged file stands in an older checkpoint.
    RepositoryReader reader(store);
    const auto manifest = reader.ReadManifest(directory);
    if (!manifest.ok()) return manifest.status().ToString();
    const std::string path = names::Path(names::kFiles, name);
    const auto it = std::find_if(manifest->files.begin(), manifest->files.end(),
                                 [&](const ManifestFile& file) { return file.path == path; });
    if (it == manifest->files.end()) return path + " is not in the manifest";
    const auto stored =
        store->Get(it->ref.empty() ? names::Path(directory, path) : it->ref, 1u << 20);
    if (!stored.ok()) return path + ": " + stored.status().ToString();
    if (*stored != bytes) return path + " has other bytes";
  }
  return "";
}

}  // namespace cairn::crash
