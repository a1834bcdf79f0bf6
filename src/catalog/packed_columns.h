#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/status.h>

namespace cairn {

/// The bytes of report and log blocks (docs/format/catalog.md): columns with names, each compressed
/// by itself, so that a reader unpacks those that it wants. Pure functions.

inline constexpr std::uint32_t kMaxPackedRows = 1u << 16;
/// Rows × columns: bounds what unpacking takes, however well it was compressed.
inline constexpr std::uint64_t kMaxPackedCells = 1u << 22;
inline constexpr std::uint32_t kMaxPackedColumns = 4096;
inline constexpr std::size_t kMaxPackedColumnBytes = 64u << 20;

/// What a column's bytes are.
enum class PackedType : std::uint8_t {
  kNumbers = 1,   // of each row: an integer, as the difference to the one before
  kDoubles = 2,   // a bitmap of the rows that have one, then 8 bytes each
  kIntegers = 3,  // a bitmap of the rows that have one, then numbers
  kTexts = 4,     // of each row: length, bytes
};

class PackedWriter {
 public:
  explicit PackedWriter(std::uint32_t rows) : rows_(rows) {}

  void Numbers(std::string_view name, const std::vector<std::int64_t>& values);
  void Doubles(std::string_view name, const std::vector<std::optional<double>>& values);
  void Integers(std::string_view name, const std::vector<std::optional<std::int64_t>>& values);
  void Texts(std::string_view name, const std::vector<std::string>& values);
  std::string Finish() &&;

 private:
  void Add(PackedType type, std::string_view name, std::string bytes);

  const std::uint32_t rows_;
  std::uint32_t columns_ = 0;
  std::string directory_;
  std::string data_;
};

/// Corruption for whatever is not as a writer made it; nothing is allocated on the word of a length
/// that was not checked.
class PackedReader {
 public:
  struct Column {
    PackedType type = PackedType::kNumbers;
    std::string name;
    std::size_t offset = 0;
    std::uint32_t stored = 0;  // bytes here; as many as `raw`: not compressed
    std::uint32_t raw = 0;
  };

  static Result<PackedReader> Open(std::string bytes);

  std::uint32_t rows() const { return rows_; }
  const std::vector<Column>& columns() const { return columns_; }
  const Column* Find(std::string_view name) const;

  Result<std::vector<std::int64_t>> Numbers(std::string_view name) const;
  Result<std::vector<std::optional<double>>> Doubles(const Column& column) const;
  Result<std::vector<std::optional<std::int64_t>>> Integers(const Column& column) const;
  Result<std::vector<std::string>> Texts(std::string_view name) const;

 private:
  Result<std::string> Unpack(const Column& column) const;

  std::string bytes_;
  std::uint32_t rows_ = 0;
  std::vector<Column> columns_;
};

}  // namespace cairn
