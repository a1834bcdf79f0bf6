#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/status.h>

#include "serving/versioned_table.h"

namespace cairn::serving {

/// serving.json of an export (docs/format/export.md): what a served model needs besides its graph.
struct ExportRecord {
  struct Input {
    std::string input;  // of the graph; its rows …
    ServedTable table;  // … come from here

    friend bool operator==(const Input&, const Input&) = default;
  };
  std::vector<Input> inputs;
  std::map<std::string, std::string> variables;  // weight → variable of the checkpoints
  bool increments = false;

  friend bool operator==(const ExportRecord&, const ExportRecord&) = default;
};

inline constexpr std::string_view kExportRecord = "__model__/serving.json";

std::string Encode(const ExportRecord& record);
/// Corruption for damaged bytes, Unimplemented for a newer version.
Result<ExportRecord> DecodeExportRecord(std::string_view bytes);

/// OK for a table that can be served.
Status Validate(const ServedTable& table);

}  // namespace cairn::serving
