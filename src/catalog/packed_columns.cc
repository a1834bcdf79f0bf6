#include "catalog/packed_columns.h"

#include <fmt/format.h>
#include <zstd.h>

#include <cstring>
#include <utility>

#include "base/checksum.h"
#include "base/status_macros.h"

namespace cairn {
namespace {

constexpr std::string_view kMagic = "CPC1";
constexpr std::size_t kHeadBytes = 4 + 4 + 4;
constexpr std::size_t kChecksumBytes = 8;
constexpr std::size_t kWorthCompressing = 64;

void PutFixed(std::uint64_t value, int bytes, std::string* out) {
  for (int i = 0; i < bytes; ++i) *out += static_cast<char>(value >> (8 * i) & 0xff);
}

std::uint64_t GetFixed(std::string_view bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) {
    value = value << 8 | static_cast<unsigned char>(bytes[i]);
  }
  return value;
}

void PutVarint(std::uint64_t value, std::string* out) {
  while (value >= 0x80) {
    *out += static_cast<char>(value | 0x80);
    value >>= 7;
  }
  *out += static_cast<char>(value);
}

/// Differences wrap around, so that any two integers have one.
void PutDelta(std::int64_t value, std::uint64_t* before, std::string* out) {
  const std::uint64_t delta = static_cast<std::uint64_t>(value) - *before;
  *before = static_cast<std::uint64_t>(value);
  const auto sign = static_cast<std::uint64_t>(static_cast<std::int64_t>(delta) >> 63);
  PutVarint(delta << 1 ^ sign, out);
}

/// Takes from the front of bytes that may be anything.
class Taker {
 public:
  explicit Taker(std::string_view bytes) : bytes_(bytes) {}

  bool Varint(std::uint64_t* value) {
    *value = 0;
    for (int shift = 0; shift < 64 && !bytes_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(bytes_.front());
      bytes_.remove_prefix(1);
      *value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if ((byte & 0x80) == 0) return true;
    }
    return false;
  }
  bool Delta(std::uint64_t* before) {
    std::uint64_t coded = 0;
    if (!Varint(&coded)) return false;
    *before += coded >> 1 ^ (~(coded & 1) + 1);
    return true;
  }
  bool Bytes(std::size_t count, std::string_view* out) {
    if (bytes_.size() < count) return false;
    *out = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return true;
  }
  bool Fixed(int bytes, std::uint64_t* value) {
    std::string_view taken;
    if (!Bytes(static_cast<std::size_t>(bytes), &taken)) return false;
    *value = GetFixed(taken);
    return true;
  }
  bool empty() const { return bytes_.empty(); }
  std::size_t size() const { return bytes_.size(); }

 private:
  std::string_view bytes_;
};

template <typename T>
std::string Bitmap(const std::vector<std::optional<T>>& values) {
  std::string bits((values.size() + 7) / 8, '\0');
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i]) bits[i / 8] = static_cast<char>(bits[i / 8] | 1 << (i % 8));
  }
  return bits;
}

bool Has(std::string_view bitmap, std::size_t row) {
  return (static_cast<unsigned char>(bitmap[row / 8]) >> (row % 8) & 1) != 0;
}

Status Damaged(std::string_view what) {
  return CorruptionError(fmt::format("packed columns: {}", what));
}

}  // namespace

void PackedWriter::Add(PackedType type, std::string_view name, std::string bytes) {
  std::string packed;
  if (bytes.size() >= kWorthCompressing) {
    packed.resize(ZSTD_compressBound(bytes.size()));
    const std::size_t size =
        ZSTD_compress(packed.data(), packed.size(), bytes.data(), bytes.size(), 1);
    packed.resize(ZSTD_isError(size) != 0 ? 0 : size);
  }
  const std::string& stored = !packed.empty() && packed.size() < bytes.size() ? packed : bytes;
  PutFixed(static_cast<std::uint64_t>(type), 1, &directory_);
  PutFixed(name.size(), 4, &directory_);
  directory_ += name;
  PutFixed(stored.size(), 4, &directory_);
  PutFixed(bytes.size(), 4, &directory_);
  data_ += stored;
  ++columns_;
}

