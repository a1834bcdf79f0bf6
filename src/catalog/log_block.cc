#include "catalog/log_block.h"

#include <utility>

#include "base/status_macros.h"
#include "catalog/packed_columns.h"

namespace cairn {

int LevelBit(LineLevel level) {
  switch (level) {
    case LineLevel::kDebug:
      return 1;
    case LineLevel::kInfo:
      return 2;
    case LineLevel::kWarning:
      return 4;
    case LineLevel::kError:
      return 8;
  }
  return 2;
}

std::string EncodeLogBlock(std::span<const LogLine> lines) {
  const std::size_t rows = lines.size();
  std::vector<std::int64_t> id(rows), run(rows), time(rows), rank(rows), kind(rows);
  std::vector<std::string> text(rows);
  for (std::size_t i = 0; i < rows; ++i) {
    id[i] = static_cast<std::int64_t>(lines[i].id);
    run[i] = static_cast<std::int64_t>(lines[i].run);
    time[i] = lines[i].time;
    rank[i] = lines[i].rank;
    kind[i] = LevelBit(lines[i].level) | (lines[i].from_stderr ? 16 : 0);
    text[i] = lines[i].text;
  }
  PackedWriter writer(static_cast<std::uint32_t>(rows));
  writer.Numbers("id", id);
  writer.Numbers("run", run);
  writer.Numbers("time", time);
  writer.Numbers("rank", rank);
  writer.Numbers("kind", kind);
  writer.Texts("text", text);
  return std::move(writer).Finish();
}

Result<std::vector<LogLine>> DecodeLogBlock(std::string bytes) {
  ASSIGN_OR_RETURN(const PackedReader packed, PackedReader::Open(std::move(bytes)));
  ASSIGN_OR_RETURN(const auto id, packed.Numbers("id"));
  ASSIGN_OR_RETURN(const auto run, packed.Numbers("run"));
  ASSIGN_OR_RETURN(const auto time, packed.Numbers("time"));
  ASSIGN_OR_RETURN(const auto rank, packed.Numbers("rank"));
  ASSIGN_OR_RETURN(const auto kind, packed.Numbers("kind"));
  ASSIGN_OR_RETURN(auto text, packed.Texts("text"));
  std::vector<LogLine> lines(packed.rows());
  for (std::size_t i = 0; i < lines.size(); ++i) {
    LogLine& line = lines[i];
    line.id = static_cast<std::uint64_t>(id[i]);
    line.run = static_cast<std::uint64_t>(run[i]);
    line.time = time[i];
    line.rank = static_cast<int>(rank[i]);
    line.level = (kind[i] & 8) != 0   ? LineLevel::kError
                 : (kind[i] & 4) != 0 ? LineLevel::kWarning
                 : (kind[i] & 1) != 0 ? LineLevel::kDebug
                                      : LineLevel::kInfo;
    line.from_stderr = (kind[i] & 16) != 0;
    line.text = std::move(text[i]);
  }
  return lines;
}

}  // namespace cairn
