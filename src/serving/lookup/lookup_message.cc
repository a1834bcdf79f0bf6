#include "serving/lookup/lookup_message.h"

#include <bit>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "base/status_macros.h"

// Numbers are little-endian, as on every machine that Cairn is built for.
static_assert(std::endian::native == std::endian::little);

namespace cairn::serving {
namespace {

constexpr std::uint8_t kLookupKind = 1;
constexpr std::size_t kHeadBytes = 8;
constexpr std::size_t kGrain = 8;

constexpr std::uint64_t Padded(std::uint64_t bytes) {
  return (bytes + kGrain - 1) / kGrain * kGrain;
}
constexpr std::uint64_t TextBytes(std::size_t size) { return Padded(sizeof(std::uint32_t) + size); }

/// Fills a message front to back; every piece begins at a multiple of eight bytes.
class Writer {
 public:
  explicit Writer(std::span<std::byte> bytes) : rest_(bytes) {}

  template <typename T>
    requires std::is_arithmetic_v<T>
  void Put(T number) {
    std::memcpy(Take(sizeof number).data(), &number, sizeof number);
  }
  void Text(std::string_view text) {
    const auto padding = TextBytes(text.size()) - sizeof(std::uint32_t) - text.size();
    Put(static_cast<std::uint32_t>(text.size()));
    Bytes(text.data(), text.size());
    Zeros(padding);
  }
  void Bytes(const void* from, std::size_t size) {
    if (size > 0) std::memcpy(Take(size).data(), from, size);
  }
  void Zeros(std::size_t count) {
    if (count > 0) std::memset(Take(count).data(), 0, count);
  }
  std::span<std::byte> Take(std::size_t size) {
    const std::span<std::byte> taken = rest_.first(size);
    rest_ = rest_.subspan(size);
    return taken;
  }

 private:
  std::span<std::byte> rest_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <typename T>
    requires std::is_arithmetic_v<T>
  bool Get(T* number) {
    std::span<const std::byte> bytes;
    if (!Bytes(sizeof *number, &bytes)) return false;
    std::memcpy(number, bytes.data(), sizeof *number);
    return true;
  }
  bool Text(std::string_view* text) {
    std::uint32_t size = 0;
    std::span<const std::byte> bytes;
    if (!Get(&size) || !Bytes(TextBytes(size) - sizeof size, &bytes)) return false;
    *text = {reinterpret_cast<const char*>(bytes.data()), size};
    return true;
  }
  bool Bytes(std::uint64_t size, std::span<const std::byte>* out) {
    if (rest_.size() < size) return false;
    *out = rest_.first(size);
    rest_ = rest_.subspan(size);
    return true;
  }
  bool empty() const { return rest_.empty(); }
  std::span<const std::byte> rest() const { return rest_; }