void PackedWriter::Numbers(std::string_view name, const std::vector<std::int64_t>& values) {
  std::string bytes;
  std::uint64_t before = 0;
  for (const std::int64_t value : values) PutDelta(value, &before, &bytes);
  Add(PackedType::kNumbers, name, std::move(bytes));
}

void PackedWriter::Doubles(std::string_view name,
                           const std::vector<std::optional<double>>& values) {
  std::string bytes = Bitmap(values);
  for (const auto& value : values) {
    if (!value) continue;
    std::uint64_t bits = 0;
    std::memcpy(&bits, &*value, sizeof bits);
    PutFixed(bits, 8, &bytes);
  }
  Add(PackedType::kDoubles, name, std::move(bytes));
}

void PackedWriter::Integers(std::string_view name,
                            const std::vector<std::optional<std::int64_t>>& values) {
  std::string bytes = Bitmap(values);
  std::uint64_t before = 0;
  for (const auto& value : values) {
    if (value) PutDelta(*value, &before, &bytes);
  }
  Add(PackedType::kIntegers, name, std::move(bytes));
}

void PackedWriter::Texts(std::string_view name, const std::vector<std::string>& values) {
  std::string bytes;
  for (const std::string& value : values) {
    PutVarint(value.size(), &bytes);
    bytes += value;
  }
  Add(PackedType::kTexts, name, std::move(bytes));
}

std::string PackedWriter::Finish() && {
  std::string bytes(kMagic);
  PutFixed(rows_, 4, &bytes);
  PutFixed(columns_, 4, &bytes);
  bytes += directory_;
  bytes += data_;
  PutFixed(Xxh3(bytes), 8, &bytes);
  return bytes;
}

Result<PackedReader> PackedReader::Open(std::string bytes) {
  if (bytes.size() < kHeadBytes + kChecksumBytes || !bytes.starts_with(kMagic)) {
    return Damaged("not such bytes");
  }
  const std::string_view covered = std::string_view(bytes).substr(0, bytes.size() - kChecksumBytes);
  if (Xxh3(covered) != GetFixed(std::string_view(bytes).substr(covered.size()))) {
    return Damaged("the checksum does not match");
  }
  Taker taker(covered.substr(kMagic.size()));
  std::uint64_t rows = 0;
  std::uint64_t count = 0;
  if (!taker.Fixed(4, &rows) || !taker.Fixed(4, &count) || rows > kMaxPackedRows ||
      count > kMaxPackedColumns || rows * count > kMaxPackedCells) {
    return Damaged("too many rows or columns");
  }
  PackedReader reader;
  reader.rows_ = static_cast<std::uint32_t>(rows);
  std::size_t total = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    Column column;
    std::uint64_t type = 0;
    std::uint64_t length = 0;
    std::uint64_t stored = 0;
    std::uint64_t raw = 0;
    std::string_view name;
    if (!taker.Fixed(1, &type) || !taker.Fixed(4, &length) || !taker.Bytes(length, &name) ||
        !taker.Fixed(4, &stored) || !taker.Fixed(4, &raw)) {
      return Damaged("the directory is cut");
    }
    if (type < 1 || type > 4) return Damaged("a column of an unknown type");
    if (raw > kMaxPackedColumnBytes || stored > raw) return Damaged("a column is too long");
    column.type = static_cast<PackedType>(type);
    column.name = name;
    column.stored = static_cast<std::uint32_t>(stored);
    column.raw = static_cast<std::uint32_t>(raw);
    column.offset = total;  // within the data, whose place is known after the directory
    total += stored;
    reader.columns_.push_back(std::move(column));
  }
  if (taker.size() != total) return Damaged("the columns do not fill it");
  const std::size_t data = covered.size() - total;
  for (Column& column : reader.columns_) column.offset += data;
  reader.bytes_ = std::move(bytes);
  return reader;
}

