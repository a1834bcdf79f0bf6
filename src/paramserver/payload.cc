#include "paramserver/payload.h"

#include <bit>
#include <cstring>
#include <type_traits>

#include "base/status_macros.h"

// Numbers are little-endian, as on every machine that Cairn is built for.
static_assert(std::endian::native == std::endian::little);

namespace cairn::ps {
namespace {

constexpr std::uint32_t kNoState = 0xffffffff;

class Writer {
 public:
  template <typename T>
    requires std::is_arithmetic_v<T>
  void Put(T number) {
    out_.append(reinterpret_cast<const char*>(&number), sizeof number);
  }
  void Put(const Marker& marker) {
    Put(marker.number);
    Put(marker.step);
    Put(static_cast<std::uint64_t>(marker.full));
  }
  void Text(std::string_view text) {
    Put(static_cast<std::uint32_t>(text.size()));
    out_.append(text);
  }
  template <typename T>
  void Column(const std::vector<T>& column) {
    Put(static_cast<std::uint64_t>(column.size()));
    out_.append(reinterpret_cast<const char*>(column.data()), column.size() * sizeof(T));
  }
  std::string Take() { return std::move(out_); }

 private:
  std::string out_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename T>
    requires std::is_arithmetic_v<T>
  Status Get(T* number) {
    if (bytes_.size() < sizeof *number) return CorruptionError("a message ends too early");
    std::memcpy(number, bytes_.data(), sizeof *number);
    bytes_ = bytes_.subspan(sizeof *number);
    return Status::Ok();
  }
  Status Get(Marker* marker) {
    std::uint64_t full = 0;
    RETURN_IF_ERROR(Get(&marker->number));
    RETURN_IF_ERROR(Get(&marker->step));
    RETURN_IF_ERROR(Get(&full));
    if (full > 1) return CorruptionError("a marker of unknown kind");
    marker->full = full == 1;
    return Status::Ok();
  }
  Status Bytes(std::uint64_t count, std::span<const std::byte>* out) {
    if (bytes_.size() < count) return CorruptionError("a message ends too early");
    *out = bytes_.first(count);
    bytes_ = bytes_.subspan(count);
    return Status::Ok();
  }
  Status Text(std::string* text) {
    std::uint32_t size = 0;
    std::span<const std::byte> bytes;
    RETURN_IF_ERROR(Get(&size));
    RETURN_IF_ERROR(Bytes(size, &bytes));
    *text = AsText(bytes);
    return Status::Ok();
  }
  template <typename T>
  Status Column(std::vector<T>* column) {
    std::uint64_t count = 0;
    RETURN_IF_ERROR(Get(&count));
    if (count > bytes_.size() / sizeof(T)) return CorruptionError("a message ends too early");
    std::span<const std::byte> bytes;
    RETURN_IF_ERROR(Bytes(count * sizeof(T), &bytes));
    column->resize(count);
    if (count > 0) std::memcpy(column->data(), bytes.data(), bytes.size());
    return Status::Ok();
  }
  Status End() const {
    if (!bytes_.empty()) return CorruptionError("a message has bytes that nobody asked for");
    return Status::Ok();
  }
  std::span<const std::byte> rest() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

void PutAt(std::span<std::byte> bytes, std::size_t at, const void* from, std::size_t size) {
  std::memcpy(bytes.data() + at, from, size);
}

template <typename T>
T GetAt(std::span<const std::byte> bytes, std::size_t at) {
  T number;
  std::memcpy(&number, bytes.data() + at, sizeof number);
  return number;
}

Status CheckHead(std::span<const std::byte> bytes) {
  if (bytes.size() < kHeadBytes) return CorruptionError("a message shorter than its head");
  const auto version = GetAt<std::uint8_t>(bytes, 0);
  if (version != kProtocolVersion) {
    return UnimplementedError("the other side speaks version " + std::to_string(version) +
                              " of the protocol, this one " + std::to_string(kProtocolVersion));
  }
  const auto kind = GetAt<std::uint8_t>(bytes, 1);
  if (kind == 0 || kind > kLastKind) {
    return CorruptionError("a message of unknown kind " + std::to_string(kind));
  }
  return Status::Ok();
}

rpc::Message WithBody(rpc::Message message, std::string_view body) {
  if (!body.empty()) std::memcpy(Body(&message).data(), body.data(), body.size());
  return message;
}

template <typename T>
Result<std::vector<T>> WholeColumn(std::span<const std::byte> body, const char* what) {
  if (body.size() % sizeof(T) != 0) {
    return CorruptionError(std::to_string(body.size()) + " bytes are no list of " + what);
  }
  std::vector<T> column(body.size() / sizeof(T));
  if (!column.empty()) std::memcpy(column.data(), body.data(), body.size());
  return column;
}

}  // namespace

rpc::Message NewRequest(const RequestHead& head, std::size_t body_bytes) {
  rpc::Message message(kHeadBytes + body_bytes);
  const std::span<std::byte> bytes = message.bytes();
  const std::uint8_t first[2] = {kProtocolVersion, static_cast<std::uint8_t>(head.kind)};
  PutAt(bytes, 0, first, 2);
  PutAt(bytes, 2, &head.flags, 2);
  PutAt(bytes, 4, &head.id, 4);
  PutAt(bytes, 8, &head.generation, 8);
  PutAt(bytes, 16, &head.sequence, 8);
  return message;
}

rpc::Message NewReply(const ReplyHead& head, std::size_t body_bytes) {
  rpc::Message message(kHeadBytes + body_bytes);
  const std::span<std::byte> bytes = message.bytes();
  const std::uint8_t first[8] = {kProtocolVersion,
                                 static_cast<std::uint8_t>(head.kind),
                                 static_cast<std::uint8_t>(head.code),
                                 static_cast<std::uint8_t>(head.reason),
                                 0,
                                 0,
                                 0,
                                 0};
  PutAt(bytes, 0, first, 8);
  PutAt(bytes, 8, &head.generation, 8);
  PutAt(bytes, 16, &head.sequence, 8);
  return message;
}

std::span<std::byte> Body(rpc::Message* message) { return message->bytes().subspan(kHeadBytes); }

rpc::Message NewRequest(const RequestHead& head, std::string_view body) {
  return WithBody(NewRequest(head, body.size()), body);
}
rpc::Message NewReply(const ReplyHead& head, std::string_view body) {
  return WithBody(NewReply(head, body.size()), body);
}

Result<Request> DecodeRequest(std::span<const std::byte> bytes) {
  RETURN_IF_ERROR(CheckHead(bytes));
  Request request;
  request.head.kind = static_cast<Kind>(GetAt<std::uint8_t>(bytes, 1));
  request.head.flags = GetAt<std::uint16_t>(bytes, 2);
  request.head.id = GetAt<std::uint32_t>(bytes, 4);
  request.head.generation = GetAt<std::uint64_t>(bytes, 8);
  request.head.sequence = GetAt<std::uint64_t>(bytes, 16);
  request.body = bytes.subspan(kHeadBytes);
  return request;
}

Result<Reply> DecodeReply(std::span<const std::byte> bytes) {
  RETURN_IF_ERROR(CheckHead(bytes));
  const auto code = GetAt<std::uint8_t>(bytes, 2);
  const auto reason = GetAt<std::uint8_t>(bytes, 3);
  if (code > static_cast<std::uint8_t>(Code::kInternal) ||
      reason > static_cast<std::uint8_t>(Reason::kMismatch)) {
    return CorruptionError("an answer with an unknown code");
  }
  Reply reply;
  reply.head.kind = static_cast<Kind>(GetAt<std::uint8_t>(bytes, 1));
  reply.head.code = static_cast<Code>(code);
  reply.head.reason = static_cast<Reason>(reason);
  reply.head.generation = GetAt<std::uint64_t>(bytes, 8);
  reply.head.sequence = GetAt<std::uint64_t>(bytes, 16);
  reply.body = bytes.subspan(kHeadBytes);
  return reply;
}

Status ReplyStatus(const Reply& reply) {
  if (reply.head.code == Code::kOk) return Status::Ok();
  return {reply.head.code, std::string(AsText(reply.body)), reply.head.reason};
}

std::string Encode(const HelloRequest& hello) {
  Writer out;
  out.Put(hello.trainer);
  out.Put(hello.trainers);
  out.Put(hello.server);
  out.Put(hello.servers);
  out.Text(hello.incarnation);
  out.Put(static_cast<std::uint64_t>(hello.known));
  out.Put(hello.step);
  out.Put(hello.acknowledged);
  out.Put(hello.barrier);
  return out.Take();
}

Result<HelloRequest> DecodeHelloRequest(std::span<const std::byte> body) {
  Reader in(body);
  HelloRequest hello;
  RETURN_IF_ERROR(in.Get(&hello.trainer));
  RETURN_IF_ERROR(in.Get(&hello.trainers));
  RETURN_IF_ERROR(in.Get(&hello.server));
  RETURN_IF_ERROR(in.Get(&hello.servers));
  RETURN_IF_ERROR(in.Text(&hello.incarnation));
  std::uint64_t known = 0;
  RETURN_IF_ERROR(in.Get(&known));
  if (known > 1) return CorruptionError("a greeting that is neither new nor known");
  hello.known = known == 1;
  RETURN_IF_ERROR(in.Get(&hello.step));
  RETURN_IF_ERROR(in.Get(&hello.acknowledged));
  RETURN_IF_ERROR(in.Get(&hello.barrier));
  RETURN_IF_ERROR(in.End());
  return hello;
}

std::string Encode(const HelloReply& reply) {
  Writer out;
  out.Put(reply.step);
  out.Put(reply.sequence);
  out.Put(reply.step_sequence);
  out.Put(static_cast<std::uint32_t>(reply.sync));
  out.Put(static_cast<std::uint32_t>(reply.recovery));
  out.Put(reply.barrier);
  out.Put(reply.max_message_bytes);
  out.Put(reply.next);
  if (reply.state) {
    out.Text(*reply.state);
  } else {
    out.Put(kNoState);
  }
  return out.Take();
}

Result<HelloReply> DecodeHelloReply(std::span<const std::byte> body) {
  Reader in(body);
  HelloReply reply;
  std::uint32_t sync = 0;
  std::uint32_t recovery = 0;
  std::uint32_t size = 0;
  RETURN_IF_ERROR(in.Get(&reply.step));
  RETURN_IF_ERROR(in.Get(&reply.sequence));
  RETURN_IF_ERROR(in.Get(&reply.step_sequence));
  RETURN_IF_ERROR(in.Get(&sync));
  RETURN_IF_ERROR(in.Get(&recovery));
  RETURN_IF_ERROR(in.Get(&reply.barrier));
  RETURN_IF_ERROR(in.Get(&reply.max_message_bytes));
  RETURN_IF_ERROR(in.Get(&reply.next));
  if (sync > 1) return CorruptionError("an answer with an unknown mode");
  if (recovery > static_cast<std::uint32_t>(Recovery::kLog)) {
    return CorruptionError("an answer with an unknown recovery");
  }
  reply.sync = sync == 1;
  reply.recovery = static_cast<Recovery>(recovery);
  RETURN_IF_ERROR(in.Get(&size));
  if (size != kNoState) {
    std::span<const std::byte> state;
    RETURN_IF_ERROR(in.Bytes(size, &state));
    reply.state = std::string(AsText(state));
  }
  RETURN_IF_ERROR(in.End());
  return reply;
}

std::string Encode(const EndStepRequest& request) {
  Writer out;
  out.Put(request.step);
  out.Put(request.cut);
  if (request.has_state) {
    out.Text(request.state);
  } else {
    out.Put(kNoState);
  }
  return out.Take();
}

Result<EndStepRequest> DecodeEndStepRequest(std::span<const std::byte> body) {
  Reader in(body);
  EndStepRequest request;
  std::uint32_t size = 0;
  RETURN_IF_ERROR(in.Get(&request.step));
  RETURN_IF_ERROR(in.Get(&request.cut));
  RETURN_IF_ERROR(in.Get(&size));
  request.has_state = size != kNoState;
  if (request.has_state) {
    std::span<const std::byte> state;
    RETURN_IF_ERROR(in.Bytes(size, &state));
    request.state = AsText(state);
  }
  RETURN_IF_ERROR(in.End());
  return request;
}

std::string Encode(const EndStepReply& reply) {
  Writer out;
  out.Put(reply.step);
  out.Put(reply.next);
  return out.Take();
}

Result<EndStepReply> DecodeEndStepReply(std::span<const std::byte> body) {
  Reader in(body);
  EndStepReply reply;
  RETURN_IF_ERROR(in.Get(&reply.step));
  RETURN_IF_ERROR(in.Get(&reply.next));
  RETURN_IF_ERROR(in.End());
  return reply;
}

std::string Encode(const Marker& marker) {
  Writer out;
  out.Put(marker);
  return out.Take();
}

Result<Marker> DecodeMarker(std::span<const std::byte> body) {
  Reader in(body);
  Marker marker;
  RETURN_IF_ERROR(in.Get(&marker));
  RETURN_IF_ERROR(in.End());
  return marker;
}

rpc::Message NewDenseDeclaration(const RequestHead& head, std::string_view description,
                                 std::size_t values, std::span<std::byte>* into) {
  const auto length = static_cast<std::uint32_t>(description.size());
  rpc::Message message =
      NewRequest(head, sizeof length + description.size() + values * sizeof(float));
  const std::span<std::byte> body = Body(&message);
  PutAt(body, 0, &length, sizeof length);
  PutAt(body, sizeof length, description.data(), description.size());
  *into = body.subspan(sizeof length + description.size());
  return message;
}

Result<DenseBody> DecodeDenseBody(std::span<const std::byte> body) {
  Reader in(body);
  std::uint32_t length = 0;
  std::span<const std::byte> text;
  RETURN_IF_ERROR(in.Get(&length));
  RETURN_IF_ERROR(in.Bytes(length, &text));
  return DenseBody{AsText(text), in.rest()};
}

std::size_t RowsBytes(std::size_t keys, std::size_t width) {
  return sizeof(std::uint64_t) + keys * (sizeof(std::int64_t) + width * sizeof(float));
}

void BeginRows(std::span<std::byte> body, std::size_t keys, std::size_t width,
               std::span<std::byte>* key_bytes, std::span<std::byte>* value_bytes) {
  const auto count = static_cast<std::uint64_t>(keys);
  PutAt(body, 0, &count, sizeof count);
  *key_bytes = body.subspan(sizeof count, keys * sizeof(std::int64_t));
  *value_bytes = body.subspan(sizeof count + key_bytes->size(), keys * width * sizeof(float));
}

namespace {

/// Where the keys and the values of a body of rows are.
struct RowBytes {
  std::span<const std::byte> keys;
  std::span<const std::byte> values;
};

Result<RowBytes> FindRowBytes(std::span<const std::byte> body, std::size_t width) {
  Reader in(body);
  std::uint64_t count = 0;
  RETURN_IF_ERROR(in.Get(&count));
  const std::size_t row = sizeof(std::int64_t) + width * sizeof(float);
  if (count > in.rest().size() / row || count * row != in.rest().size()) {
    return CorruptionError(std::to_string(count) + " rows of " + std::to_string(width) +
                           " floats do not take " + std::to_string(in.rest().size()) + " bytes");
  }
  return RowBytes{in.rest().first(count * sizeof(std::int64_t)),
                  in.rest().subspan(count * sizeof(std::int64_t))};
}

template <typename T>
bool Aligned(std::span<const std::byte> bytes) {
  return reinterpret_cast<std::uintptr_t>(bytes.data()) % alignof(T) == 0;
}

/// Of bytes that are aligned for them.
template <typename T>
std::span<const T> Numbers(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
}

}  // namespace

Result<Rows> DecodeRows(std::span<const std::byte> body, std::size_t width) {
  ASSIGN_OR_RETURN(const RowBytes bytes, FindRowBytes(body, width));
  Rows rows;
  rows.keys.resize(bytes.keys.size() / sizeof(std::int64_t));
  rows.values.resize(bytes.values.size() / sizeof(float));
  if (!rows.keys.empty()) std::memcpy(rows.keys.data(), bytes.keys.data(), bytes.keys.size());
  if (!rows.values.empty()) {
    std::memcpy(rows.values.data(), bytes.values.data(), bytes.values.size());
  }
  return rows;
}

Result<RowsView> ViewRows(std::span<const std::byte> body, std::size_t width) {
  ASSIGN_OR_RETURN(const RowBytes bytes, FindRowBytes(body, width));
  RowsView view;
  if (Aligned<std::int64_t>(bytes.keys)) {  // the values, which follow, are too
    view.keys = Numbers<std::int64_t>(bytes.keys);
    view.values = Numbers<float>(bytes.values);
    return view;
  }
  ASSIGN_OR_RETURN(Rows rows, DecodeRows(body, width));
  view.copy = std::make_unique<const Rows>(std::move(rows));
  view.keys = view.copy->keys;
  view.values = view.copy->values;
  return view;
}

Result<std::span<const std::int64_t>> ViewKeys(std::span<const std::byte> body,
                                               std::vector<std::int64_t>* copy) {
  if (Aligned<std::int64_t>(body) && body.size() % sizeof(std::int64_t) == 0) {
    return Numbers<std::int64_t>(body);
  }
  ASSIGN_OR_RETURN(*copy, WholeColumn<std::int64_t>(body, "keys"));
  return std::span<const std::int64_t>(*copy);
}

Result<std::vector<float>> DecodeFloats(std::span<const std::byte> body) {
  return WholeColumn<float>(body, "floats");
}

std::string Encode(const ExportedRows& rows) {
  Writer out;
  out.Column(rows.keys);
  out.Column(rows.frequency);
  out.Column(rows.version);
  out.Column(rows.weights);
  out.Column(rows.slots);
  return out.Take();
}

Result<ExportedRows> DecodeExportedRows(std::span<const std::byte> body) {
  Reader in(body);
  ExportedRows rows;
  RETURN_IF_ERROR(in.Column(&rows.keys));
  RETURN_IF_ERROR(in.Column(&rows.frequency));
  RETURN_IF_ERROR(in.Column(&rows.version));
  RETURN_IF_ERROR(in.Column(&rows.weights));
  RETURN_IF_ERROR(in.Column(&rows.slots));
  RETURN_IF_ERROR(in.End());
  const std::size_t count = rows.keys.size();
  if (rows.frequency.size() != count || rows.version.size() != count ||
      (count == 0 ? !rows.weights.empty() || !rows.slots.empty()
                  : rows.weights.size() % count != 0 || rows.slots.size() % count != 0)) {
    return CorruptionError("columns of different lengths");
  }
  return rows;
}

std::string Encode(const std::optional<EvictReport>& evicted) {
  Writer writer;
  if (evicted) {
    writer.Put(evicted->rows);
    writer.Put(evicted->pending);
  }
  return writer.Take();
}

Result<std::optional<EvictReport>> DecodeEvicted(std::span<const std::byte> body) {
  if (body.empty()) return std::optional<EvictReport>();
  EvictReport evicted;
  Reader reader(body);
  RETURN_IF_ERROR(reader.Get(&evicted.rows));
  RETURN_IF_ERROR(reader.Get(&evicted.pending));
  RETURN_IF_ERROR(reader.End());
  return std::optional(evicted);
}

std::string EncodeRate(float rate) {
  Writer out;
  out.Put(rate);
  return out.Take();
}

Result<float> DecodeRate(std::span<const std::byte> body) {
  Reader in(body);
  float rate = 0;
  RETURN_IF_ERROR(in.Get(&rate));
  RETURN_IF_ERROR(in.End());
  return rate;
}

std::string EncodeNumber(std::uint64_t number) {
  Writer out;
  out.Put(number);
  return out.Take();
}

Result<std::uint64_t> DecodeNumber(std::span<const std::byte> body) {
  Reader in(body);
  std::uint64_t number = 0;
  RETURN_IF_ERROR(in.Get(&number));
  RETURN_IF_ERROR(in.End());
  return number;
}

std::string_view AsText(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace cairn::ps
