// Whatever the bytes, decoding a lookup or an answer ends with a value or an error, and takes no
// more memory than the message has. What decodes survives being encoded.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "fuzz/require.h"
#include "serving/lookup/lookup_message.h"

namespace {

using namespace cairn;
using namespace cairn::serving;

void TryRequest(std::span<const std::byte> bytes) {
  const auto asks = DecodeLookup(bytes);
  if (!asks.ok()) return;
  std::vector<std::vector<std::int64_t>> ids;
  std::vector<LookupClient::Wanted> wanted;
  for (const LookupAsk& ask : *asks) {
    ids.emplace_back(ask.count());
    if (ask.count() > 0) std::memcpy(ids.back().data(), ask.ids.data(), ask.ids.size());
    wanted.push_back({.table = std::string(ask.table), .ids = ids.back(), .dim = ask.dim});
  }
  const rpc::Message again = EncodeLookup(wanted);
  Require(again.size() == bytes.size(), "a request is as long as it was");
  const auto second = DecodeLookup(again.bytes());
  Require(second.ok() && second->size() == asks->size(), "a request survives");
  for (std::size_t i = 0; i < asks->size(); ++i) {
    Require((*second)[i].table == (*asks)[i].table && (*second)[i].dim == (*asks)[i].dim &&
                (*second)[i].count() == (*asks)[i].count(),
            "an ask survives");
  }
}

void TryReply(std::span<const std::byte> bytes) {
  const auto found = DecodeLookupReply(bytes);
  if (!found.ok()) return;
  std::vector<RowsShape> shapes;
  for (const auto& rows : found->tables) {
    shapes.push_back({.dim = rows.dim, .count = rows.dim == 0 ? 0 : rows.values.size() / rows.dim});
  }
  Require(LookupReplyBytes(found->id, shapes) == bytes.size(), "an answer is as long as it was");
  std::vector<std::span<float>> rows;
  const rpc::Message again = NewLookupReply(found->step, found->id, shapes, &rows);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto& values = found->tables[i].values;
    if (!values.empty()) std::memcpy(rows[i].data(), values.data(), rows[i].size_bytes());
  }
  Require(DecodeLookupReply(again.bytes()).ok(), "an answer survives");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  TryRequest(bytes);
  TryReply(bytes);
  return 0;
}
