#pragma once

// What tests of copies, exports, imports and merges save and read back.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <cairn/checkpoint_manager.h>

#include "checkpoint/test_checkpoint.h"
#include "format/safetensors.h"
#include "storage/local/temp_directory.h"

namespace cairn {

/// Counting on from `first`.
inline std::vector<float> Numbers(std::size_t count, double first) {
  std::vector<float> numbers(count);
  std::iota(numbers.begin(), numbers.end(), static_cast<float>(first));
  return numbers;
}

inline Tensor View(const std::string& name, const std::vector<float>& numbers) {
  return {.name = name, .shape = {numbers.size()}, .data = numbers.data()};
}

/// What one save puts in: weights that change, frozen ones that do not, a state and a file.
struct SavedState {
  std::vector<float> weights;
  std::vector<float> frozen = Numbers(3000, 7);
  std::vector<float> state;

  explicit SavedState(std::int64_t step)
      : weights(Numbers(5000, static_cast<double>(step))),
        state(Numbers(10, static_cast<double>(-step))) {}

  SaveRequest Request(std::int64_t step) const {
    Tensor own = View("rng", state);
    own.group = TensorGroup::kState;
    return {.step = step,
            .tensors = {View("weights", weights), View("frozen", frozen), own},
            .counters = Value::Object{{"epoch", step / 10}},
            .metrics = Value::Object{{"loss", 1.0 / static_cast<double>(step + 1)}},
            .metadata = Value::Object{{"name", "ümläut"}},
            .files = {{.name = "config.json", .bytes = "{\"step\": " + std::to_string(step) + "}"}},
            .state_files = {{"state.json", "{}"}},
            .blocking = true};
  }
};

inline std::vector<float> Floats(const OwnedTensor& tensor) {
  std::vector<float> numbers(tensor.bytes / sizeof(float));
  std::memcpy(numbers.data(), tensor.data.get(), tensor.bytes);
  return numbers;
}

inline std::map<std::string, std::vector<float>> RestoreAll(CheckpointManager* manager,
                                                            const std::string& id = "") {
  auto restored = manager->Restore({.allocate = true, .id = id});
  EXPECT_TRUE(restored.ok()) << restored.status().ToString();
  std::map<std::string, std::vector<float>> tensors;
  if (!restored.ok() || !restored->has_value()) return tensors;
  for (const OwnedTensor& tensor : (*restored)->tensors) tensors[tensor.name] = Floats(tensor);
  return tensors;
}

/// The public functions, on the disk.
class TransferTest : public testing::Test {
 protected:
  std::string Path(const std::string& name) const { return directory_ / name; }

  CheckpointInfo Save(const std::string& name, const SaveRequest& request,
                      ManagerOptions options = {}) {
    options.directory = Path(name);
    options.retention.keep_last.reset();
    options.pool_bytes = 0;
    auto manager = CheckpointManager::Open(std::move(options));
    EXPECT_TRUE(manager.ok()) << manager.status().ToString();
    SaveRequest blocking = request;
    blocking.blocking = true;
    auto saved = (*manager)->Save(std::move(blocking));
    EXPECT_TRUE(saved.ok()) << saved.status().ToString();
    EXPECT_TRUE((*manager)->Close().ok());
    return saved.ok() ? saved->Wait().value() : CheckpointInfo();
  }
  CheckpointInfo Save(const std::string& name, std::int64_t step) {
    const SavedState state(step);
    return Save(name, state.Request(step));
  }
  std::unique_ptr<CheckpointManager> Reader(const std::string& name) {
    auto manager = CheckpointManager::Open({.directory = Path(name), .read_only = true});
    EXPECT_TRUE(manager.ok()) << manager.status().ToString();
    return *std::move(manager);
  }
  static std::string Read(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    EXPECT_TRUE(in) << path;
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static void Write(const std::string& path, const std::string& bytes) {
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path, std::ios::binary) << bytes;
  }
  /// A plain safetensors file of float tensors.
  static void WriteSafetensors(const std::string& path,
                               const std::map<std::string, std::vector<float>>& tensors) {
    std::vector<TensorEntry> entries;
    std::string data;
    for (const auto& [name, numbers] : tensors) {
      const std::string bytes = BytesOf(numbers);
      entries.push_back({.name = name,
                         .dtype = DType::kF32,
                         .shape = {numbers.size()},
                         .begin = data.size(),
                         .end = data.size() + bytes.size()});
      data += bytes;
    }
    Write(path, EncodeSafetensorsHeader(entries, {}).value() + data);
  }
  static std::map<std::string, std::vector<float>> ReadSafetensors(const std::string& path) {
    const std::string bytes = Read(path);
    const std::uint64_t length = SafetensorsHeaderBytes(bytes.substr(0, 8), bytes.size()).value();
    const auto header = DecodeSafetensorsHeader(bytes.substr(0, length), bytes.size()).value();
    EXPECT_EQ(header.metadata.at("format"), "pt");
    std::map<std::string, std::vector<float>> tensors;
    for (const TensorEntry& entry : header.tensors) {
      std::vector<float> numbers((entry.end - entry.begin) / sizeof(float));
      std::memcpy(numbers.data(), bytes.data() + header.data_offset + entry.begin,
                  entry.end - entry.begin);
      tensors[entry.name] = numbers;
    }
    return tensors;
  }
  std::vector<std::string> Names(const std::string& path) {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path))
      names.push_back(entry.path().filename());
    return names;
  }

  TempDirectory directory_;
};

}  // namespace cairn
