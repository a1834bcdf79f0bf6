#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/serving_client.h>
#include <cairn/status.h>

#include "rpc/message.h"

/// Lookups and their answers as bytes (docs/format/lookup_protocol.md). Pure: bytes in, structs
/// out. Every size is compared with what is there before memory is taken for it.
namespace cairn::serving {

inline constexpr std::uint8_t kLookupVersion = 1;
/// Tables in one request.
inline constexpr std::size_t kMaxAsks = 256;
inline constexpr std::size_t kMaxTableName = 4096;

/// What is wanted of one table, as it came: views of the request's bytes.
struct LookupAsk {
  std::string_view table;
  std::uint32_t dim = 0;           // that the rows must have; 0: whichever
  std::span<const std::byte> ids;  // int64, not aligned for anything
  std::size_t count() const { return ids.size() / sizeof(std::int64_t); }
};

rpc::Message EncodeLookup(std::span<const LookupClient::Wanted> wanted);
/// InvalidArgument names the field ("asks[1].ids: …"); Unimplemented: another version.
Result<std::vector<LookupAsk>> DecodeLookup(std::span<const std::byte> bytes);

struct RowsShape {
  std::uint32_t dim = 0;
  std::uint64_t count = 0;
};
/// Bytes of the whole answer.
std::uint64_t LookupReplyBytes(std::string_view id, std::span<const RowsShape> shapes);
/// The answer, but for the rows: `rows` says where each table's go.
rpc::Message NewLookupReply(std::int64_t step, std::string_view id,
                            std::span<const RowsShape> shapes, std::vector<std::span<float>>* rows);
rpc::Message EncodeLookupError(const Status& status);
/// The error that was sent, or Corruption.
Result<LookupClient::Found> DecodeLookupReply(std::span<const std::byte> bytes);

}  // namespace cairn::serving
