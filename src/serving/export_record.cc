#include "serving/export_record.h"

#include <cmath>
#include <set>
#include <utility>

#include "base/status_macros.h"
#include "format/json.h"
#include "format/member_reader.h"
#include "format/sealed_json.h"

namespace cairn::serving {
namespace {

constexpr std::int64_t kVersion = 1;
constexpr std::uint64_t kMaxDim = 65'536;

Status DecodeInput(const Value& value, ExportRecord::Input* input) {
  const Value::Object* members = value.if_object();
  if (members == nullptr) return CorruptionError("tables: not an object");
  const MemberReader reader(*members);
  std::string dtype;
  std::uint64_t dim = 0;
  RETURN_IF_ERROR(reader.Text("input", &input->input));
  RETURN_IF_ERROR(reader.Text("table", &input->table.name));
  RETURN_IF_ERROR(reader.Uint("dim", &dim));
  RETURN_IF_ERROR(reader.Text("dtype", &dtype));
  const auto known = DTypeFromName(dtype);
  if (!known) return CorruptionError("dtype: " + QuoteForMessage(dtype) + " is none");
  if (dim > kMaxDim) return CorruptionError("dim: " + std::to_string(dim));
  input->table.dim = static_cast<std::uint32_t>(dim);
  input->table.dtype = *known;
  const auto it = members->find("default");
  if (it == members->end() || !it->second.is_number()) {
    return CorruptionError("default: not a number");
  }
  input->table.default_value = static_cast<float>(it->second.AsDouble());
  const Status valid = Validate(input->table);
  return valid.ok() ? valid : CorruptionError(std::string(valid.message()));
}

Status CheckNames(const ExportRecord& record) {
  std::set<std::string> inputs;
  std::map<std::string, ServedTable> tables;
  for (const ExportRecord::Input& input : record.inputs) {
    if (!inputs.insert(input.input).second) {
      return CorruptionError("tables: the input " + QuoteForMessage(input.input) + " twice");
    }
    const auto [it, fresh] = tables.emplace(input.table.name, input.table);
    if (!fresh && !(it->second == input.table)) {
      return CorruptionError("tables: " + QuoteForMessage(input.table.name) + " is two things");
    }
  }
  return Status::Ok();
}

}  // namespace

Status Validate(const ServedTable& table) {
  if (table.name.empty()) return InvalidArgumentError("a table without a name");
  if (table.dim < 1 || table.dim > kMaxDim) {
    return InvalidArgumentError("table " + QuoteForMessage(table.name) + ": a dim of " +
                                std::to_string(table.dim));
  }
  if (table.dtype != DType::kF32 && table.dtype != DType::kF16 && table.dtype != DType::kBF16) {
    return InvalidArgumentError("table " + QuoteForMessage(table.name) + ": rows of " +
                                std::string(DTypeName(table.dtype)));
  }
  if (!std::isfinite(table.default_value)) {
    return InvalidArgumentError("table " + QuoteForMessage(table.name) +
                                ": a default that is not finite");
  }
  return Status::Ok();
}

std::string Encode(const ExportRecord& record) {
  SealedJsonWriter writer;
  writer.Int("version", kVersion);
  writer.Json("increments", record.increments);
  Value::List tables;
  for (const ExportRecord::Input& input : record.inputs) {
    tables.emplace_back(Value::Object{{"input", input.input},
                                      {"table", input.table.name},
                                      {"dim", std::int64_t{input.table.dim}},
                                      {"dtype", DTypeName(input.table.dtype)},
                                      {"default", double{input.table.default_value}}});
  }
  writer.Json("tables", tables);
  Value::Object variables;
  for (const auto& [weight, variable] : record.variables) variables.emplace(weight, variable);
  writer.Json("variables", variables);
  return writer.Seal();
}

Result<ExportRecord> DecodeExportRecord(std::string_view bytes) {
  ASSIGN_OR_RETURN(const Value::Object members, DecodeSealedJson(bytes));
  const MemberReader reader(members);
  std::int64_t version = 0;
  RETURN_IF_ERROR(reader.Int("version", &version));
  if (version < 1) return CorruptionError("version " + std::to_string(version));
  if (version > kVersion) {
    return UnimplementedError("the export is of version " + std::to_string(version) +
                              "; a newer Cairn reads it");
  }
  ExportRecord record;
  RETURN_IF_ERROR(reader.OptionalBool("increments", &record.increments));
  const Value::List* tables = nullptr;
  RETURN_IF_ERROR(reader.OptionalList("tables", &tables));
  if (tables != nullptr) {
    for (const Value& value : *tables) {
      RETURN_IF_ERROR(DecodeInput(value, &record.inputs.emplace_back()));
    }
  }
  RETURN_IF_ERROR(CheckNames(record));
  Value variables = Value::Object{};
  RETURN_IF_ERROR(reader.OptionalObject("variables", &variables));
  for (const auto& [weight, variable] : *variables.if_object()) {
    const std::string* name = variable.if_string();
    if (name == nullptr || name->empty() || weight.empty()) {
      return CorruptionError("variables: " + QuoteForMessage(weight) + " has no name");
    }
    record.variables.emplace(weight, *name);
  }
  return record;
}

}  // namespace cairn::serving
