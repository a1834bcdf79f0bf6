#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <cairn/serving.h>
#include <cairn/status.h>

namespace cairn::serving {

/// The guards of a served model as a file of JSON, inputs as in a request for a prediction:
///   {"probes": [{"inputs": [{"name", "datatype", "shape", "data"}], "output": "score",
///                "min": 0, "max": 1}]}
/// `min` or `max` may be left out. InvalidArgument names the member that is wrong. Whether a model
/// has such inputs and outputs is seen when it is opened.
Result<std::vector<Probe>> DecodeProbes(std::string_view text);
Result<std::vector<Probe>> ReadProbes(const std::string& path);

}  // namespace cairn::serving
