#pragma once

#include <span>
#include <string>
#include <vector>

#include <cairn/status.h>

#include "catalog/logs.h"

namespace cairn {

/// Lines of one trial, one after the other (docs/format/catalog.md).
std::string EncodeLogBlock(std::span<const LogLine> lines);
Result<std::vector<LogLine>> DecodeLogBlock(std::string bytes);

/// A bit for each level: a block knows which it holds.
int LevelBit(LineLevel level);

}  // namespace cairn