const PackedReader::Column* PackedReader::Find(std::string_view name) const {
  for (const Column& column : columns_) {
    if (column.name == name) return &column;
  }
  return nullptr;
}

Result<std::string> PackedReader::Unpack(const Column& column) const {
  const std::string_view stored = std::string_view(bytes_).substr(column.offset, column.stored);
  if (column.stored == column.raw) return std::string(stored);
  std::string raw(column.raw, '\0');
  const std::size_t size = ZSTD_decompress(raw.data(), raw.size(), stored.data(), stored.size());
  if (ZSTD_isError(size) != 0 || size != raw.size()) return Damaged("a column does not unpack");
  return raw;
}

Result<std::vector<std::int64_t>> PackedReader::Numbers(std::string_view name) const {
  const Column* column = Find(name);
  if (column == nullptr || column->type != PackedType::kNumbers) {
    return Damaged(fmt::format("no column {}", name));
  }
  ASSIGN_OR_RETURN(const std::string raw, Unpack(*column));
  Taker taker(raw);
  if (raw.size() < rows_) return Damaged("a column is cut");
  std::vector<std::int64_t> values(rows_);
  std::uint64_t before = 0;
  for (std::int64_t& value : values) {
    if (!taker.Delta(&before)) return Damaged("a column is cut");
    value = static_cast<std::int64_t>(before);
  }
  if (!taker.empty()) return Damaged("a column is too long");
  return values;
}

Result<std::vector<std::optional<double>>> PackedReader::Doubles(const Column& column) const {
  ASSIGN_OR_RETURN(const std::string raw, Unpack(column));
  Taker taker(raw);
  std::string_view bitmap;
  if (!taker.Bytes((rows_ + 7) / 8, &bitmap)) return Damaged("a column is cut");
  std::vector<std::optional<double>> values(rows_);
  for (std::size_t row = 0; row < rows_; ++row) {
    if (!Has(bitmap, row)) continue;
    std::uint64_t bits = 0;
    if (!taker.Fixed(8, &bits)) return Damaged("a column is cut");
    double value = 0;
    std::memcpy(&value, &bits, sizeof value);
    values[row] = value;
  }
  if (!taker.empty()) return Damaged("a column is too long");
  return values;
}

Result<std::vector<std::optional<std::int64_t>>> PackedReader::Integers(
    const Column& column) const {
  ASSIGN_OR_RETURN(const std::string raw, Unpack(column));
  Taker taker(raw);
  std::string_view bitmap;
  if (!taker.Bytes((rows_ + 7) / 8, &bitmap)) return Damaged("a column is cut");
  std::vector<std::optional<std::int64_t>> values(rows_);
  std::uint64_t before = 0;
  for (std::size_t row = 0; row < rows_; ++row) {
    if (!Has(bitmap, row)) continue;
    if (!taker.Delta(&before)) return Damaged("a column is cut");
    values[row] = static_cast<std::int64_t>(before);
  }
  if (!taker.empty()) return Damaged("a column is too long");
  return values;
}

Result<std::vector<std::string>> PackedReader::Texts(std::string_view name) const {
  const Column* column = Find(name);
  if (column == nullptr || column->type != PackedType::kTexts) {
    return Damaged(fmt::format("no column {}", name));
  }
  ASSIGN_OR_RETURN(const std::string raw, Unpack(*column));
  if (raw.size() < rows_) return Damaged("a column is cut");
  Taker taker(raw);
  std::vector<std::string> values(rows_);
  for (std::string& value : values) {
    std::uint64_t length = 0;
    std::string_view text;
    if (!taker.Varint(&length) || !taker.Bytes(length, &text)) return Damaged("a column is cut");
    value = text;
  }
  if (!taker.empty()) return Damaged("a column is too long");
  return values;
}

}  // namespace cairn
