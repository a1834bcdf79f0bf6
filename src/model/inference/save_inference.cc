#include "model/inference/save_inference.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <cairn/inference.h>

#include "base/status_macros.h"
#include "checkpoint/checkpoint_path.h"
#include "checkpoint/import_place.h"
#include "checkpoint/manager.h"
#include "checkpoint/names.h"
#include "checkpoint/transfer.h"
#include "format/safetensors.h"
#include "model/foreign/side_files.h"
#include "model/inference/onnx_graph.h"
#include "model/inference/signature.h"
#include "model/save_variables.h"
#include "model/variable_record.h"

namespace cairn {
namespace {

class WeightSource final : public TensorSource {
 public:
  explicit WeightSource(std::span<const std::byte> bytes) : bytes_(bytes) {}
  Status Fill(std::uint64_t offset, std::span<std::byte> into) override {
    std::memcpy(into.data(), bytes_.data() + offset, into.size());
    return Status::Ok();
  }

 private:
  const std::span<const std::byte> bytes_;
};

/// Adds params.safetensors and says where in it each weight stands.
Result<std::map<std::string, std::pair<std::uint64_t, std::uint64_t>>> AddWeights(
    const std::vector<ForeignTensor>& weights, IncomingFiles* files) {
  std::map<std::string, std::pair<std::uint64_t, std::uint64_t>> places;
  if (weights.empty()) return places;
  std::vector<const ForeignTensor*> ordered;
  for (const ForeignTensor& weight : weights) ordered.push_back(&weight);
  std::sort(ordered.begin(), ordered.end(),
            [](const ForeignTensor* a, const ForeignTensor* b) { return a->name < b->name; });
  // Multiples of 4 KiB first: they then all stand aligned, and runtimes map them.
  std::stable_partition(ordered.begin(), ordered.end(), [](const ForeignTensor* weight) {
    return weight->Bytes().size() % kSafetensorsAlign == 0;
  });
  std::vector<TensorEntry> entries;
  std::vector<std::unique_ptr<TensorSource>> sources;
  std::uint64_t end = 0;
  for (const ForeignTensor* weight : ordered) {
    const std::uint64_t bytes = weight->Bytes().size();
    entries.push_back({weight->name, weight->dtype, weight->shape, end, end + bytes});
    sources.push_back(std::make_unique<WeightSource>(weight->Bytes()));
    end += bytes;
  }
  ASSIGN_OR_RETURN(std::string head, EncodeSafetensorsHeader(entries, {{"format", "cairn"}}));
  for (const TensorEntry& entry : entries) {
    places[entry.name] = {head.size() + entry.begin, entry.end - entry.begin};
  }
  files->AddTensors(std::string(kInferenceParams), std::string(kVariablesParticipant),
                    std::move(head), entries, std::move(sources));
  return places;
}

Result<SavedInferenceModel> Save(const SaveInferenceRequest& request, const MoreFiles& more,
                                 const std::string& model_name, PlacedFiles* side) {
  std::span<const std::byte> bytes = std::as_bytes(std::span(request.model));
  if (request.model.empty()) {
    auto read = side->Read(model_name);
    if (!read.ok()) return read.status().WithContext("\"" + request.model_path + "\"");
    bytes = *read;
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<OnnxGraph> graph, OnnxGraph::Parse(bytes));
  RETURN_IF_ERROR(graph->Prune(request.feed_names, request.target_names));
  ASSIGN_OR_RETURN(const std::vector<ForeignTensor> weights, graph->Weights(side));

  SavedInferenceModel report;
  report.signature = graph->signature();
  report.nodes = graph->nodes();
  report.pruned_nodes = graph->pruned_nodes();
  report.left_out = graph->left_out();
  std::set<std::string> persistables = graph->statistics();
  persistables.insert(request.persistables.begin(), request.persistables.end());
  VariableRoles roles;
  for (const ForeignTensor& weight : weights) {
    roles.emplace(weight.name,
                  persistables.contains(weight.name) ? Role::kPersistable : Role::kParameter);
    report.weights.push_back(weight.name);
    report.bytes += weight.Bytes().size();
  }
  std::sort(report.weights.begin(), report.weights.end());

  IncomingFiles files;
  ASSIGN_OR_RETURN(const auto places, AddWeights(weights, &files));
  ASSIGN_OR_RETURN(std::string model, graph->Serialize(std::string(kInferenceParamsName), places));
  const std::string part(kVariablesParticipant);
  files.AddBytes(std::string(kInferenceModel), part, std::move(model));
  files.AddBytes(std::string(kInferenceSignature), part, EncodeSignature(report.signature));
  files.AddBytes(names::Path(part, kVariablesFile), part, EncodeVariableRoles(roles));
  if (more) {
    ASSIGN_OR_RETURN(const auto extra, more(report));
    for (const auto& [path, content] : extra) files.AddBytes(path, part, content);
  }
  ASSIGN_OR_RETURN(const Environment env, EnvironmentAt(request.directory, {.create = true}));
  ASSIGN_OR_RETURN(report.info, CommitOnlySave(env, request.directory, std::move(files),
                                               kInferenceContent, request.control));
  report.model_path = report.info.path + "/" + std::string(kInferenceModel);
  return report;
}

}  // namespace

Result<SavedInferenceModel> SaveInferenceModel(const SaveInferenceRequest& request) {
  return SaveInferenceModelWith(request, {});
}

Result<SavedInferenceModel> SaveInferenceModelWith(const SaveInferenceRequest& request,
                                                   const MoreFiles& more) {
  RETURN_IF_ERROR(CheckPath(request.directory));
  if (request.model.empty() && request.model_path.empty()) {
    return InvalidArgumentError("no model was given: neither bytes nor a path");
  }
  const auto save = [&]() -> Result<SavedInferenceModel> {
    ImportTarget model;
    if (!request.model_path.empty()) {
      ASSIGN_OR_RETURN(model, FindImport(request.model_path));
      if (model.name.empty()) {
        return InvalidArgumentError("\"" + request.model_path +
                                    "\" is a directory; give the path of the model in it");
      }
    }
    PlacedFiles side(std::move(model.place));
    return Save(request, more, model.name, &side);
  };
  auto saved = save();
  if (!saved.ok()) {
    return saved.status().WithContext("save inference model into \"" + request.directory + "\"");
  }
  return saved;
}

}  // namespace cairn
