#pragma once

#include <string>

#include <cairn/status.h>

namespace onnx {
class FunctionProto;
class GraphProto;
class ModelProto;
class NodeProto;
}  // namespace onnx

namespace cairn {

/// Puts the bodies of the functions that a model defines in the place of their calls, also inside
/// of branches and loops: what then runs it need not know functions (OpenVINO does not). A function
/// that is written for another version of the operators than the model stays what it is. The
/// functions themselves are left there. InvalidArgument: one calls itself, or the graph would
/// become larger than any can be; the model is then half done.
Status InlineFunctions(onnx::ModelProto* model);

/// What an operator calls, should it be a function of the model's own, and what a function is
/// called as: equal for a call and its function. Functions of one name differ by their overload.
std::string CalledAs(const onnx::NodeProto& node);
std::string CalledAs(const onnx::FunctionProto& function);

/// Whether a name of the graph, or of one inside of it, begins so.
bool HasNames(const onnx::GraphProto& graph, const std::string& start);

}  // namespace cairn
