#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/inference.h>
#include <cairn/serving.h>
#include <cairn/status.h>
#include <cairn/value.h>

namespace cairn::serving {

/// The Open Inference Protocol (KServe v2) in JSON: bytes in, feeds out, and back. Nothing here
/// listens or predicts.

/// "FP32", "INT64", …; "" for a dtype that the protocol does not have.
std::string_view ProtocolType(DType dtype);
std::optional<DType> FromProtocolType(std::string_view name);

struct InferRequest {
  struct Input {
    DType dtype = DType::kF32;
    std::vector<std::uint64_t> shape;
    std::string bytes;      // row-major
    std::size_t place = 0;  // in the request's list
  };
  std::string id;
  std::map<std::string, Input> inputs;
  std::vector<std::string> outputs;  // empty: all

  std::map<std::string, FeedTensor> Feeds() const;
};

/// InvalidArgument names the member that is wrong: "inputs[1].shape: …".
Result<InferRequest> DecodeInferRequest(std::string_view body);
Result<InferRequest> InferRequestFrom(const Value& body);

/// Whether a model with these inputs can be asked so. InvalidArgument names the member, in the
/// protocol's words: "inputs[0].datatype: FP32, and the model wants INT64".
Status CheckInputs(const InferRequest& request, const std::vector<TensorSignature>& wanted);

/// The answer. InvalidArgument names an output that is asked for and not there; Unimplemented one
/// whose type JSON has no numbers for.
Result<std::string> EncodeInferResponse(const std::string& model, const std::string& version,
                                        const InferRequest& request,
                                        const std::vector<OwnedTensor>& outputs);

/// [{"name", "datatype", "shape"}, …] of a signature's tensors.
Value::List DescribeTensors(const std::vector<TensorSignature>& tensors);

}  // namespace cairn::serving
