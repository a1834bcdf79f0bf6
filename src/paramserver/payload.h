#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/ps.h>
#include <cairn/status.h>

#include "rpc/message.h"

/// Requests and answers between trainers and parameter servers as bytes
/// (docs/format/paramserver_protocol.md). Pure: bytes in, structs out. Every size is compared with
/// what is there before memory is taken for it. Anything malformed is Corruption.
namespace cairn::ps {

inline constexpr std::uint8_t kProtocolVersion = 4;
inline constexpr std::size_t kHeadBytes = 24;

enum class Kind : std::uint8_t {
  kHello = 1,
  kDeclareTable = 2,
  kDeclareDense = 3,
  kPull = 4,
  kPush = 5,
  kAssign = 6,
  kErase = 7,
  kDensePull = 8,
  kDensePush = 9,
  kEndStep = 10,
  kBarrier = 11,
  kSave = 12,
  kCut = 13,
  kLeave = 14,
  kStatus = 15,
  kMetrics = 16,
  kRollBack = 17,
  kTableSize = 18,
  kExport = 19,
  kDenseExport = 20,
  kEvict = 21,
  kSetRate = 22,
  kRate = 23,
};
inline constexpr std::uint8_t kLastKind = 23;

/// Flags of a request.
inline constexpr std::uint16_t kCreateRows = 1;  // kPull: missing rows are made
inline constexpr std::uint16_t kFullSave = 1;    // kSave: not an increment
inline constexpr std::uint16_t kLeaveFor = 1;    // kLeave: of trainer `id`, whose process has ended

/// Begins every request.
struct RequestHead {
  Kind kind = Kind::kHello;
  std::uint16_t flags = 0;
  std::uint32_t id = 0;          // of the table or dense variable, as its declaration was answered
  std::uint64_t generation = 0;  // that the sender believes in; 0 where it does not matter
  std::uint64_t sequence = 0;    // of changes: counts up for each trainer and server; 0: no change
  friend bool operator==(const RequestHead&, const RequestHead&) = default;
};

/// Begins every answer. With a code other than OK the body is the message.
struct ReplyHead {
  Kind kind = Kind::kHello;
  Code code = Code::kOk;
  Reason reason = Reason::kNone;
  std::uint64_t generation = 0;
  std::uint64_t sequence = 0;
  friend bool operator==(const ReplyHead&, const ReplyHead&) = default;
};

/// Room for a request with that many bytes of body, the head written.
rpc::Message NewRequest(const RequestHead& head, std::size_t body_bytes);
rpc::Message NewReply(const ReplyHead& head, std::size_t body_bytes);
std::span<std::byte> Body(rpc::Message* message);
rpc::Message NewRequest(const RequestHead& head, std::string_view body);
rpc::Message NewReply(const ReplyHead& head, std::string_view body);

struct Request {
  RequestHead head;
  std::span<const std::byte> body;  // borrowed
};
struct Reply {
  ReplyHead head;
  std::span<const std::byte> body;
};
Result<Request> DecodeRequest(std::span<const std::byte> bytes);
Result<Reply> DecodeReply(std::span<const std::byte> bytes);
/// OK, or what a reply says instead.
Status ReplyStatus(const Reply& reply);

/// A cut that the lead server announced and the trainers carry to all servers. number 0: none.
struct Marker {
  std::uint64_t number = 0;
  std::int64_t step = 0;  // of the checkpoint
  bool full = false;
  friend bool operator==(const Marker&, const Marker&) = default;
};

inline constexpr std::uint32_t kObserver = 0xffffffff;  // as `trainer`: looks, and takes no part

struct HelloRequest {
  std::uint32_t trainer = kObserver;
  std::uint32_t trainers = 0;
  std::uint32_t server = 0;  // whom the sender believes to speak to
  std::uint32_t servers = 0;
  std::string incarnation;  // of the trainer's process
  // What the process knows of its own, where it was greeted before. Servers that went on without
  // going back (recovery log and partial) compare it with what they have.
  bool known = false;
  std::int64_t step = 0;           // steps completed
  std::uint64_t acknowledged = 0;  // of its changes, by this server
  std::uint64_t barrier = 0;       // barriers passed
  friend bool operator==(const HelloRequest&, const HelloRequest&) = default;
};
std::string Encode(const HelloRequest& hello);
Result<HelloRequest> DecodeHelloRequest(std::span<const std::byte> body);

struct HelloReply {
  std::int64_t step = 0;            // steps that this trainer ended
  std::uint64_t sequence = 0;       // of its last change that was taken …
  std::uint64_t step_sequence = 0;  // … and of the last before the end of its last step
  bool sync = true;
  Recovery recovery = Recovery::kExact;
  std::uint64_t barrier = 0;            // that all trainers passed
  std::uint64_t max_message_bytes = 0;  // that the server takes
  Marker next;
  std::optional<std::string> state;  // that this trainer gave with its last step
  friend bool operator==(const HelloReply&, const HelloReply&) = default;
};
std::string Encode(const HelloReply& reply);
Result<HelloReply> DecodeHelloReply(std::span<const std::byte> body);

struct EndStepRequest {
  std::int64_t step = 0;  // that ends: steps completed before it
  Marker cut;             // carried from the lead server's last answer
  bool has_state = false;
  std::string state;
  friend bool operator==(const EndStepRequest&, const EndStepRequest&) = default;
};
std::string Encode(const EndStepRequest& request);
Result<EndStepRequest> DecodeEndStepRequest(std::span<const std::byte> body);

struct EndStepReply {
  std::int64_t step = 0;  // completed now
  Marker next;            // to be carried at the end of the next step
  friend bool operator==(const EndStepReply&, const EndStepReply&) = default;
};
std::string Encode(const EndStepReply& reply);
Result<EndStepReply> DecodeEndStepReply(std::span<const std::byte> body);

std::string Encode(const Marker& marker);
Result<Marker> DecodeMarker(std::span<const std::byte> body);

/// The description of a dense variable, then the values of this server's blocks.
struct DenseBody {
  std::string_view description;  // borrowed, as the values
  std::span<const std::byte> values;
};
rpc::Message NewDenseDeclaration(const RequestHead& head, std::string_view description,
                                 std::size_t values, std::span<std::byte>* into);
Result<DenseBody> DecodeDenseBody(std::span<const std::byte> body);

/// Keys, then a row of floats for each: the body of kPush and kAssign.
struct Rows {
  std::vector<std::int64_t> keys;
  std::vector<float> values;  // keys.size() × width
};
std::size_t RowsBytes(std::size_t keys, std::size_t width);
/// Corruption unless there are exactly `width` floats for each key.
Result<Rows> DecodeRows(std::span<const std::byte> body, std::size_t width);
/// The same without a copy, where the body is aligned for its numbers, as it is on plain
/// connections: then it is borrowed.
struct RowsView {
  std::span<const std::int64_t> keys;
  std::span<const float> values;
  std::unique_ptr<const Rows> copy;  // of what was not aligned
};
Result<RowsView> ViewRows(std::span<const std::byte> body, std::size_t width);
/// Writes the number of keys; the spans are where keys and values go, which are not aligned.
void BeginRows(std::span<std::byte> body, std::size_t keys, std::size_t width,
               std::span<std::byte>* key_bytes, std::span<std::byte>* value_bytes);

/// The body of kPull and kErase. Borrowed, or a copy in `*copy` where it is not aligned for them.
Result<std::span<const std::int64_t>> ViewKeys(std::span<const std::byte> body,
                                               std::vector<std::int64_t>* copy);
Result<std::vector<float>> DecodeFloats(std::span<const std::byte> body);

/// A table is exported in so many pages, by logical shard: the request's `sequence` is which.
inline constexpr std::uint32_t kExportPages = 64;

/// A page of a table: the answer to kExport.
struct ExportedRows {
  std::vector<std::int64_t> keys;
  std::vector<std::int64_t> frequency;
  std::vector<std::int64_t> version;
  std::vector<float> weights;
  std::vector<float> slots;
};
std::string Encode(const ExportedRows& rows);
Result<ExportedRows> DecodeExportedRows(std::span<const std::byte> body);

/// The answer to kEvict: nothing in sync mode, where the rows go when the step ends.
std::string Encode(const std::optional<EvictReport>& evicted);
Result<std::optional<EvictReport>> DecodeEvicted(std::span<const std::byte> body);

/// A learning rate: the body of kSetRate, and of the answer to kRate.
std::string EncodeRate(float rate);
Result<float> DecodeRate(std::span<const std::byte> body);

std::string EncodeNumber(std::uint64_t number);
Result<std::uint64_t> DecodeNumber(std::span<const std::byte> body);
std::string_view AsText(std::span<const std::byte> bytes);

}  // namespace cairn::ps
