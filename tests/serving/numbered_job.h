#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <cairn/table_checkpoint.h>

/// A training job each of whose cuts has a number of its own, which all rows of two tables and one
/// dense weight carry. Shared by the process that trains and the test that watches.
namespace cairn::serving {

inline constexpr std::int64_t kRows = 300;
inline constexpr std::uint32_t kDimA = 4;
inline constexpr std::uint32_t kDimB = 2;

/// The last number, in a file that outlives killed processes.
class Numbers {
 public:
  explicit Numbers(const std::string& path) {
    const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, sizeof(*last_)) != 0) return;
    void* memory = mmap(nullptr, sizeof(*last_), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (memory != MAP_FAILED) last_ = static_cast<std::atomic<std::int64_t>*>(memory);
  }
  ~Numbers() {
    if (last_ != nullptr) munmap(last_, sizeof(*last_));
  }
  Numbers(const Numbers&) = delete;
  Numbers& operator=(const Numbers&) = delete;

  bool ok() const { return last_ != nullptr; }
  std::int64_t Next() { return last_->fetch_add(1) + 1; }
  std::int64_t Last() const { return last_->load(); }

 private:
  std::atomic<std::int64_t>* last_ = nullptr;
};

inline std::unique_ptr<Table> MakeNumberedTable(const std::string& name, std::uint32_t dim) {
  TableOptions options;
  options.name = name;
  options.dim = dim;
  options.optimizer = MakeSgd({0.1F}).value();
  options.initializer = MakeConstant(0).value();
  options.gate = CutGate::Process();
  return Table::Make(options).value();
}

inline Status SetAllRows(Table* table, float number) {
  std::vector<std::int64_t> keys;
  for (std::int64_t key = 0; key < kRows; ++key) keys.push_back(key * 7919 - kRows);
  const std::vector<float> values(keys.size() * table->options().dim, number);
  return table->Assign(keys, values);
}
inline std::int64_t NumberedKey(std::uint64_t random) {
  return static_cast<std::int64_t>(random % kRows) * 7919 - kRows;
}

}  // namespace cairn::serving
