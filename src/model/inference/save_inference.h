#pragma once

#include <functional>
#include <map>
#include <string>

#include <cairn/inference.h>
#include <cairn/status.h>

namespace cairn {

/// Files (path in the checkpoint → bytes) that are committed with a model; called when the graph is
/// cut and nothing is written yet. A status other than OK ends the save.
using MoreFiles =
    std::function<Result<std::map<std::string, std::string>>(const SavedInferenceModel& model)>;

/// As SaveInferenceModel, with more files in the same commit.
Result<SavedInferenceModel> SaveInferenceModelWith(const SaveInferenceRequest& request,
                                                   const MoreFiles& more);

}  // namespace cairn
