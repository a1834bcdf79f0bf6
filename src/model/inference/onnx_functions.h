#pragma once

#include <string>

#include <cairn/status.h>

namespace onnx {
class GraphProto;
class ModelProto;
}  // namespace onnx

namespace cairn {

/// Puts the bodies of the functions that a model defines in the place of their calls, also inside
/// of branches and loops: what then runs it need not know functions (OpenVINO does not). A function
/// that is written for another version of the operators than the model stays what it is. The
/// functions themselves are left there. InvalidArgument: one calls itself, or the graph would
/// become larger than any can be; the model is then half done.
Status InlineFunctions(onnx::ModelProto* model);

/// Whether a name of the graph, or of one inside of it, begins so.
bool HasNames(const onnx::GraphProto& graph, const std::string& start);

}  // namespace cairn
