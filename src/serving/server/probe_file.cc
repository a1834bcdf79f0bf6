#include "serving/server/probe_file.h"

#include <fmt/format.h>

#include <fstream>
#include <iterator>
#include <limits>
#include <utility>

#include "base/status_macros.h"
#include "format/json.h"
#include "serving/server/infer_json.h"

namespace cairn::serving {
namespace {

Result<double> Bound(const Value& object, const char* member, double otherwise) {
  const Value* given = object.Find(member);
  if (given == nullptr) return otherwise;
  const Value number = NumberFrom(*given);
  if (!number.is_number() || number.AsDouble() != number.AsDouble()) {
    return InvalidArgumentError(std::string(member) + ": is no number");
  }
  return number.AsDouble();
}

Result<Probe> DecodeProbe(const Value& object) {
  if (!object.is_object()) return InvalidArgumentError("is no object");
  for (const auto& [member, value] : *object.if_object()) {
    if (member == "inputs" || member == "output" || member == "min" || member == "max") continue;
    return InvalidArgumentError(QuoteForMessage(member) +
                                ": is not known; a probe has inputs, output, min and max");
  }
  Probe probe;
  ASSIGN_OR_RETURN(InferRequest request, InferRequestFrom(object));
  for (auto& [name, input] : request.inputs) {
    probe.feeds[name] = {input.dtype, std::move(input.shape), std::move(input.bytes)};
  }
  const Value* output = object.Find("output");
  if (output == nullptr || !output->is_string() || output->if_string()->empty()) {
    return InvalidArgumentError(output == nullptr ? "output: is missing" : "output: is no name");
  }
  probe.output = *output->if_string();
  constexpr double kNoBound = std::numeric_limits<double>::infinity();
  ASSIGN_OR_RETURN(probe.min, Bound(object, "min", -kNoBound));
  ASSIGN_OR_RETURN(probe.max, Bound(object, "max", kNoBound));
  if (object.Find("min") == nullptr && object.Find("max") == nullptr) {
    return InvalidArgumentError("min and max: are missing; one of them is needed");
  }
  return probe;
}

}  // namespace

Result<std::vector<Probe>> DecodeProbes(std::string_view text) {
  const auto decoded = DecodeJson(text);
  if (!decoded.ok()) {
    return InvalidArgumentError("is no JSON: " + std::string(decoded.status().message()));
  }
  const Value* list = decoded->Find("probes");
  if (list == nullptr || !list->is_list() || list->if_list()->empty()) {
    return InvalidArgumentError("probes: " +
                                std::string(list == nullptr ? "is missing" : "is no list of any"));
  }
  std::vector<Probe> probes;
  for (const Value& one : *list->if_list()) {
    auto probe = DecodeProbe(one);
    if (!probe.ok()) return probe.status().WithContext(fmt::format("probes[{}]", probes.size()));
    probes.push_back(*std::move(probe));
  }
  return probes;
}

Result<std::vector<Probe>> ReadProbes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return NotFoundError("\"" + path + "\" cannot be read");
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  auto probes = DecodeProbes(text);
  if (!probes.ok()) return probes.status().WithContext("\"" + path + "\"");
  return probes;
}

}  // namespace cairn::serving