 private:
  std::span<const std::byte> rest_;
};

std::string FieldOf(std::size_t ask, const char* field) {
  return "asks[" + std::to_string(ask) + "]." + field + ": ";
}

Status EndsEarly(std::size_t ask, const char* field) {
  return InvalidArgumentError(FieldOf(ask, field) + "the message ends too early");
}

}  // namespace

rpc::Message EncodeLookup(std::span<const LookupClient::Wanted> wanted) {
  std::size_t size = kHeadBytes;
  for (const auto& ask : wanted) size += TextBytes(ask.table.size()) + 16 + ask.ids.size_bytes();
  rpc::Message message(size);
  Writer out(message.bytes());
  out.Put(kLookupVersion);
  out.Put(kLookupKind);
  out.Put(static_cast<std::uint16_t>(wanted.size()));
  out.Zeros(4);
  for (const auto& ask : wanted) {
    out.Text(ask.table);
    out.Put(ask.dim);
    out.Zeros(4);
    out.Put(static_cast<std::uint64_t>(ask.ids.size()));
    out.Bytes(ask.ids.data(), ask.ids.size_bytes());
  }
  return message;
}

Result<std::vector<LookupAsk>> DecodeLookup(std::span<const std::byte> bytes) {
  Reader in(bytes);
  std::uint8_t version = 0;
  std::uint8_t kind = 0;
  std::uint16_t asks = 0;
  std::uint32_t zero = 0;
  if (!in.Get(&version)) return InvalidArgumentError("version: the message is empty");
  if (version != kLookupVersion) {
    return UnimplementedError("version: " + std::to_string(version) + " is not spoken here, only " +
                              std::to_string(kLookupVersion));
  }
  if (!in.Get(&kind) || kind != kLookupKind) {
    return InvalidArgumentError("kind: " + std::to_string(kind) + " is no lookup");
  }
  if (!in.Get(&asks) || !in.Get(&zero)) return InvalidArgumentError("asks: missing");
  if (asks == 0 || asks > kMaxAsks) {
    return InvalidArgumentError("asks: " + std::to_string(asks) + " of them; one to " +
                                std::to_string(kMaxAsks) + " tables are asked for at once");
  }
  std::vector<LookupAsk> decoded;
  for (std::size_t i = 0; i < asks; ++i) {
    LookupAsk ask;
    if (!in.Text(&ask.table)) return EndsEarly(i, "table");
    if (ask.table.empty() || ask.table.size() > kMaxTableName) {
      return InvalidArgumentError(FieldOf(i, "table") + "a name has 1 to " +
                                  std::to_string(kMaxTableName) + " bytes");
    }
    std::uint64_t count = 0;
    if (!in.Get(&ask.dim) || !in.Get(&zero)) return EndsEarly(i, "dim");
    if (!in.Get(&count) || count > in.rest().size() / sizeof(std::int64_t)) {
      return EndsEarly(i, "ids");
    }
    (void)in.Bytes(count * sizeof(std::int64_t), &ask.ids);  // compared above
    decoded.push_back(ask);
  }
  if (!in.empty()) {
    return InvalidArgumentError("asks: " + std::to_string(in.rest().size()) +
                                " bytes after the last of them");
  }
  return decoded;
}

std::uint64_t LookupReplyBytes(std::string_view id, std::span<const RowsShape> shapes) {
  std::uint64_t size = kHeadBytes + sizeof(std::int64_t) + TextBytes(id.size());
  for (const RowsShape& shape : shapes) {
    size += 16 + Padded(shape.count * shape.dim * sizeof(float));
  }
  return size;
}

rpc::Message NewLookupReply(std::int64_t step, std::string_view id,
                            std::span<const RowsShape> shapes,
                            std::vector<std::span<float>>* rows) {
  rpc::Message message(LookupReplyBytes(id, shapes));
  Writer out(message.bytes());
  out.Put(kLookupVersion);
  out.Put(kLookupKind);
  out.Put(static_cast<std::uint8_t>(Code::kOk));
  out.Zeros(1);
  out.Put(static_cast<std::uint32_t>(shapes.size()));
  out.Put(step);
  out.Text(id);
  rows->clear();
  for (const RowsShape& shape : shapes) {
    out.Put(shape.dim);
    out.Zeros(4);
    out.Put(shape.count);
    const std::size_t floats = shape.count * shape.dim;
    const std::size_t bytes = floats * sizeof(float);
    // Aligned: new[] gives memory for anything, and all before it are multiples of eight.
    rows->emplace_back(reinterpret_cast<float*>(out.Take(bytes).data()), floats);
    out.Zeros(Padded(bytes) - bytes);
  }
  return message;
}

rpc::Message EncodeLookupError(const Status& status) {
  const std::string_view text = status.message();
  rpc::Message message(kHeadBytes + TextBytes(text.size()));
  Writer out(message.bytes());
  out.Put(kLookupVersion);
  out.Put(kLookupKind);
  out.Put(static_cast<std::uint8_t>(status.code()));
  out.Zeros(5);
  out.Text(text);
  return message;
}

Result<LookupClient::Found> DecodeLookupReply(std::span<const std::byte> bytes) {
  Reader in(bytes);
  std::uint8_t version = 0;
  std::uint8_t kind = 0;
  std::uint8_t code = 0;
  std::uint8_t zero = 0;
  std::uint32_t tables = 0;
  if (!in.Get(&version) || !in.Get(&kind) || !in.Get(&code) || !in.Get(&zero) || !in.Get(&tables)) {
    return CorruptionError("an answer shorter than its head");
  }
  if (version != kLookupVersion || kind != kLookupKind) {
    return CorruptionError("an answer of version " + std::to_string(version) + ", kind " +
                           std::to_string(kind));
  }
  std::string_view text;
  if (code != static_cast<std::uint8_t>(Code::kOk)) {
    if (code > static_cast<std::uint8_t>(Code::kInternal) || !in.Text(&text)) {
      return CorruptionError("an answer with an unknown error");
    }
    return Status(static_cast<Code>(code), std::string(text));
  }
  LookupClient::Found found;
  if (tables > kMaxAsks || !in.Get(&found.step) || !in.Text(&text)) {
    return CorruptionError("an answer without its version");
  }
  found.id = text;
  for (std::uint32_t i = 0; i < tables; ++i) {
    LookupClient::Rows rows;
    std::uint32_t ignored = 0;
    std::uint64_t count = 0;
    std::span<const std::byte> values;
    if (!in.Get(&rows.dim) || !in.Get(&ignored) || !in.Get(&count)) {
      return CorruptionError("an answer that ends too early");
    }
    const std::uint64_t row_bytes = std::uint64_t{rows.dim} * sizeof(float);
    if (count > 0 && (row_bytes == 0 || count > in.rest().size() / row_bytes)) {
      return CorruptionError("an answer with fewer rows than it says");
    }
    const std::uint64_t size = count * row_bytes;
    if (!in.Bytes(Padded(size), &values)) return CorruptionError("an answer that ends too early");
    rows.values.resize(size / sizeof(float));
    if (size > 0) std::memcpy(rows.values.data(), values.data(), size);
    found.tables.push_back(std::move(rows));
  }
  if (!in.empty()) return CorruptionError("an answer with bytes that nobody asked for");
  return found;
}

}  // namespace cairn::serving
