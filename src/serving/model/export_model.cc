#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>
#include <utility>

#include <cairn/serving.h>

#include "base/status_macros.h"
#include "format/json.h"
#include "model/inference/save_inference.h"
#include "serving/export_record.h"
#include "serving/model/export_directory.h"

namespace cairn::serving {
namespace {

Status CheckSession(const ExportRequest& request) {
  const SessionOptions* session = request.session;
  if (!request.increments || session == nullptr) return Status::Ok();
  const auto set = [](const auto& interval) { return interval.has_value() && *interval > 0; };
  if (set(session->save_incremental_checkpoint_secs) ||
      set(session->save_incremental_checkpoint_steps)) {
    return Status::Ok();
  }
  return FailedPreconditionError(
      "increments are asked for (save_incr_model), and the session saves none: set "
      "save_incremental_checkpoint_secs");
}

Result<ExportRecord> MakeRecord(const ExportRequest& request, const SavedInferenceModel& model) {
  ExportRecord record;
  record.increments = request.increments;
  for (const auto& [input, table] : request.tables) {
    const auto wrong = [&, &input = input](const std::string& what) {
      return InvalidArgumentError("tables: the input " + QuoteForMessage(input) + " " + what);
    };
    const auto found =
        std::find_if(model.signature.inputs.begin(), model.signature.inputs.end(),
                     [&, &input = input](const TensorSignature& s) { return s.name == input; });
    if (found == model.signature.inputs.end()) return wrong("is none of feed_names");
    const std::int64_t dim = table.dim;
    if (found->dtype != DType::kF32) return wrong("does not take float32 rows");
    if (found->shape.size() < 2 || (found->shape.back() != dim && found->shape.back() != -1)) {
      return wrong("does not end with the " + std::to_string(dim) + " weights of a row of " +
                   QuoteForMessage(table.name));
    }
    ServedTable served;
    served.name = table.name;
    served.dim = table.dim;
    served.dtype = table.dtype;
    served.default_value = table.default_value;
    RETURN_IF_ERROR(Validate(served));
    record.inputs.push_back({input, std::move(served)});
  }
  for (const auto& [weight, variable] : request.variables) {
    const bool known =
        std::find(model.weights.begin(), model.weights.end(), weight) != model.weights.end();
    if (!known || variable.empty()) {
      return InvalidArgumentError("variables: " + QuoteForMessage(weight) +
                                  (known ? " has no name" : " is no weight of the graph"));
    }
  }
  record.variables = request.variables;
  return record;
}

}  // namespace

ExportTable ExportTable::Of(const Table& table) {
  const TableOptions& options = table.options();
  std::array<float, 8> a{};
  std::array<float, 8> b{};
  options.initializer->Fill(1, a);
  options.initializer->Fill(2, b);
  const bool constant =
      a == b && std::all_of(a.begin(), a.end(), [&](float x) { return x == a[0]; });
  ExportTable described;
  described.name = options.name;
  described.dim = options.dim;
  described.dtype = options.dtype;
  described.default_value = constant ? a[0] : 0;
  return described;
}

Result<Exported> Export(const ExportRequest& request) {
  const std::string where = "export into \"" + request.directory + "\"";
  if (Status checked = CheckSession(request); !checked.ok()) return checked.WithContext(where);
  auto made = MakeExportDirectory(request.directory);
  if (!made.ok()) return made.status().WithContext(where);
  Exported exported;
  std::tie(exported.path, exported.version) = *made;
  SaveInferenceRequest save;
  save.directory = exported.path;
  save.model = request.model;
  save.model_path = request.model_path;
  save.feed_names = request.feed_names;
  save.target_names = request.target_names;
  auto saved = SaveInferenceModelWith(
      save, [&](const SavedInferenceModel& model) -> Result<std::map<std::string, std::string>> {
        ASSIGN_OR_RETURN(const ExportRecord record, MakeRecord(request, model));
        return std::map<std::string, std::string>{{std::string(kExportRecord), Encode(record)}};
      });
  if (!saved.ok()) {
    GiveUpExportDirectory(exported.path);
    return saved.status().WithContext(where);
  }
  exported.model = *std::move(saved);
  return exported;
}

}  // namespace cairn::serving
