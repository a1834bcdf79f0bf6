#include "train/lost_tables.h"

#include <fmt/format.h>

#include <string>

namespace cairn {

Status RefuseLostTables(const Restored& head) {
  std::string names;
  for (const TableFacts& table : head.info.tables) {
    names += (names.empty() ? "" : ", ") + ("\"" + table.name + "\"");
  }
  if (names.empty()) return Status::Ok();
  return MismatchError(fmt::format(
      "restore {}: it has the rows of {}, and no tables are given: they would be in no later "
      "checkpoint. Nothing was changed. Make the tables before, and give them in `tables` (tracked "
      "arrays in `arrays`)",
      head.info.path, names));
}

}  // namespace cairn
