// Bytes are read as a report block and as a log block, as they are and with the checksum that
// belongs to them: what a database hands out never ends the program, and a block that can be read
// says the same after it was written again.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/checksum.h"
#include "catalog/log_block.h"
#include "catalog/report_block.h"
#include "format/json.h"
#include "fuzz/require.h"

namespace {

using namespace cairn;

void ReadReports(const std::string& bytes) {
  Result<ReportBlock> block = ReportBlock::Decode(bytes, "g");
  if (!block.ok()) return;
  (void)block->Names();
  (void)block->Metric("loss");
  std::vector<StoredReport> reports;
  for (std::size_t i = 0; i < block->size() && i < 64; ++i) {
    Result<Value> body = block->Body(i);
    if (!body.ok()) return;
    reports.push_back({.seq = static_cast<std::uint64_t>(block->seq()[i]),
                       .time = block->time()[i],
                       .run = static_cast<std::uint64_t>(block->run()[i]),
                       .body = std::move(*body)});
    if (!ValidateJsonValue(reports.back().body, kMaxJsonDepth - 2).ok()) return;
  }
  Result<ReportBlock> again = ReportBlock::Decode(EncodeReportBlock("g", reports), "g");
  Require(again.ok() && again->size() == reports.size(), "what was written can be read");
  for (std::size_t i = 0; i < reports.size(); ++i) {
    const Result<Value> body = again->Body(i);
    Require(body.ok() && EncodeJson(*body) == EncodeJson(reports[i].body), "a body stays");
  }
}

void ReadLines(const std::string& bytes) {
  const auto lines = DecodeLogBlock(bytes);
  if (!lines.ok()) return;
  const auto again = DecodeLogBlock(EncodeLogBlock(*lines));
  Require(again.ok() && *again == *lines, "lines stay");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string bytes(reinterpret_cast<const char*>(data), size);
  ReadReports(bytes);
  ReadLines(bytes);
  if (size < 8) return 0;
  bytes.resize(size - 8);
  const std::uint64_t sum = Xxh3(bytes);
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(sum >> (8 * i) & 0xff);
  ReadReports(bytes);
  ReadLines(bytes);
  return 0;
}
