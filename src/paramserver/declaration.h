#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <cairn/initializer.h>
#include <cairn/optimizer.h>
#include <cairn/ps.h>
#include <cairn/status.h>
#include <cairn/table.h>
#include <cairn/value.h>

/// Declarations of tables and dense variables: as values (in messages and in a checkpoint's
/// job.json) and as the things they describe.
namespace cairn::ps {

/// InvalidArgument: an unknown kind or setting, naming it.
Result<std::shared_ptr<const Optimizer>> MakeOptimizer(const OptimizerSpec& spec);
Result<std::shared_ptr<const Initializer>> MakeInitializer(const InitializerSpec& spec);
/// Without shards and gate.
Result<TableOptions> MakeTableOptions(const TableSpec& spec);

Value ToValue(const TableSpec& spec);
Value ToValue(const DenseSpec& spec);
/// In which members two declarations of one thing differ, for a message: "dim 8 there, 16 here".
std::string Differences(const Value& there, const Value& here);
/// Corruption for what is no declaration.
Result<TableSpec> TableSpecFrom(const Value& value);
Result<DenseSpec> DenseSpecFrom(const Value& value);

}  // namespace cairn::ps
